"""What learns in a team, as the controller calls it: every policy and every critic, each on its own rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from verl.trainer.config import RunConfig
from verl.trainer.placement.table import AgentPlacement, Placement

T = TypeVar("T")


@dataclass(frozen=True)
class Learner:
    """One policy, or one critic.

    Attributes:
        wg_id: the worker group that holds it.
        adapter: of a policy that is an adapter on the group's model; None for a whole model.
        temperature: of its sampler.
        longest_reply: most tokens that a reply of any of its agents may have.
        mini_batches: that its rows of a step are cut into.
        updates: optimizer steps in one training step: mini-batches times epochs.
    """

    wg_id: str
    adapter: str | None
    temperature: float
    longest_reply: int
    mini_batches: int
    updates: int


def policy_learners(config: RunConfig, placement: Placement) -> dict[str, Learner]:
    """By `policy_id`, in the order of the table; frozen agents have none."""
    return {policy: _learner(config, [a for a in placement.trained if a.policy_id == policy]) for policy in placement.policy_ids}


def group_learners(config: RunConfig, placement: Placement) -> dict[str, Learner]:
    """By `wg_id`: what learns from the rows of all agents of a group, as critics do."""
    groups = {spec.wg_id: [a for a in placement.trained if a.wg_id == spec.wg_id] for spec in placement.groups if spec.trained}
    return {wg: _learner(config, agents, whole=True) for wg, agents in groups.items()}


def _learner(config: RunConfig, agents: Sequence[AgentPlacement], whole: bool = False) -> Learner:
    first = agents[0]
    longest = max(a.config.rollout.response_length or config.data.max_response_length for a in agents)
    trained = config.critic if whole else first.config.actor
    cuts = num_mini_batches(config, trained.ppo_mini_batch_size)
    return Learner(
        first.wg_id, None if whole else first.adapter, first.config.rollout.temperature, longest, cuts, cuts * trained.ppo_epochs
    )


def num_mini_batches(config: RunConfig, tasks: int) -> int:
    """Mini-batches of `tasks` tasks (0: all) that the rows of a step are cut into."""
    return max(config.data.train_batch_size // tasks, 1) if tasks > 0 else 1


def is_on_policy(learners: Mapping[str, Learner]) -> bool:
    """One update a step on fresh samples, of every policy: the old log-probs are the current ones and need no pass of their own."""
    return all(learner.updates == 1 for learner in learners.values())


def in_turn(learners: Mapping[str, Learner], present: Sequence[str], fn: Callable[[str], T]) -> dict[str, Callable[[], dict[str, T]]]:
    """For each worker group, what calls `fn` for its learners among `present`, one after the other in the order of the table."""
    wanted: dict[str, list[str]] = {}
    for name, learner in learners.items():
        if name in present:
            wanted.setdefault(learner.wg_id, []).append(name)
    return {wg: partial(_call_all, fn, own) for wg, own in wanted.items()}


def _call_all(fn: Callable[[str], T], names: Sequence[str]) -> dict[str, T]:
    return {name: fn(name) for name in names}
