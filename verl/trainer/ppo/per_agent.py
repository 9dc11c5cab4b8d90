"""`algorithm.per_agent`: keys of `algorithm` that one agent has for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from verl.trainer.config import AlgorithmConfig
from verl.trainer.config.spec import with_values
from verl.trainer.placement.table import slug
from verl.trainer.ppo.registry import ESTIMATORS, estimator_takes
from verl.utils.names import own_key

# What an advantage is computed from. The other keys of `algorithm` (KL in the reward, filters, corrections) hold for the whole team.
OF_ALL = ("adv_estimator", "call_weighting", "group_by", "group_by_agent_id", "singleton", "statistics_over")
PER_AGENT_KEYS = sorted({*OF_ALL, *(key for name in ESTIMATORS.names() for key in ESTIMATORS.traits(name).reads or ())})


def own_keys(config: AlgorithmConfig, agent_id: str) -> dict[str, Any]:
    """What `algorithm.per_agent` gives one agent, under its name or its slug; {} when nothing."""
    return dict(config.per_agent.get(agent_id) or config.per_agent.get(slug(agent_id)) or {})


def agent_config(config: AlgorithmConfig, agent_id: str) -> AlgorithmConfig:
    """The settings of one agent: those of the run with its own put over them. Raises ConfigError for a key or value that cannot be."""
    own, where = own_keys(config, agent_id), f"algorithm.per_agent.{slug(agent_id)}"
    return with_values(replace(config, per_agent={}), own, where, PER_AGENT_KEYS)


def split_by_settings(config: AlgorithmConfig, agent_ids: np.ndarray) -> list[tuple[AlgorithmConfig, np.ndarray]]:
    """Rows whose agents have equal settings belong together: (settings, row numbers) of each part.

    Args:
        config: the run's.
        agent_ids: `[bsz]` agent of each row.
    """
    parts: list[tuple[AlgorithmConfig, list[str]]] = []
    for agent_id in dict.fromkeys(agent_ids):
        settings = agent_config(config, agent_id)
        same = next((agents for other, agents in parts if other == settings), None)
        if same is None:
            parts.append((settings, [agent_id]))
        else:
            same.append(agent_id)
    return [(settings, np.flatnonzero(np.logical_or.reduce([agent_ids == a for a in agents]))) for settings, agents in parts]


def estimators_in_use(config: AlgorithmConfig, agent_ids: Sequence[str]) -> set[str]:
    """Names of the estimators that a team's agents use, for those who must know whether values or baselines are needed."""
    return {str(agent_config(config, agent_id).adv_estimator) for agent_id in agent_ids}


def group_fields(config: Any) -> list[str]:
    """Sample fields whose tuple is the group: `algorithm.group_by`, else Dr. MAS's `[uid, agent_id]` or GRPO's `[uid]`.

    `[uid]` as well without a config, or with one of verl's, which has neither key.
    """
    group_by = own_key(config, "group_by", None)
    if group_by is not None:
        return list(group_by)
    return ["uid", "agent_id"] if own_key(config, "group_by_agent_id", False) else ["uid"]


def averages_trajectories(settings: Any, estimator: str) -> bool:
    """Whether the rows of a trajectory are averaged first: `auto` does so by `uid` alone, and where there is no group at all (rae).

    Without a config, or with one of verl's, every row is on its own.
    """
    statistics_over = own_key(settings, "statistics_over", "samples")
    if statistics_over != "auto":
        return bool(statistics_over == "trajectories")
    return group_fields(settings) == ["uid"] or not estimator_takes(estimator, "index")
