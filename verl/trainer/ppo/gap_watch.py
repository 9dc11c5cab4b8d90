"""A warning in the console when the samples of a step are not of the policy that it trains, whatever the off-policy correction."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from verl.protocol import DataProto
from verl.trainer.ppo.core_algos.rollout_correction import sampler_gap
from verl.trainer.ppo.core_algos.rollout_correction.batch import policies
from verl.trainer.ppo.engine_check import in_fp32
from verl.trainer.ppo.team import TeamWorkers

logger = logging.getLogger(__name__)

LOG_PROBS, PROBS = "rollout_corr/log_prob_diff_mean", "training/rollout_probs_diff_mean"
CORRELATION = "training/rollout_actor_probs_pearson_corr"
# Steps between two warnings, and the fewest tokens that are judged.
EVERY = 50
TOKENS = 16


@dataclass(frozen=True)
class Limits:
    """Largest mean differences of log-probs and of probabilities, and the smallest correlation, of samples of the current weights.

    The correlation says nothing where all probabilities are nearly equal: it counts only if log-probs differ by more than `noise`.
    """

    log_probs: float
    probs: float
    noise: float
    correlation: float = 0.9

    def exceeded(self, gap: Mapping[str, float]) -> str:
        """Return what is out of bounds, with its figures, or an empty string."""
        found = []
        if not gap[LOG_PROBS] <= self.log_probs:
            found.append(f"log-probs differ by {gap[LOG_PROBS]:.2g} on average (expected at most {self.log_probs:g})")
        if not gap[PROBS] <= self.probs:
            found.append(f"probabilities differ by {gap[PROBS]:.2g} on average (expected at most {self.probs:g})")
        if gap[LOG_PROBS] > self.noise and gap.get(CORRELATION, 1.0) < self.correlation:
            found.append(f"the correlation of probabilities is {gap[CORRELATION]:.2f} (expected at least {self.correlation:g})")
        return ", ".join(found)


FP32, ROUNDED = Limits(0.05, 0.02, 0.01), Limits(0.5, 0.05, 0.1)


class GapWatch:
    """Compares engine and trainer on the samples of every step, and warns at most every `EVERY` steps.

    Only samples of the current weights count, sampled without a mask: those of older weights differ as they should.

    Args:
        team: worker groups.
    """

    def __init__(self, team: TeamWorkers) -> None:
        self._team = team
        self._next = 0

    def look(self, batch: DataProto, step: int, metrics: Mapping[str, float]) -> None:
        """Judge the samples of a step.

        Args:
            batch: `response_mask`, `rollout_log_probs`, and `old_log_probs` if the trainer has computed them before its update; columns
                `policy_id`, `version`, and optionally `oldest_version` and `masked`.
            step: its number, from 1; current samples have version `step - 1`.
            metrics: of the step, with those of a gap that the update measured.
        """
        wrong = {policy: why for policy, rows in policies(batch) if (why := self._judge(batch, policy, rows, step, metrics))}
        if not wrong or step < self._next:
            return
        self._next = step + EVERY
        logs = ", ".join(sorted({f"logs/engine-{self._team.learners[policy].wg_id}.log" for policy in wrong}))
        logger.warning(
            "step %d trains on samples of other policies: engine and trainer disagree on samples of the current weights: %s. See %s, "
            "trainer.check_engines, actor_rollout_ref.rollout.dtype and rollout.name; algorithm.rollout_correction limits what it does to "
            "the updates (said again in %d steps at the earliest)",
            step, "; ".join(f"policy '{policy}': {why}" for policy, why in wrong.items()), logs, EVERY,
        )  # fmt: skip

    def _judge(self, batch: DataProto, policy: str, rows: np.ndarray, step: int, metrics: Mapping[str, float]) -> str:
        columns, tensors = batch.non_tensor_batch, batch.batch
        mask = tensors["response_mask"].bool()
        rows = rows[mask[rows].any(dim=-1).cpu().numpy()]
        fresh = columns.get("oldest_version", columns["version"])[rows].astype(np.int64) == step - 1
        if "masked" in columns:
            fresh &= ~columns["masked"][rows].astype(bool)
        if mask[rows[fresh]].sum() < TOKENS:
            return ""
        if "old_log_probs" in set(tensors.keys()) and not self._team.config.algorithm.rollout_correction.bypass_mode:
            own = rows[fresh]
            gap = sampler_gap(tensors["old_log_probs"][own], tensors["rollout_log_probs"][own], mask[own]).metrics()
        else:
            gap = {name: metrics[key] for name in (LOG_PROBS, PROBS, CORRELATION) if (key := f"wg/{policy}/{name}") in metrics}
            if not fresh.all():  # the update measured all rows together
                return ""
        config = self._team.specs[self._team.learners[policy].wg_id].config
        limits = FP32 if in_fp32(config, self._team.controller.device) else ROUNDED
        return limits.exceeded(gap) if LOG_PROBS in gap else ""
