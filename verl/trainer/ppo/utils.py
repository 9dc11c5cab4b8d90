"""verl's words for who works in a run: roles, and which of them a configuration asks for."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from verl.single_controller.worker import Worker
from verl.trainer.config import RunConfig
from verl.trainer.placement.table import Placement
from verl.trainer.ppo.critic import need_critic as need_critic

WorkerType = type[Worker]
"""A class of workers."""

P = ParamSpec("P")
Self = TypeVar("Self")

INSTEAD_OF = {
    "tokenizer": "the collector, which makes prompts (agent_system.rollout)",
    "processor": "the collector, which makes prompts (agent_system.rollout)",
    "role_worker_mapping": "team=TeamWorkers(config, placement, controller), which starts the workers of every agent",
    "resource_pool_manager": "placement=build_placement(config.agent, config.actor_rollout_ref), which says who works where",
    "ray_worker_group_cls": "team, whose controller starts the worker groups (trainer.controller=ray|local)",
    "reward_fn": "an environment of the agents, whose outcomes are the reward",
    "val_reward_fn": "an environment of the agents, whose outcomes are the reward",
    "collate_fn": "train_dataset, whose rows the collector takes as they are",
    "train_sampler": "data.shuffle and data.seed",
    "device_name": "trainer.device",
}
"""What our trainer takes where verl's takes the keyword."""


class Role(Enum):
    """What a worker does; the values are verl's."""

    Actor = 0
    Rollout = 1
    ActorRollout = 2
    Critic = 3
    RefPolicy = 4
    RewardModel = 5
    ActorRolloutRef = 6
    Env = 7
    TeacherModel = 8

    def __str__(self) -> str:
        return _ROLE_NAMES.get(self.name, self.name.lower())

    @classmethod
    def from_string(cls, name: str) -> Role:
        """Return the role that `str` writes so. Raises ValueError naming the roles there are."""
        for role in cls:
            if str(role) == name.lower():
                return role
        raise ValueError(f"No Role found for string: {name}; the roles are {[str(role) for role in cls]}")


_ROLE_NAMES = {
    "ActorRollout": "actor_rollout",
    "RefPolicy": "ref",
    "RewardModel": "rm",
    "ActorRolloutRef": "actor_rollout_ref",
    "TeacherModel": "teacher",
}


def need_reference_policy(config: RunConfig) -> bool:
    """Whether the run compares with the initial policy: a KL in the reward or in the loss."""
    return bool(config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss)


def refuse_verl_arguments(init: Callable[Concatenate[Self, P], None]) -> Callable[Concatenate[Self, P], None]:
    """Answer a call written for verl's `RayPPOTrainer` with one TypeError that names what to pass instead."""

    @wraps(init)
    def checked(self: Self, *args: P.args, **kwargs: P.kwargs) -> None:
        theirs = [name for name in INSTEAD_OF if name in kwargs]
        positional: tuple[Any, ...] = args
        if not theirs and len(positional) > 1 and not isinstance(positional[1], Placement):
            theirs = ["tokenizer", "role_worker_mapping", "resource_pool_manager"]
        if theirs:
            advice = "; ".join(f"instead of {name}: {INSTEAD_OF[name]}" for name in theirs)
            raise TypeError(
                "RayPPOTrainer trains a team: RayPPOTrainer(config, placement, team, collector, train_dataset, val_dataset, tracking, "
                f"run_dir), as verl.trainer.main_ppo calls it. {advice}. See docs/upstream_map.md"
            )
        init(self, *args, **kwargs)

    return checked
