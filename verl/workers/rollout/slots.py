"""State of every slot on the device, and the sampling step over all of them.

One row per slot. The host keeps only what scheduling needs (active slots, lengths of rows); tokens
and log-probs stay on the device until their reply is done, so a step costs one transfer of a small
vector.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from verl.protocol.generate import SamplingParams
from verl.workers.rollout.sampling import sample

RUNNING = 0
LENGTH = 1
STOP = 2
FAILED = 3


class SlotState:
    """Positions, sampling parameters, random numbers and output of `slots` replies of at most
    `max_length` tokens.
    """

    def __init__(self, slots: int, max_length: int, device: torch.device) -> None:
        self.device = device
        self.tokens = torch.zeros(slots, dtype=torch.long, device=device)
        self.positions = torch.zeros(slots, dtype=torch.long, device=device)
        self._active = torch.zeros(slots, dtype=torch.bool, device=device)
        self._count = torch.zeros(slots, dtype=torch.long, device=device)
        self._limit = torch.ones(slots, dtype=torch.long, device=device)
        self._temperature = torch.ones(slots, device=device)
        self._greedy = torch.zeros(slots, dtype=torch.bool, device=device)
        self._truncated = torch.zeros(slots, dtype=torch.bool, device=device)
        self._top_p = torch.ones(slots, dtype=torch.float64, device=device)
        self._top_k = torch.ones(slots, dtype=torch.long, device=device)
        self._stop_ids = torch.full((slots, 1), -1, dtype=torch.long, device=device)
        self._uniforms = torch.zeros(slots, max_length, dtype=torch.float64, device=device)
        self._out_tokens = torch.zeros(slots, max_length, dtype=torch.long, device=device)
        self._out_log_probs = torch.zeros(slots, max_length, device=device)
        self._host_active = np.zeros(slots, dtype=bool)
        self._host_greedy = np.zeros(slots, dtype=bool)
        self._host_truncated = np.zeros(slots, dtype=bool)
        self._host_positions = np.zeros(slots, dtype=np.int64)

    @property
    def active(self) -> int:
        """Number of slots with an unfinished reply."""
        return int(self._host_active.sum())

    @property
    def used(self) -> int:
        """Index of the last active slot plus 1; 0 when none is active."""
        return int(self._host_active.nonzero()[0].max(initial=-1)) + 1

    @property
    def longest(self) -> int:
        """Highest position of a token in any active slot."""
        return int(self._host_positions.max(where=self._host_active, initial=0))

    def is_active(self, slot: int) -> bool:
        """Whether a slot has an unfinished reply that is sampled."""
        return bool(self._host_active[slot])

    def start(
        self,
        slots: Sequence[int],
        prompt_lengths: Sequence[int],
        limits: Sequence[int],
        sampling: Sequence[SamplingParams],
        uniforms: Sequence[np.ndarray],
    ) -> None:
        """Start replies whose prompts end before position `prompt_lengths`; the next `step` samples
        their first tokens.
        """
        rows = np.asarray(slots)
        self._host_active[rows] = True
        self._host_positions[rows] = np.asarray(prompt_lengths) - 1
        self._host_greedy[rows] = [params.temperature == 0 for params in sampling]
        self._host_truncated[rows] = [params.top_p < 1 or params.top_k > 0 for params in sampling]
        index = torch.as_tensor(rows, device=self.device)
        self._active[index] = True
        self._count[index] = 0
        self._put(self.positions, index, self._host_positions[rows])
        self._put(self._limit, index, limits)
        # Not read where tokens are chosen greedily, but divided by.
        self._put(self._temperature, index, [params.temperature or 1.0 for params in sampling])
        self._put(self._greedy, index, self._host_greedy[rows])
        self._put(self._truncated, index, self._host_truncated[rows])
        self._put(self._top_p, index, [params.top_p for params in sampling])
        self._put(self._top_k, index, [params.top_k if params.top_k > 0 else 2**31 for params in sampling])
        self._put_stop_ids(index, [params.stop_token_ids for params in sampling])
        padded_uniforms = np.zeros((len(rows), max(len(row) for row in uniforms)))
        for target, row in zip(padded_uniforms, uniforms, strict=True):
            target[: len(row)] = row
        self._uniforms[index, : padded_uniforms.shape[1]] = torch.as_tensor(
            padded_uniforms, device=self.device
        )

    def step(self, logits: torch.Tensor) -> list[tuple[int, int]]:
        """Sample a token for every active slot from logits [slots, vocab] and return the slots that
        ended as (slot, end state).

        Slots behind the last active one are not looked at.
        """
        rows = slice(0, self.used)
        count = self._count[rows].unsqueeze(1)
        truncation = None
        if self._host_truncated.any():
            truncation = (self._truncated[rows], self._top_p[rows], self._top_k[rows])
        greedy = self._greedy[rows] if self._host_greedy.any() else None
        uniforms = self._uniforms[rows].gather(1, count).squeeze(1)
        sampled = sample(logits[rows], uniforms, self._temperature[rows], greedy, truncation)
        self.tokens[rows] = sampled.tokens
        self._out_tokens[rows].scatter_(1, count, sampled.tokens.unsqueeze(1))
        self._out_log_probs[rows].scatter_(1, count, sampled.log_probs.unsqueeze(1))
        stopped = (self._stop_ids[rows] == sampled.tokens.unsqueeze(1)).any(1)
        self._count += self._active
        end = torch.where(stopped, STOP, (self._count[rows] >= self._limit[rows]).long())
        end = torch.where(sampled.finite, end, FAILED) * self._active[rows]
        on_host = end.cpu().numpy()
        return [(int(slot), int(on_host[slot])) for slot in on_host.nonzero()[0]]

    def advance(self) -> None:
        """Move every active slot to its next position, that of the token just sampled."""
        self.positions += self._active
        self._host_positions += self._host_active

    def output(self, slot: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return tokens and log-probs of the slot's reply so far."""
        count = int(self._count[slot])
        return tuple(self._out_tokens[slot, :count].tolist()), tuple(
            self._out_log_probs[slot, :count].tolist()
        )

    def stop(self, slots: Sequence[int], park_at: Sequence[int]) -> None:
        """End replies. Later steps write their idle rows at position `park_at`, so that earlier
        positions are not overwritten.
        """
        rows = np.asarray(slots)
        index = torch.as_tensor(rows, device=self.device)
        for host in (self._host_active, self._host_greedy, self._host_truncated):
            host[rows] = False
        self._active[index] = False
        self._count[index] = 0
        self._temperature[index] = 1.0
        self.tokens[index] = 0
        self._put(self.positions, index, park_at)

    def park(self, slots: Sequence[int], at: Sequence[int]) -> None:
        """Let steps write the idle rows of slots at position `at`."""
        self._put(self.positions, torch.as_tensor(np.asarray(slots), device=self.device), at)

    def suspend(self, slot: int) -> None:
        """Stop sampling for a reply until `resume`."""
        self._host_active[slot] = False
        self._active[slot] = False

    def resume(self, slot: int, position: int) -> None:
        """Go on with a suspended reply, whose last token is at `position`."""
        self._host_active[slot] = True
        self._active[slot] = True
        self._host_positions[slot] = position
        self.positions[slot] = position

    def _put(self, target: torch.Tensor, index: torch.Tensor, values: Sequence[float] | np.ndarray) -> None:
        target[index] = torch.as_tensor(np.asarray(values), device=self.device).to(target.dtype)

    def _put_stop_ids(self, index: torch.Tensor, stop_ids: Sequence[tuple[int, ...]]) -> None:
        widest = max(len(ids) for ids in stop_ids)
        if widest > self._stop_ids.shape[1]:
            wider = torch.full((len(self._stop_ids), widest), -1, dtype=torch.long, device=self.device)
            wider[:, : self._stop_ids.shape[1]] = self._stop_ids
            self._stop_ids = wider
        rows = np.full((len(stop_ids), self._stop_ids.shape[1]), -1)
        for row, ids in zip(rows, stop_ids, strict=True):
            row[: len(ids)] = ids
        self._stop_ids[index] = torch.as_tensor(rows, device=self.device)
