"""verl's roles of workers, the roles that a configuration needs, and the arguments of verl's
trainer.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from verl.single_controller.worker import Worker
from verl.trainer.config import RunConfig
from verl.trainer.ppo.critic import need_critic as need_critic

WorkerType = type[Worker]
"""Class of a worker."""

REPLACEMENTS = {
    "tokenizer": "the collector, which builds prompts (agent_system.rollout)",
    "processor": "the collector, which builds prompts (agent_system.rollout)",
    "role_worker_mapping": "team=TeamWorkers(config, plan, controller), which starts the workers of every agent",
    "resource_pool_manager": "plan=resolve(config), which assigns agents to worker groups",
    "ray_worker_group_cls": "team, whose controller starts the worker groups (trainer.controller=ray|local)",
    "reward_fn": "the environment, whose outcomes contain the reward",
    "val_reward_fn": "the environment, whose outcomes contain the reward",
    "collate_fn": "train_dataset, whose rows the collector reads",
    "train_sampler": "data.shuffle and data.seed",
    "device_name": "trainer.device",
}
"""Replacements for keywords of verl's trainer."""

POSITIONAL = ("tokenizer", "role_worker_mapping", "resource_pool_manager")
"""Arguments of verl's trainer behind the configuration."""


class Role(Enum):
    """Role of a worker; the values are verl's."""

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
        """Return the role whose `str` is `name`. Raises ValueError listing the roles."""
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
    """Return whether the run needs a reference policy: for a KL in the reward or in the loss."""
    return bool(config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss)


def advice_on_arguments(names: Iterable[str]) -> str:
    """Return what to pass to `RayPPOTrainer` instead of arguments of verl's trainer; empty for
    other names.
    """
    theirs = [name for name in REPLACEMENTS if name in names]
    if not theirs:
        return ""
    advice = "; ".join(f"instead of {name}: {REPLACEMENTS[name]}" for name in theirs)
    return (
        "RayPPOTrainer trains a team: RayPPOTrainer(config, plan, team, collector, "
        "train_dataset, val_dataset, tracking, run_dir), as verl.trainer.main_ppo calls it. "
        f"{advice}. See docs/upstream_map.md"
    )
