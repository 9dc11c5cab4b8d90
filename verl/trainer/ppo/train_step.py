"""What a trainer does with the samples of a step: credit, then updates of the policies and critics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from verl.protocol import DataProto
from verl.trainer.config import RunConfig
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.credit.step_credit import CreditAssigner
from verl.trainer.ppo.critic import value_metrics
from verl.trainer.ppo.team import TeamWorkers
from verl.utils.timer import Timer

if TYPE_CHECKING:
    from verl.trainer.ppo.credit.token_log import TokenLog


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
        self._tokens: TokenLog | None = None
        if config.trainer.log_tokens and plan.trains:
            from verl.trainer.ppo.credit.token_log import TokenLog  # of this key alone

            episodes = config.data.train_batch_size * config.env.rollout.n
            epochs = config.actor_rollout_ref.actor.ppo_epochs
            self._tokens = TokenLog(config.trainer.log_tokens, team, episodes, epochs)

    def draw(self, batch: DataProto) -> None:
        """Mark the rows of a whole step whose tokens are recorded (`trainer.log_tokens`)."""
        if self._tokens is not None:
            self._tokens.draw(batch)

    def score(self, batch: DataProto, step: int, timer: Timer) -> tuple[DataProto, dict[str, float]]:
        """Return the samples of a step with log-probs, token rewards and `advantages`, all
        `[bsz, response_len]`, and metrics.

        Args:
            batch: samples, see docs/architecture.md#the-batch.
            step: that trains on them.
            timer: of the step.
        """
        if self.config.global_profiler.steps:
            from verl.trainer.ppo.traces import RECORDED, recorded_steps  # of this key alone

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
            if self._tokens is not None:
                with timer("log_tokens"):
                    self._tokens.add(batch)
        return metrics

    def value_metrics(self, batch: DataProto) -> dict[str, float]:
        """Return metrics of the critics' values of a whole step, none without critics.

        Args:
            batch: result of `score`, with all rows of the step.
        """
        if not self.team.uses_critic:
            return {}
        return value_metrics(self.credit.critic_rows(batch), self.team.critic_agents)
