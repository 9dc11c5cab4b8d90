"""Assignment of slots to replies, and of prompts to prefill batches.

Waiting replies are served in order of arrival; those with a lower priority number before all
others, but no running reply is stopped for them. A prompt is computed once while its keys are in
some slot: further replies to it copy any such slot, or reuse it once it is free. The last slot with
a prompt that replies wait for is assigned to others only before their turn, so a request for many
replies computes its prompt once, however few slots there are. Prompts are computed in batches whose
shape is a function of the prompt's own length (`prompt_bucket` times `rows_of`), so that the result
for a prompt does not depend on the other prompts of its batch; unused rows are padding. An
incomplete batch waits a few steps for further prompts, unless half of the slots are free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from verl.workers.rollout.waiting import EnginePrompt, PendingReply, Ticket, WaitingPrompts

MAX_WAIT = 16  # decode steps that a prompt waits for others of its bucket
_FINE = 32


def prompt_bucket(length: int) -> int:
    """Return the padded length of a prompt: 32, 64, 96, 128, then steps of a quarter to a half of
    the power of two below.
    """
    if length <= 4 * _FINE:
        return -(-length // _FINE) * _FINE
    step = 1 << ((length - 1).bit_length() - 2)
    return -(-length // step) * step


def rows_of(bucket: int, token_budget: int) -> int:
    """Return the rows of a prefill batch of this bucket: as many as fit into the token budget, at
    least one.
    """
    return max(1, token_budget // bucket)


@dataclass(frozen=True)
class Prefill:
    """Prompts of one bucket to compute, each into the slot beside its reply."""

    bucket: int
    rows: int
    batch: list[tuple[int, PendingReply]]


@dataclass(frozen=True)
class Copies:
    """Keys to copy, as (source slot, target slot, reply); both slots may be the same."""

    batch: list[tuple[int, int, PendingReply]]


class Scheduler:
    """Waiting replies and free slots; handles no tensors."""

    def __init__(self, slots: int, token_budget: int) -> None:
        self._token_budget = token_budget
        self._slots = slots
        self._free = set(range(slots))
        self._prompts = WaitingPrompts(prompt_bucket)
        self._waited = 0

    @property
    def waiting(self) -> int:
        """Number of replies without a slot."""
        return self._prompts.replies

    def add(self, replies: Iterable[PendingReply]) -> None:
        """Queue replies."""
        for reply in replies:
            self._prompts.add(reply)

    def withdraw(self, ticket: Ticket) -> list[PendingReply]:
        """Remove the ticket's waiting replies from the queue and return them."""
        return self._prompts.withdraw(ticket)

    def free(self, slot: int) -> None:
        """Mark a slot as free; it keeps its prompt's keys until it is reused. Lower slots are
        reused first.
        """
        self._free.add(slot)

    def forget(self, slots: Iterable[int] | None = None) -> None:
        """Mark these slots (all, by default) as holding no prompt, because the weights changed or
        the keys are invalid.
        """
        for slot in list(self._prompts.held) if slots is None else slots:
            self._prompts.release(slot)

    def forget_adapter(self, adapter: str) -> None:
        """As `forget`, for the slots with prompts that were computed under this adapter."""
        self.forget([slot for slot, prompt in self._prompts.held.items() if prompt.adapter == adapter])

    def admit(self) -> Prefill | Copies | None:
        """Return the next batch to admit; call again until it returns None."""
        if not self.waiting or not self._free:
            return None
        slot_priorities = (prompt.priority for prompt in self._prompts.held.values())
        first = min((*slot_priorities, *(priority for priority, _ in self._prompts.to_compute)))
        return self._take_copies(first) or self._take_prefill(first)

    def tick(self) -> None:
        """Count a decode step."""
        self._waited = self._waited + 1 if self.waiting and self._free else 0

    def _take_copies(self, priority: float) -> Copies | None:
        batch: list[tuple[int, int, PendingReply]] = []
        for prompt in sorted({p for p in self._prompts.held.values() if p.waiting}, key=lambda p: p.arrival):
            while prompt.priority == priority and (slot := self._slot_for_copy(prompt)) is not None:
                source = slot if slot in prompt.holders else next(iter(prompt.holders))
                batch.append((source, slot, self._assign(slot, prompt)))
        return Copies(batch) if batch else None

    def _slot_for_copy(self, prompt: EnginePrompt) -> int | None:
        """Return a free slot with this prompt, or the first of `_by_need` that is not the last one
        with a prompt whose turn is no later.
        """
        for slot in prompt.holders:
            if slot in self._free:
                return slot
        for slot in sorted(self._free):
            if self._need(slot) == math.inf:
                return slot
        return next((slot for slot in self._by_need() if self._need(slot) > prompt.priority), None)

    def _by_need(self) -> list[int]:
        """Return the free slots, those first whose prompts nothing needs, then those whose prompts
        are needed last; lower ones first.
        """
        return sorted(self._free, key=lambda slot: (-self._need(slot), slot))

    def _need(self, slot: int) -> float:
        """Return the priority of the replies that wait for a slot's prompt, which no other slot
        holds; infinite without any.
        """
        prompt = self._prompts.held.get(slot)
        return math.inf if prompt is None or len(prompt.holders) > 1 else prompt.priority

    def _take_prefill(self, priority: float) -> Prefill | None:
        """Return the oldest prompt and others of its bucket; `_take_copies` has served the replies
        whose prompt a slot holds.
        """
        groups = {
            bucket: group
            for (group_priority, bucket), group in self._prompts.to_compute.items()
            if group_priority == priority
        }
        if not groups:
            return None
        bucket = min(groups, key=lambda bucket: next(iter(groups[bucket])).arrival)
        rows = rows_of(bucket, self._token_budget)
        prompts = list(islice(groups[bucket], min(rows, len(self._free))))
        if len(prompts) < rows and self._waited < MAX_WAIT and 2 * len(self._free) < self._slots:
            return None
        self._waited = 0
        return Prefill(
            bucket,
            rows,
            [
                (slot, self._assign(slot, prompt))
                for slot, prompt in zip(self._by_need(), prompts, strict=False)
            ],
        )

    def _assign(self, slot: int, prompt: EnginePrompt) -> PendingReply:
        self._free.remove(slot)
        return self._prompts.assign(slot, prompt)
