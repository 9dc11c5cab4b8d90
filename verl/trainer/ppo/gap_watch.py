"""A warning in the console when a step trains on samples of another policy, whatever the off-policy
correction.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from verl.models.loader import resolve_dtype
from verl.protocol import DataProto
from verl.trainer.config import ActorRolloutRefConfig
from verl.trainer.ppo.core_algos.per_policy import policies
from verl.trainer.ppo.team import TeamWorkers

logger = logging.getLogger(__name__)

LOG_PROBS = "rollout_corr/log_prob_diff_mean"
PROBS = "training/rollout_probs_diff_mean"
CORRELATION = "training/rollout_actor_probs_pearson_corr"
# Steps between two warnings, and the fewest tokens that are judged.
EVERY = 50
TOKENS = 16


def in_fp32(config: ActorRolloutRefConfig, device: str) -> bool:
    """Return whether trainer and engine of a worker group compute in fp32."""
    names = (config.rollout.dtype, config.actor.fsdp_config.dtype, config.actor.fsdp_config.model_dtype)
    return all(resolve_dtype(name, device) == torch.float32 for name in names)


@dataclass(frozen=True)
class Limits:
    """Largest mean differences of log-probs and probabilities, and smallest correlation, for
    current weights.

    The correlation says nothing where all probabilities are nearly equal: it counts only if
    log-probs differ by more than `noise`. Log-probs are divided by temperatures below 1 first, as
    `Bounds.at` does.
    """

    log_probs: float
    probs: float
    noise: float
    correlation: float = 0.9

    def exceeded(self, gap: Mapping[str, float], temperature: float) -> str:
        """Return what is out of bounds, with its figures, or an empty string."""
        factor = 1 / min(temperature, 1.0)
        log_probs = gap[LOG_PROBS]
        correlation = gap.get(CORRELATION, 1.0)
        reasons = []
        if not log_probs <= factor * self.log_probs:
            limit = factor * self.log_probs
            reasons.append(f"log-probs differ by {log_probs:.2g} on average (expected at most {limit:g})")
        if not gap[PROBS] <= self.probs:
            reasons.append(
                f"probabilities differ by {gap[PROBS]:.2g} on average (expected at most {self.probs:g})"
            )
        if log_probs > factor * self.noise and correlation < self.correlation:
            limit = self.correlation
            reasons.append(
                f"the correlation of probabilities is {correlation:.2f} (expected at least {limit:g})"
            )
        return ", ".join(reasons)


FP32 = Limits(0.05, 0.02, 0.01)
ROUNDED = Limits(0.5, 0.05, 0.1)


class GapWatch:
    """Compares engine and trainer on the samples of every step, and warns at most every `EVERY`
    steps.

    Only samples of the current weights count, sampled without a mask: others differ as they should.

    Args:
        team: worker groups.
    """

    def __init__(self, team: TeamWorkers) -> None:
        self._team = team
        self._next = 0

    def look(self, batch: DataProto, step: int, metrics: Mapping[str, float]) -> None:
        """Judge the samples of a step.

        Args:
            batch: `response_mask`, `rollout_log_probs`, and `old_log_probs` if the trainer has
                computed them before its update; columns `policy_id`, `version`, and optionally
                `oldest_version` and `masked`.
            step: its number, from 1; current samples have version `step - 1`.
            metrics: of the step, with those of a gap that the update measured.
        """
        wrong: dict[str, str] = {}
        for policy, rows in policies(batch):
            if why := self._judge(batch, policy, rows, step, metrics):
                wrong[policy] = why
        if not wrong or step < self._next:
            return
        self._next = step + EVERY
        logs = sorted({f"logs/engine-{self._team.learners[policy].wg_id}.log" for policy in wrong})
        logger.warning(
            "step %d trains on samples of other policies: engine and trainer disagree on samples "
            "of the current weights: %s. See %s, trainer.checks, "
            "actor_rollout_ref.rollout.dtype and rollout.name; algorithm.rollout_correction limits "
            "what it does to the updates (said again in %d steps at the earliest)",
            step,
            "; ".join(f"policy '{policy}': {why}" for policy, why in wrong.items()),
            ", ".join(logs),
            EVERY,
        )

    def _judge(
        self, batch: DataProto, policy: str, policy_rows: np.ndarray, step: int, metrics: Mapping[str, float]
    ) -> str:
        columns = batch.non_tensor_batch
        tensors = batch.batch
        mask = tensors["response_mask"].bool()
        rows = policy_rows[mask[policy_rows].any(dim=-1).cpu().numpy()]
        fresh = columns.get("oldest_version", columns["version"])[rows].astype(np.int64) == step - 1
        if "masked" in columns:
            fresh &= ~columns["masked"][rows].astype(bool)
        policy_rows = rows[fresh]
        if mask[policy_rows].sum() < TOKENS:
            return ""
        bypass = self._team.config.algorithm.rollout_correction.bypass_mode
        if "old_log_probs" in set(tensors.keys()) and not bypass:
            # of a step with a pass of old log-probs, which has loaded it
            from verl.trainer.ppo.core_algos.rollout_correction import sampler_gap

            columns_of = (
                tensors["old_log_probs"][policy_rows],
                tensors["rollout_log_probs"][policy_rows],
                mask[policy_rows],
            )
            gap = sampler_gap(*columns_of).metrics()
        elif fresh.all():
            # the update has measured all of its samples, older ones too
            keys = {name: f"wg/{policy}/{name}" for name in (LOG_PROBS, PROBS, CORRELATION)}
            gap = {name: metrics[key] for name, key in keys.items() if key in metrics}
        else:
            gap = {}
        if LOG_PROBS not in gap:
            return ""
        learner = self._team.learners[policy]
        config = self._team.specs[learner.wg_id].config
        limits = FP32 if in_fp32(config, self._team.controller.device) else ROUNDED
        return limits.exceeded(gap, learner.temperature)
