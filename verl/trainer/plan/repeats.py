"""Checks of `rollout.repeat_calls`."""

from __future__ import annotations

from verl.trainer.config.algorithm import REWARD_FIELDS
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.run import RunPlan
from verl.utils.names import slug


def check_repeats(mode: str, n: int, plan: RunPlan) -> None:
    """Raise ConfigError for a number of episodes that does not divide a group, and for settings
    under which a shared reply would not have the mean reward of its episodes.

    Args:
        mode: `async_training.mode`.
        n: `env.rollout.n`, the episodes of a group.
        plan: of the run.
    """
    if mode != "sync":
        raise ConfigError(
            f"rollout.repeat_calls needs async_training.mode=sync, not {mode}: a reply is shared by "
            "episodes that have the same weights"
        )
    for agent_id, count in plan.repeats.items():
        key = f"rollout.repeat_calls.{slug(agent_id)}={count}"
        if n % count:
            raise ConfigError(f"{key} does not divide env.rollout.n={n}, the episodes of a group")
        if agent_id in [agent.agent_id for agent in plan.api]:
            raise ConfigError(f"{key}: the agent is behind an API, whose replies are not shared")
        if agent_id not in [agent.agent_id for agent in plan.trained]:
            continue
        agent = plan.agent(agent_id)
        if agent.averages_trajectories:
            raise ConfigError(
                f"{key}: a reply has the mean reward of {count} episodes, but algorithm.statistics_over="
                f"{agent.algorithm.statistics_over} with groups by {agent.group_fields} gives it the "
                "advantage of one of them; add agent_id to algorithm.group_by, or set "
                "algorithm.statistics_over=samples"
            )
        terms = agent.algorithm.gdpo_reward_keys if agent.estimator == "gdpo" else None
        for name in terms or ():
            if name not in REWARD_FIELDS:
                raise ConfigError(
                    f"{key}: algorithm.gdpo_reward_keys names {name!r}, a term of one episode, of which "
                    "a shared reply has no mean; use fields of rewards, such as team_reward"
                )
