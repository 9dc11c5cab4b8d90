"""Agents of a run: what each is trained with, by the keys of `algorithm` and its own values of them
(`algorithm.per_agent`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from verl.trainer.config import AlgorithmConfig
from verl.trainer.config.algorithm import EstimatorConfig
from verl.trainer.config.spec import with_values
from verl.trainer.plan.placement import AgentPlacement, slug
from verl.trainer.plan.registry import (
    ESTIMATORS,
    EstimatorTraits,
    estimator_needs,
    estimator_takes,
    plain_name,
)
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


@dataclass(frozen=True)
class AgentPlan(AgentPlacement):
    """What a run does with one agent that has a policy: its row of the placement, and how its samples are
    compared.

    What depends on the estimator is read from the registry when it is asked for: plug-ins may register
    estimators after a command line is read.

    Attributes:
        algorithm: keys under `algorithm` with the agent's own values; `per_agent` is empty.
        candidates: replies per call in tree sampling; None if `rollout.tree.k_per_agent` does not name the
            agent.
    """

    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    candidates: int | None = None

    @property
    def estimator(self) -> str:
        """Name of the advantage estimator."""
        return plain_name(self.algorithm.adv_estimator)

    @property
    def traits(self) -> EstimatorTraits:
        """Traits of the estimator. Raises ValueError for an unknown one."""
        return ESTIMATORS.traits(self.estimator)

    @cached_property
    def group_fields(self) -> list[str]:
        """Sample fields that define a group."""
        return group_fields(self.algorithm)

    @cached_property
    def averages_trajectories(self) -> bool:
        """Whether the rows of a trajectory are averaged before the estimator compares them."""
        return averages_trajectories(self.algorithm, self.estimator) and self.takes("traj_index")

    @property
    def needs_values(self) -> bool:
        """Whether the estimator needs a critic."""
        return self.needs("values")

    @property
    def reads_values(self) -> bool:
        """Whether the estimator uses a critic if there is one."""
        return self.takes("values") or self.takes("batch")

    @property
    def compares_groups(self) -> bool:
        """Whether the advantage of a sample that is alone in its group is 0."""
        return self.takes("index") and self.algorithm.singleton == "zero"

    def takes(self, parameter: str) -> bool:
        """Return whether the estimator has a parameter of that name."""
        return estimator_takes(self.estimator, parameter)

    def needs(self, parameter: str) -> bool:
        """Return whether the estimator has a parameter of that name without a default."""
        return estimator_needs(self.estimator, parameter)


def plan_agent(row: AgentPlacement, algorithm: AlgorithmConfig, candidates: int | None) -> AgentPlan:
    """Return the plan of an agent.

    Args:
        row: its row of the placement.
        algorithm: keys of the run; own values of an agent that is not trained are not read.
        candidates: see `AgentPlan`.

    Raises ConfigError for an invalid key or value in `algorithm.per_agent`.
    """
    common = replace(algorithm, per_agent={})
    settings = common if row.frozen else agent_settings(algorithm, row.agent_id)
    return AgentPlan(**vars(row), algorithm=settings, candidates=candidates)


def own_keys(config: AlgorithmConfig, agent_id: str) -> dict[str, Any]:
    """Return the keys of one agent in `algorithm.per_agent`, under its name or its slug; {} if there are
    none.
    """
    return dict(config.per_agent.get(agent_id) or config.per_agent.get(slug(agent_id)) or {})


def agent_settings(config: AlgorithmConfig, agent_id: str) -> AlgorithmConfig:
    """Return the settings of one agent: those of the run, overridden by its own. Raises ConfigError for an
    invalid key or value.
    """
    own, where = own_keys(config, agent_id), f"algorithm.per_agent.{slug(agent_id)}"
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
        settings = agent_settings(config, agent_id)
        same = next((agents for other, agents in parts if other == settings), None)
        if same is None:
            parts.append((settings, [agent_id]))
        else:
            same.append(agent_id)
    return [
        (settings, np.flatnonzero(np.logical_or.reduce([agent_ids == a for a in agents])))
        for settings, agents in parts
    ]


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
