"""Credit assignment of one step: log-probs, off-policy correction, token rewards and advantages of
the whole team.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from verl.protocol import DataProto
from verl.trainer.config import RunConfig
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.core_algos.per_policy import staleness_metrics
from verl.trainer.ppo.credit.adaptive_theta import AdaptiveTheta
from verl.trainer.ppo.credit.advantage import compute_advantage
from verl.trainer.ppo.credit.kl_in_reward import KLInReward
from verl.trainer.ppo.credit.passes import needs_old_log_probs
from verl.trainer.ppo.reward import place_on_last_token
from verl.trainer.ppo.team import TeamWorkers
from verl.utils.timer import Timer


class CreditAssigner:
    """Scores batches, and keeps the state of credit assignment between steps.

    Args:
        config: configuration of the run.
        plan: plan of the run.
        team: worker groups that compute log-probs and values.
    """

    def __init__(self, config: RunConfig, plan: RunPlan, team: TeamWorkers) -> None:
        self.config = config
        self.team = team
        self.plan = plan
        self.kl_in_reward = KLInReward(config.algorithm)
        self.theta = AdaptiveTheta(config.reward.propagation)
        self.estimator_state: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, in JSON types."""
        estimators = copy.deepcopy(self.estimator_state)
        return {
            "kl_coef": self.kl_in_reward.state_dict(),
            "estimators": estimators,
            "theta": self.theta.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self.kl_in_reward.load_state_dict(state["kl_coef"])
        self.estimator_state = copy.deepcopy(dict(state["estimators"]))
        self.theta.load_state_dict(state.get("theta", {}))

    @property
    def needs_old(self) -> bool:
        """See `needs_old_log_probs`."""
        return needs_old_log_probs(self.config.algorithm, self.config.gateway, self.plan)

    def score(self, batch: DataProto, timer: Timer, version: int) -> tuple[DataProto, dict[str, float]]:
        """Add log-probs, the off-policy correction, token rewards, `advantages` and `returns`.
        Return (batch, metrics).

        Args:
            batch: fresh samples.
            timer: timer of the step.
            version: version of the current weights.
        """
        metrics = staleness_metrics(batch, version)
        batch = self._log_probs(batch, timer, metrics, warmup=version < self.config.trainer.critic_warmup)
        with timer("adv"):
            replies = batch.batch["response_mask"]
            correction = self.config.algorithm.rollout_correction
            if correction.corrects_batch:
                # of algorithm.rollout_correction alone
                from verl.trainer.ppo.core_algos.rollout_correction import (
                    apply_m2po_mask,
                    compute_rollout_correction_and_add_to_batch,
                )

                batch, corrected = compute_rollout_correction_and_add_to_batch(batch, correction)
                metrics |= corrected
                batch.batch["reply_mask"] = replies
            self._token_rewards(batch, replies, metrics)
            batch = self._advantages(batch, version)
            if correction.corrects_batch and correction.m2po_tau is not None:
                batch.batch["credit_mask"] = batch.batch["response_mask"]
                metrics |= apply_m2po_mask(batch, correction.m2po_tau)
        return batch, metrics

    def estimate(self, batch: DataProto, version: int) -> DataProto:
        """Add token rewards, `advantages` and `returns` to a batch whose log-probs nobody computes:
        as `score` does, without values, the correction and the KL in the reward, which need them.

        Raises ValueError for an estimator that needs what the batch lacks.
        """
        self._token_rewards(batch, batch.batch["response_mask"], {})
        return self._advantages(batch, version)

    def _log_probs(
        self, batch: DataProto, timer: Timer, metrics: dict[str, float], warmup: bool
    ) -> DataProto:
        """Add log-probs and values; during the critic warm-up, without policy updates, the pass
        measures the gap to the sampler.
        """
        correction = self.config.algorithm.rollout_correction
        if self.needs_old or warmup:
            with timer("old_log_prob"):
                batch = batch.union(self.team.compute_log_prob(batch, self.plan.needs_sum_pi_squared))
            # of a pass of old log-probs alone; without one the workers measure the gap
            from verl.trainer.ppo.core_algos.rollout_correction import mask_metrics, sampler_gap_metrics

            metrics |= sampler_gap_metrics(batch, correction.rollout_is_threshold)
            metrics |= mask_metrics(batch) if self.config.gateway.structured == "mask" else {}
        if correction.bypass_mode:
            # of bypass_mode=true alone
            from verl.trainer.ppo.core_algos.rollout_correction import apply_bypass_mode

            apply_bypass_mode(batch, correction)
        if self.team.uses_reference:
            with timer("ref"):
                batch = batch.union(self.team.compute_ref_log_prob(batch))
        if self.team.uses_critic:
            with timer("values"):
                rows = self.critic_rows(batch)
                values = self.team.compute_values(rows).batch["values"]
                if rows is not batch:
                    # candidates of a tree with committed returns
                    from verl.trainer.ppo.credit.candidates import committed_rows, with_other_candidates

                    values = with_other_candidates(values, committed_rows(batch))
                batch.batch["values"] = values
        return batch

    def _token_rewards(self, batch: DataProto, replies: torch.Tensor, metrics: dict[str, float]) -> None:
        """Place rewards on the last unmasked token of each reply; for completely rejected replies,
        on the last token before rejection.

        Rewards of unmasked tokens (`token_rewards`) stay where they are; the last token gets the
        rest, so that the sum is the reward.
        """
        algorithm = self.config.algorithm
        mask = batch.batch["response_mask"]
        rewards = batch.non_tensor_batch["reward"].astype(float)
        on_tokens = (
            batch.batch["token_rewards"] * mask if "token_rewards" in set(batch.batch.keys()) else None
        )
        if on_tokens is not None:
            rewards = rewards - on_tokens.sum(dim=1).cpu().numpy()
        scores = place_on_last_token(rewards, torch.where(mask.any(dim=1, keepdim=True), mask, replies))
        batch.batch["token_level_scores"] = scores if on_tokens is None else (scores + on_tokens).float()
        batch.batch["token_level_rewards"] = batch.batch["token_level_scores"]
        if algorithm.use_kl_in_reward:
            metrics |= self.kl_in_reward.apply(batch)

    def critic_rows(self, batch: DataProto) -> DataProto:
        """Return the rows whose values and returns are read: without the candidates of a tree that
        have no return.
        """
        if not self.plan.committed:
            return batch
        # of a tree with committed returns
        from verl.trainer.ppo.credit.candidates import committed_rows

        return batch.select_idxs(committed_rows(batch))

    def _advantages(self, batch: DataProto, version: int) -> DataProto:
        algorithm = self.config.algorithm
        averages = dict(self.estimator_state.get("rae", {}))
        estimate = partial(
            compute_advantage,
            adv_estimator=algorithm.adv_estimator,
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            num_repeat=self.config.env.rollout.n,
            norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
            config=algorithm,
            state=self.estimator_state,
            seed=self.config.data.seed * 1_000_003 + version,
        )
        if self.plan.committed:
            # candidates of a tree with committed returns
            from verl.trainer.ppo.credit.candidates import compute_committed_advantage

            batch = compute_committed_advantage(
                batch, estimate, algorithm, self.config.rollout.tree.candidate_weight
            )
        else:
            batch = estimate(batch)
        if any(agent.estimator == "rae" for agent in self.plan.trained):
            from verl.trainer.ppo.credit.record import moving_averages  # a record of rae alone

            batch.batch["moving_average"] = moving_averages(
                batch, algorithm, averages, self.estimator_state.get("rae", {})
            )
        return batch
