"""`algorithm.per_agent`: own values of single agents for keys of `algorithm`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from verl.trainer.config import AlgorithmConfig
from verl.trainer.config.algorithm import EstimatorConfig
from verl.trainer.config.spec import with_values
from verl.trainer.placement.table import slug
from verl.trainer.ppo.registry import ESTIMATORS, estimator_takes
from verl.utils.names import own_key

# Keys of the advantage. The other keys of `algorithm` (KL in the reward, filters, corrections) are common to
# the team.
COMMON_KEYS = (
    "adv_estimator",
    "call_weighting",
    "group_by",
    "group_by_agent_id",
    "singleton",
    "statistics_over",
)
PER_AGENT_KEYS = sorted(
    {*COMMON_KEYS, *(key for name in ESTIMATORS.names() for key in ESTIMATORS.traits(name).reads or ())}
)


def own_keys(config: AlgorithmConfig, agent_id: str) -> dict[str, Any]:
    """Return the keys of one agent in `algorithm.per_agent`, under its name or its slug; {} if there are
    none.
    """
    return dict(config.per_agent.get(agent_id) or config.per_agent.get(slug(agent_id)) or {})


def agent_config(config: AlgorithmConfig, agent_id: str) -> AlgorithmConfig:
    """Return the settings of one agent: those of the run, overridden by its own. Raises ConfigError for an
    invalid key or value.
    """
    own = own_keys(config, agent_id)
    where = f"algorithm.per_agent.{slug(agent_id)}"
    return with_values(replace(config, per_agent={}), own, where, PER_AGENT_KEYS)


def split_by_settings(
    config: AlgorithmConfig, agent_ids: np.ndarray
) -> list[tuple[AlgorithmConfig, np.ndarray]]:
    """Split rows by the settings of their agents, and return (settings, row indices) of each part.

    Args:
        config: settings of the run.
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
    return [
        (settings, np.flatnonzero(np.logical_or.reduce([agent_ids == a for a in agents])))
        for settings, agents in parts
    ]


def estimators_in_use(config: AlgorithmConfig, agent_ids: Sequence[str]) -> set[str]:
    """Return the names of the estimators that the agents use."""
    return {str(agent_config(config, agent_id).adv_estimator) for agent_id in agent_ids}


def group_fields(config: EstimatorConfig) -> list[str]:
    """Return the sample fields that define a group: `algorithm.group_by`, else Dr. MAS's `[uid, agent_id]` or
    GRPO's `[uid]`.

    Also `[uid]` without a config, or with one of verl's, which has neither key.
    """
    group_by = own_key(config, "group_by", None)
    if group_by is not None:
        return list(group_by)
    return ["uid", "agent_id"] if own_key(config, "group_by_agent_id", False) else ["uid"]


def averages_trajectories(settings: Any, estimator: str) -> bool:
    """Return whether the rows of a trajectory are averaged first: with `auto`, for groups by `uid` alone and
    without groups (rae).

    Without a config, or with one of verl's, rows are not averaged.
    """
    statistics_over = own_key(settings, "statistics_over", "samples")
    if statistics_over != "auto":
        return bool(statistics_over == "trajectories")
    return group_fields(settings) == ["uid"] or not estimator_takes(estimator, "index")
