"""Trained models of a team, as the controller calls them: every policy and every critic, each on
its own rows of a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from verl.trainer.config import ActorConfig, AsyncTrainingConfig, CriticConfig, DataConfig
from verl.trainer.plan.placement import AgentPlacement, Placement


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


def policy_learners(data: DataConfig, placement: Placement) -> dict[str, Learner]:
    """Return the trained policies by `policy_id`, in the order of the placement."""
    return {
        policy: _learner(data, [a for a in placement.trained if a.policy_id == policy])
        for policy in placement.policy_ids
    }


def group_learners(data: DataConfig, critic: CriticConfig, placement: Placement) -> dict[str, Learner]:
    """Return the learners that use the rows of all agents of a worker group, as critics do, by
    `wg_id`.
    """
    groups = {
        spec.wg_id: [a for a in placement.trained if a.wg_id == spec.wg_id]
        for spec in placement.groups
        if spec.trained
    }
    return {wg: _learner(data, agents, critic) for wg, agents in groups.items()}


def _learner(
    data: DataConfig, agents: Sequence[AgentPlacement], critic: CriticConfig | None = None
) -> Learner:
    """Return the learner of a policy's agents, or with `critic` that of the critic of a worker
    group.
    """
    first = agents[0]
    longest = max(a.config.rollout.response_length or data.max_response_length for a in agents)
    trained = first.config.actor if critic is None else critic
    cuts = num_mini_batches(data, trained)
    return Learner(
        first.wg_id,
        first.adapter if critic is None else None,
        first.config.rollout.temperature,
        longest,
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


def is_on_policy(async_training: AsyncTrainingConfig, learners: Mapping[str, Learner]) -> bool:
    """Return whether every policy has one update per step on samples of its current weights: these
    are then the old log-probs' too.
    """
    return async_training.fresh and all(learner.updates == 1 for learner in learners.values())


def by_group(learners: Mapping[str, Learner], present: Collection[str]) -> dict[str, list[str]]:
    """Return the learners among `present` of every worker group that has one."""
    names_by_group: dict[str, list[str]] = {}
    for name, learner in learners.items():
        if name in present:
            names_by_group.setdefault(learner.wg_id, []).append(name)
    return names_by_group
