"""Trained models of a team, as the controller calls them: every policy and every critic, each on
its own rows of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from verl.trainer.config import ActorConfig, AsyncTrainingConfig, CriticConfig, DataConfig
from verl.trainer.config.spec import with_values
from verl.trainer.plan.agents import AgentPlan

PER_POLICY_KEYS = ("max_off_policy_threshold", "staleness_threshold", "trigger_parameter_sync_step")


@dataclass(frozen=True)
class Learner:
    """One policy, or one critic.

    Attributes:
        wg_id: its worker group.
        adapter: name of the policy's adapter; None for a whole model.
        temperature: temperature of its sampler.
        longest_reply: maximum reply length of its agents, in tokens.
        mini_batches: number of mini-batches per epoch.
        updates: optimizer steps per training step: mini-batches times epochs.
    """

    wg_id: str
    adapter: str | None
    temperature: float
    longest_reply: int
    mini_batches: int
    updates: int


@dataclass(frozen=True)
class Pace:
    """How far the samples of a policy may be behind it.

    Attributes:
        staleness: `async_training.staleness_threshold`.
        trigger: `async_training.trigger_parameter_sync_step`.
        bound: `async_training.max_off_policy_threshold`.
        adapter: it is an adapter, which is small: its weights are sent after every step.
    """

    staleness: float = 0.0
    trigger: int = 1
    bound: int = 0
    adapter: bool = False

    @property
    def least_bound(self) -> int:
        """The lowest bound with which no group misses its deadline, see `group_queue`."""
        return math.ceil((1 + self.staleness) * self.trigger) - 1

    @property
    def most_lead(self) -> int:
        """Steps for which groups may be dispatched beyond the one that this policy trains, if steps
        train on whole batches.
        """
        return min(math.floor((1 + self.staleness) * self.trigger) - 1, self.bound)

    def sends(self, way: str, step: int, version: int, ahead: bool) -> bool:
        """Return whether the engines get the weights of a step.

        Args:
            way: `async_training.parameter_sync`.
            step: the step whose update has ended.
            version: step of the weights that the engines have.
            ahead: the next batch is complete, so no step waits for the engines while they load
                weights.
        """
        if way == "eager" or self.adapter:
            return True
        return ahead or step - version >= self.trigger if way == "adaptive" else step % self.trigger == 0


def pace_of(settings: AsyncTrainingConfig, policy: str, is_adapter: bool = False) -> Pace:
    """Return the pace of a policy: that of the run, overridden by its own keys. Raises ConfigError
    for an invalid key or value.
    """
    overrides = settings.per_policy.get(policy) or {}
    where = f"async_training.per_policy.{policy}"
    values = with_values(replace(settings, per_policy={}), overrides, where, PER_POLICY_KEYS)
    return Pace(
        values.staleness_threshold,
        values.trigger_parameter_sync_step,
        values.max_off_policy_threshold,
        is_adapter,
    )


@dataclass(frozen=True)
class PolicyPlan(Learner):
    """A trained policy.

    Attributes:
        reference: whether a KL divergence, in the reward or in the loss, compares it with a
            reference.
        pace: how far its samples may be behind it.
    """

    reference: bool = field(kw_only=True)
    pace: Pace = field(kw_only=True)


def plan_policies(
    data: DataConfig, async_training: AsyncTrainingConfig, kl_in_reward: bool, trained: Sequence[AgentPlan]
) -> dict[str, PolicyPlan]:
    """Return the trained policies by `policy_id`, in the order of the `trained` agents. Raises
    ConfigError as `pace_of` does.
    """
    members = {row.policy_id: [a for a in trained if a.policy_id == row.policy_id] for row in trained}
    return {
        policy: PolicyPlan(
            **vars(_learner(data, agents)),
            reference=kl_in_reward or agents[0].config.actor.use_kl_loss,
            pace=pace_of(async_training, policy, agents[0].adapter is not None),
        )
        for policy, agents in members.items()
    }


def group_learners(
    data: DataConfig, critic: CriticConfig, trained: Sequence[AgentPlan]
) -> dict[str, Learner]:
    """Return the learners that use the rows of all `trained` agents of a worker group, as critics
    do, by `wg_id`.
    """
    members = {row.wg_id: [a for a in trained if a.wg_id == row.wg_id] for row in trained}
    return {wg_id: _learner(data, agents, critic) for wg_id, agents in members.items()}


def _learner(data: DataConfig, agents: Sequence[AgentPlan], critic: CriticConfig | None = None) -> Learner:
    """Return the learner of a policy's agents, or with `critic` that of the critic of a worker
    group.
    """
    first = agents[0]
    trained = first.config.actor if critic is None else critic
    cuts = num_mini_batches(data, trained)
    return Learner(
        first.wg_id,
        first.adapter if critic is None else None,
        first.sampling.temperature,
        max(agent.sampling.max_tokens for agent in agents),
        cuts,
        cuts * trained.ppo_epochs,
    )


def num_mini_batches(data: DataConfig, trained: ActorConfig | CriticConfig) -> int:
    """Return the number of mini-batches per epoch, as given or for mini-batches of
    `ppo_mini_batch_size` tasks (0: all).
    """
    if trained.ppo_mini_update_num is not None:
        return trained.ppo_mini_update_num
    tasks = trained.ppo_mini_batch_size
    return max(data.train_batch_size // tasks, 1) if tasks > 0 else 1


def by_group(learners: Mapping[str, Learner], present: Collection[str]) -> dict[str, list[str]]:
    """Return the learners among `present` of every worker group that has one."""
    names_by_group: dict[str, list[str]] = {}
    for name, learner in learners.items():
        if name in present:
            names_by_group.setdefault(learner.wg_id, []).append(name)
    return names_by_group
