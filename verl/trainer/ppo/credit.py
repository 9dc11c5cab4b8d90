"""What a fresh batch needs before it can be learnt from: log-probs, token rewards and advantages of the whole team."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from verl.protocol import DataProto
from verl.trainer.config import RunConfig
from verl.trainer.ppo.advantage import compute_advantage
from verl.trainer.ppo.core_algos import get_kl_controller
from verl.trainer.ppo.reward import apply_kl_penalty, invalid_action_penalty, place_on_last_token
from verl.trainer.ppo.team import TeamWorkers
from verl.utils.timer import Timer


class CreditAssigner:
    """Scores a batch and remembers what credit carries from step to step.

    Args:
        config: the run's configuration.
        team: the worker groups that score rows.
        penalties: invalid-action penalty of each agent.
        on_policy: one update a step on fresh samples: the old log-probs are the current ones and need no pass of their own.
    """

    def __init__(self, config: RunConfig, team: TeamWorkers, penalties: Mapping[str, float], on_policy: bool) -> None:
        self.config, self.team, self.penalties, self.on_policy = config, team, penalties, on_policy
        self.kl_ctrl = get_kl_controller(config.algorithm.kl_ctrl)
        self.estimator_state: dict[str, Any] = {}
        self.batches = 0

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to keep, in JSON types."""
        return {"kl_coef": self.kl_ctrl.value, "estimators": copy.deepcopy(self.estimator_state), "batches": self.batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`."""
        self.kl_ctrl.value = state["kl_coef"]
        self.estimator_state = copy.deepcopy(dict(state["estimators"]))
        self.batches = int(state["batches"])

    def score(self, batch: DataProto, timer: Timer) -> tuple[DataProto, dict[str, float]]:
        """Add log-probs, token rewards, `advantages` and `returns`: (the batch, metrics)."""
        metrics: dict[str, float] = {}
        batch = self._log_probs(batch, timer, metrics)
        with timer("adv"):
            self._token_rewards(batch, metrics)
            batch = self._advantages(batch)
        return batch, metrics

    def _log_probs(self, batch: DataProto, timer: Timer, metrics: dict[str, float]) -> DataProto:
        if not self.on_policy or self.config.algorithm.use_kl_in_reward:
            with timer("old_log_prob"):
                batch = batch.union(self.team.compute_log_prob(batch))
            metrics |= _sampler_gap(batch)
        if self.team.uses_reference:
            with timer("ref"):
                batch = batch.union(self.team.compute_ref_log_prob(batch))
        return batch

    def _token_rewards(self, batch: DataProto, metrics: dict[str, float]) -> None:
        algorithm = self.config.algorithm
        rewards = batch.non_tensor_batch["reward"].astype(float) - invalid_action_penalty(batch, self.penalties)
        batch.batch["token_level_scores"] = place_on_last_token(rewards, batch.batch["response_mask"])
        batch.batch["token_level_rewards"] = batch.batch["token_level_scores"]
        if algorithm.use_kl_in_reward:
            _, kl_metrics = apply_kl_penalty(batch, self.kl_ctrl, algorithm.kl_penalty)
            metrics |= kl_metrics

    def _advantages(self, batch: DataProto) -> DataProto:
        algorithm = self.config.algorithm
        self.batches += 1
        return compute_advantage(
            batch,
            algorithm.adv_estimator,
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            num_repeat=self.config.env.rollout.n,
            norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
            config=algorithm,
            state=self.estimator_state,
            seed=self.config.data.seed * 1_000_003 + self.batches,
        )


def _sampler_gap(batch: DataProto) -> dict[str, float]:
    """How far the trainer's log-probs are from the sampler's: mean and maximum over unmasked tokens."""
    mask = batch.batch["response_mask"].bool()
    gap = (batch.batch["old_log_probs"] - batch.batch["rollout_log_probs"]).abs()[mask]
    return {"training/rollout_probs_diff_mean": gap.mean().item(), "training/rollout_probs_diff_max": gap.max().item()}
