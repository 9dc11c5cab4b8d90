"""What a trainer does with the samples of a step: credit, then updates of the policies and critics."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from verl.protocol import DataProto
from verl.trainer.config import RunConfig
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.credit.step_credit import CreditAssigner
from verl.trainer.ppo.critic import value_metrics
from verl.trainer.ppo.team import TeamWorkers
from verl.trainer.ppo.traces import RECORDED, recorded_steps
from verl.utils.timer import Timer

logger = logging.getLogger(__name__)


class StepTrainer:
    """Scores the samples of steps, and updates policies and critics with them.

    Steps are counted from 1; the weights before the update of a step have the version `step - 1`.

    Args:
        config: configuration of the run.
        plan: plan of the run.
        team: worker groups.

    Attributes:
        on_policy: see `RunPlan`.
        credit: scores samples, and has state between steps.
    """

    def __init__(self, config: RunConfig, plan: RunPlan, team: TeamWorkers) -> None:
        self.config = config
        self.team = team
        self.on_policy = plan.on_policy
        self.credit = CreditAssigner(config, plan, team)
        if config.trainer.log_tokens and plan.trains:
            logger.info(log_tokens_cost(config))

    def draw(self, batch: DataProto) -> None:
        """Mark the rows of a whole step whose tokens are recorded (`trainer.log_tokens`)."""
        if count := self.config.trainer.log_tokens:
            from verl.trainer.ppo.credit.record import draw_rows  # of this key alone

            batch.non_tensor_batch["logged"] = draw_rows(batch, count)

    def score(self, batch: DataProto, step: int, timer: Timer) -> tuple[DataProto, dict[str, float]]:
        """Return the samples of a step with log-probs, token rewards and `advantages`, all
        `[bsz, response_len]`, and metrics.

        Args:
            batch: samples, see docs/architecture.md#the-batch.
            step: that trains on them.
            timer: of the step.
        """
        if steps := recorded_steps(self.config.global_profiler, step):
            batch.meta_info[RECORDED] = steps
        return self.credit.score(batch, timer, step - 1)

    def update(
        self, batch: DataProto, step: int, timer: Timer, updated: Callable[[str], None] | None = None
    ) -> dict[str, float]:
        """Update every critic and, after `trainer.critic_warmup` steps, every policy. Return
        metrics.

        Args:
            batch: result of `score`.
            step: that trains on it.
            timer: of the step.
            updated: as for `TeamWorkers.update_actor`.
        """
        version = step - 1
        warmup = self.config.trainer.critic_warmup
        seed = (self.config.data.seed, step)
        metrics: dict[str, float] = {}
        if self.team.uses_critic:
            rows = self.credit.critic_rows(batch)
            with timer("update_critic"):
                metrics |= self.team.update_critic(rows, version, seed)
        # Until then advantages are those of critics that have learned nothing.
        if version >= warmup:
            with timer("update_actor"):
                metrics |= self.team.update_actor(batch, self.on_policy, version - warmup, seed, updated)
            if "logged" in batch.non_tensor_batch:
                with timer("log_tokens"):
                    self._log_tokens(batch)
        return metrics

    def _log_tokens(self, batch: DataProto) -> None:
        """Set the column `log_prob_after` of the rows that `draw` has marked: one number for each
        token of the response, under the new weights.
        """
        rows = np.flatnonzero(batch.non_tensor_batch["logged"].astype(bool))
        afters = np.full(len(batch), None, dtype=object)
        if len(rows):
            part = batch.select_idxs(rows)
            log_probs = self.team.compute_log_prob(part).batch["old_log_probs"]
            width = part.batch["responses"].shape[1]
            lengths = part.batch["attention_mask"][:, -width:].sum(dim=1).tolist()
            for row, numbers, length in zip(rows, log_probs.tolist(), lengths, strict=True):
                afters[row] = numbers[:length]
        batch.non_tensor_batch["log_prob_after"] = afters

    def value_metrics(self, batch: DataProto) -> dict[str, float]:
        """Return metrics of the critics' values of a whole step, none without critics.

        Args:
            batch: result of `score`, with all rows of the step.
        """
        if not self.team.uses_critic:
            return {}
        return value_metrics(self.credit.critic_rows(batch), self.team.critic_agents)


def log_tokens_cost(config: RunConfig) -> str:
    """Return what `trainer.log_tokens` costs, as a line for the start of a run."""
    count = config.trainer.log_tokens
    episodes = config.data.train_batch_size * config.env.rollout.n
    # a forward pass is about a third of forward and backward
    share = min(count / episodes, 1.0) / 3 / config.actor_rollout_ref.actor.ppo_epochs
    return (
        f"trainer.log_tokens={count}: one more forward pass of {count} rows after each update; a step has at "
        f"least {episodes} rows, so it takes up to {share:.1%} of the time of an update"
    )
