"""The check at the start of a run: engines give the trainer's log-probs, also after an update of
every weight.

An engine that loads a model may differ from the trainer (another implementation, another
precision), and one that is sent new weights may keep old ones: the run then trains on samples of
another model. So the engines sample a few tokens and the trainer scores them, before the first
episode; then every weight is changed (`WeightChange`), sent and compared, and restored.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from verl.protocol import DataProto
from verl.protocol.generate import (
    EngineGoneError,
    EngineStuckError,
    GenerateRequest,
    Generation,
    RolloutError,
    SamplingParams,
)
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.learners import by_group
from verl.trainer.ppo.gap_watch import in_fp32
from verl.trainer.ppo.group_calls import as_raised
from verl.trainer.ppo.team import TeamWorkers

logger = logging.getLogger(__name__)

# Tokens of the prompts and of each reply.
PROMPTS = (5, 12, 24, 32)
REPLY = 8
WITHOUT = "trainer.checks=[memory] trains without this check"


@dataclass(frozen=True)
class Bounds:
    """Largest mean of `|log_prob - rollout_log_prob|` that is rounding, at a temperature of 1 or
    above.

    Attributes:
        loaded: of engines as they have loaded the model.
        updated: after an update, where five times the difference before is not more.
    """

    loaded: float
    updated: float

    def at(self, temperature: float) -> Bounds:
        """Return the bounds at a temperature; below 1 logits, and with them their rounding, are
        divided by it.
        """
        factor = 1 / min(temperature, 1.0)
        return Bounds(factor * self.loaded, factor * self.updated)

    def after(self, before: float) -> float:
        """Return the bound after an update."""
        return max(self.updated, 5 * before)


# fp32 on both sides: on a CPU, and on a GPU, whose matrix products may round to 10 bits.
EXACT = Bounds(5e-4, 1e-3)
TENSOR_CORES = Bounds(1e-2, 2e-2)
# bf16 on one side or both: against fp32 0.01 to 0.06 was measured, and up to 0.27 for gpt-oss, 0.18
# for Granite and 0.1 for other mixtures, whose experts change with the rounding.
ROUNDED = Bounds(0.5, 0.1)


@dataclass(frozen=True)
class _Rows:
    """Replies of a group's engines to the prompts of one policy, or of the base of its adapters."""

    wg_id: str
    policy: str
    of_base: bool
    prompts: Sequence[Sequence[int]]
    replies: Sequence[Generation]


class EngineCheck:
    """Compares the engines of trained groups with the trainer.

    Each method raises ConfigError, in one line, for all groups that differ.

    Args:
        team: worker groups with loaded models.
        updated: weights will be updated; False for an evaluation, for which nothing is changed.
    """

    def __init__(self, team: TeamWorkers, updated: bool) -> None:
        self._team = team
        self._updated = updated
        self._groups = list(team.policies) if "engines" in team.config.trainer.checks else []
        self._before: dict[str, float] = {}
        self._after: dict[str, float] = {}
        self._seconds = 0.0

    def of_loaded(self) -> None:
        """Compare engines as they have loaded their models, and adapters after they were sent."""
        if not self._groups:
            return
        began = time.perf_counter()
        self._run([wg for wg in self._groups if self._team.specs[wg].adapters], self._team.engines.resend)
        self._before = self._gaps()
        wrong = {wg: gap for wg, gap in self._before.items() if not gap <= self._bounds(wg).loaded}
        if wrong:
            raise ConfigError("; ".join([*(self._differs(wg, gap) for wg, gap in wrong.items()), WITHOUT]))
        self._seconds += time.perf_counter() - began

    def of_changed(self) -> None:
        """Change all weights, send and compare them, and restore the trainer's, which the caller
        sends.
        """
        if not (self._groups and self._updated):
            return
        began = time.perf_counter()
        self._run(self._groups, self._change)
        try:
            self._run(self._groups, self._team.engines.resend)
            self._compare_updated()
        finally:
            self._run(self._groups, lambda wg: self._team.policies[wg].restore_weights())
        self._seconds += time.perf_counter() - began

    def of_sent(self) -> None:
        """Compare engines after the weights of the run were sent to them, and log the result."""
        if not self._groups:
            return
        began = time.perf_counter()
        self._compare_updated()
        self._seconds += time.perf_counter() - began
        logger.info(
            "engines agree with the trainer: log-probs differ by %.0e before, %.0e after %s (%.1f s)",
            max(self._before.values()),
            max(self._after.values()),
            "an update of all weights" if self._updated else "they were sent weights",
            self._seconds,
        )

    def _run(self, wg_ids: Sequence[str], fn: Callable[[str], object]) -> None:
        self._team.calls.each(wg_ids, fn)

    def _change(self, wg_id: str) -> None:
        with self._team.calls.hold(wg_id):
            self._team.policies[wg_id].change_weights(tuple(self._team.specs[wg_id].adapters) or (None,))

    def _compare_updated(self) -> None:
        gaps = self._gaps()
        wrong = {wg: gap for wg, gap in gaps.items() if not gap <= self._bounds(wg).after(self._before[wg])}
        if wrong:
            raise ConfigError("; ".join([*(self._is_stale(wg, gap) for wg, gap in wrong.items()), WITHOUT]))
        self._after = {wg: max(gap, self._after.get(wg, 0.0)) for wg, gap in gaps.items()}

    def _policies(self, wg_id: str) -> list[str]:
        return by_group(self._team.learners, self._team.learners)[wg_id]

    def _bounds(self, wg_id: str) -> Bounds:
        device = self._team.controller.device
        bounds = EXACT if device == "cpu" else TENSOR_CORES
        if not in_fp32(self._team.specs[wg_id].config, device):
            bounds = ROUNDED
        return bounds.at(min(self._team.learners[policy].temperature for policy in self._policies(wg_id)))

    def _gap(self, wg_id: str, gap: float) -> str:
        name = self._team.specs[wg_id].config.rollout.name
        return f"worker group '{wg_id}': log-probs of the {name} engine differ from the trainer's by {gap:.2g} on average"

    def _differs(self, wg_id: str, gap: float) -> str:
        spec = self._team.specs[wg_id]
        other = "hf" if spec.config.rollout.name == "vllm" else "vllm"
        return (
            f"{self._gap(wg_id, gap)} before any update, expected at most "
            f"{self._bounds(wg_id).loaded:g}: they compute different models of {spec.model_path}. "
            f"Use actor_rollout_ref.rollout.name={other}, actor_rollout_ref.rollout.dtype=fp32 or "
            "actor_rollout_ref.model.use_remove_padding=false with model.attn_implementation=eager"
        )

    def _is_stale(self, wg_id: str, gap: float) -> str:
        before = self._before[wg_id]
        return (
            f"{self._gap(wg_id, gap)} after an update of all weights ({before:.2g} before it), "
            f"expected at most {self._bounds(wg_id).after(before):.2g}: {self._keeps(wg_id)}"
        )

    def _keeps(self, wg_id: str) -> str:
        spec = self._team.specs[wg_id]
        ways = []
        if spec.config.rollout.name != "hf":
            ways.append("actor_rollout_ref.rollout.name=hf")
        if not spec.adapters:
            ways.append("agent.specialization=lora, which leaves the model itself unchanged")
        return (
            "the engine does not serve what it is sent and keeps older values. "
            f"Use {' or '.join(ways) or 'another release of the package'}"
        )

    def _gaps(self) -> dict[str, float]:
        """Return the largest mean difference of any policy, by worker group; NaN if one gave no
        number.
        """
        sampled = self._team.calls.each(self._groups, self._sample)
        rows = [entry for wg_id in self._groups for entry in sampled[wg_id]]
        gaps: dict[str, list[float]] = {wg_id: [] for wg_id in self._groups}
        for of_base in (False, True):
            entries = [entry for entry in rows if entry.of_base == of_base]
            if not entries:
                continue
            batch = _batch(entries)
            score = self._team.compute_base_log_prob if of_base else self._team.compute_log_prob
            scores = score(batch).batch["ref_log_prob" if of_base else "old_log_probs"]
            mask = batch.batch["response_mask"]
            difference = (scores - batch.batch["rollout_log_probs"]).abs() * mask
            means = (difference.sum(dim=1) / mask.sum(dim=1)).tolist()
            for entry, count in zip(entries, _counts(entries), strict=True):
                mean_differences = [means.pop(0) for _ in range(count)]
                gaps[entry.wg_id].append(math.fsum(mean_differences) / count)
        return {
            wg_id: math.nan if any(map(math.isnan, mean_differences)) else max(mean_differences)
            for wg_id, mean_differences in gaps.items()
        }

    def _sample(self, wg_id: str) -> list[_Rows]:
        """Sample from all engines of a group: from its policies, and from the base of its adapters."""
        with self._team.calls.hold(wg_id):
            vocab_size = self._team.policies[wg_id].vocab_size()[0]
            rows = [self._replies(wg_id, policy, False, vocab_size) for policy in self._policies(wg_id)]
            if self._team.specs[wg_id].adapters:
                rows.append(self._replies(wg_id, rows[0].policy, True, vocab_size))
            return rows

    def _replies(self, wg_id: str, policy: str, of_base: bool, vocab_size: int) -> _Rows:
        learner = self._team.learners[policy]
        engines = self._team.engines
        reply = max(min(REPLY, engines.longest(wg_id) - 1), 1)
        lengths = [min(length, engines.longest(wg_id) - reply) for length in PROMPTS]
        numbers = np.random.default_rng(0)
        prompts = [tuple(numbers.integers(0, vocab_size, length).tolist()) for length in lengths]
        sampling = SamplingParams(max_tokens=reply, temperature=learner.temperature)
        adapter = None if of_base else learner.adapter
        requests = [
            GenerateRequest(prompt, sampling, adapter=adapter, seed=seed, request_id=f"check_engines/{seed}")
            for seed, prompt in enumerate(prompts)
        ]
        try:
            replies = engines.sample(wg_id, requests)
        except EngineGoneError:
            raise
        except RolloutError as error:
            name = self._team.specs[wg_id].config.rollout.name
            why = f"the {name} engine cannot sample from the model"
            # Memory that an update has left as it was may hold no numbers at all.
            if self._updated and wg_id in self._before and not isinstance(error, EngineStuckError):
                why = f"{why} after an update of all weights: {as_raised(error)}; {self._keeps(wg_id)}"
            else:
                why = f"{why}: {as_raised(error)}"
            raise ConfigError(f"{why}; {WITHOUT}") from error
        of_all = [reply for of_engine in replies for reply in of_engine]
        return _Rows(wg_id, policy, of_base, prompts * len(replies), of_all)


def _counts(rows: Sequence[_Rows]) -> list[int]:
    return [len(entry.replies) for entry in rows]


def _batch(rows: Sequence[_Rows]) -> DataProto:
    """Return the replies as rows of a team's batch, with the log-probs of the engines."""
    pairs: list[tuple[Sequence[int], Generation, str]] = []
    for entry in rows:
        pairs += [(*pair, entry.policy) for pair in zip(entry.prompts, entry.replies, strict=True)]
    width = max(len(prompt) for prompt, _, _ in pairs)
    length = max(len(reply.token_ids) for _, reply, _ in pairs)

    def grid(values: Sequence[Sequence[float]], columns: int, left: bool, dtype: torch.dtype) -> torch.Tensor:
        out = torch.zeros(len(values), columns, dtype=dtype)
        for row, row_values in zip(out, values, strict=True):
            first = columns - len(row_values) if left else 0
            row[first : first + len(row_values)] = torch.tensor(row_values, dtype=dtype)
        return out

    prompts = grid([prompt for prompt, _, _ in pairs], width, True, torch.long)
    before = grid([[1] * len(prompt) for prompt, _, _ in pairs], width, True, torch.long)
    responses = grid([reply.token_ids for _, reply, _ in pairs], length, False, torch.long)
    mask = grid([[1] * len(reply.token_ids) for _, reply, _ in pairs], length, False, torch.long)
    log_probs = grid([reply.log_probs for _, reply, _ in pairs], length, False, torch.float32)
    attention = torch.cat([before, mask], dim=1)
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "response_mask": mask,
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention,
        "position_ids": (attention.cumsum(dim=1) - 1).clamp(min=0),
        "rollout_log_probs": log_probs,
    }
    policies = np.array([policy for _, _, policy in pairs], dtype=object)
    return DataProto.from_dict(tensors=tensors, non_tensors={"policy_id": policies})
