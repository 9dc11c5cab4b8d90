"""Agents of a run: what each is trained with, by the keys of `algorithm` and its own values of them
(`algorithm.per_agent`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from verl.trainer.config import AlgorithmConfig, DataConfig, RolloutConfig
from verl.trainer.config.algorithm import EstimatorConfig
from verl.trainer.config.spec import with_values
from verl.trainer.plan.placement import AgentPlacement, ApiPlacement, slug
from verl.trainer.plan.registry import (
    ESTIMATORS,
    EstimatorTraits,
    estimator_needs,
    estimator_takes,
    plain_name,
)
from verl.trainer.ppo.core_algos.grouping import rows_by_value
from verl.utils.names import own_key

# Keys of the advantage. The other keys of `algorithm` (KL in the reward, filters, corrections) are
# common to the team.
COMMON_KEYS = (
    "adv_estimator",
    "call_weighting",
    "group_by",
    "singleton",
    "statistics_over",
)
PER_AGENT_KEYS = sorted(
    {*COMMON_KEYS, *(key for name in ESTIMATORS.names() for key in ESTIMATORS.traits(name).reads or ())}
)


@dataclass(frozen=True)
class Sampling:
    """How the replies of an agent are sampled.

    Attributes:
        max_tokens: longest reply, in tokens.
        temperature: 0 for greedy decoding.
        top_p: smallest probability mass of the tokens to choose from.
        top_k: number of tokens to choose from; -1: all.
        stop: texts that end a reply.
    """

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stop: tuple[str, ...]

    @classmethod
    def of(cls, rollout: RolloutConfig, data: DataConfig, validate: bool) -> Sampling:
        """Return the sampling of an agent with the keys `rollout`, in training or validation."""
        source = rollout.val_kwargs if validate else rollout
        return cls(
            max_tokens=source.response_length or rollout.response_length or data.max_response_length,
            temperature=source.temperature,
            top_p=source.top_p,
            top_k=source.top_k,
            stop=tuple(rollout.stop if source.stop is None else source.stop),
        )


@dataclass(frozen=True)
class ApiPlan(ApiPlacement):
    """What a run does with an agent behind an API.

    Attributes:
        sampling: in training.
        val_sampling: in validation.
    """

    sampling: Sampling = field(kw_only=True)
    val_sampling: Sampling = field(kw_only=True)


@dataclass(frozen=True)
class AgentPlan(AgentPlacement):
    """What a run does with one agent that has a policy: its row of the placement, and how its
    samples are compared.

    What depends on the estimator is read from the registry when it is asked for: plug-ins may
    register estimators after a command line is read.

    Attributes:
        algorithm: keys under `algorithm` with the agent's own values; `per_agent` is empty.
        sampling: in training.
        val_sampling: in validation.
        max_prompt_length: longest prompt, in tokens.
        candidates: replies per call in tree sampling; None if `rollout.tree.k_per_agent` does not
            name the agent.
    """

    algorithm: AlgorithmConfig = field(kw_only=True)
    sampling: Sampling = field(kw_only=True)
    val_sampling: Sampling = field(kw_only=True)
    max_prompt_length: int = field(kw_only=True)
    candidates: int | None = field(default=None, kw_only=True)

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
    def max_model_len(self) -> int:
        """Maximum length of prompt plus reply, in tokens."""
        return self.max_prompt_length + max(self.sampling.max_tokens, self.val_sampling.max_tokens)

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

    def to_json(self) -> dict[str, Any]:
        """Return the plan in JSON types, without the keys of `actor_rollout_ref` and `algorithm`."""
        learns = {
            "estimator": self.estimator,
            "group_by": self.group_fields,
            "averages_trajectories": self.averages_trajectories,
        }
        return {
            "agent_id": self.agent_id,
            "policy_id": self.policy_id,
            "wg_id": self.wg_id,
            "trained": not self.frozen,
            **({} if self.frozen else learns),
            "candidates": self.candidates,
            "max_prompt_length": self.max_prompt_length,
            "sampling": asdict(self.sampling),
            "val_sampling": asdict(self.val_sampling),
        }

    def describe_credit(self) -> str:
        """Return in words how the samples of a trained agent are compared."""
        parts = [f"adv_estimator={self.estimator}"]
        if self.takes("index"):
            fields = ", ".join(self.group_fields)
            parts.append(f"groups by [{fields}]")
        if self.averages_trajectories:
            parts.append("trajectories averaged first")
        return ", ".join(parts)

    def takes(self, parameter: str) -> bool:
        """Return whether the estimator has a parameter of that name."""
        return estimator_takes(self.estimator, parameter)

    def needs(self, parameter: str) -> bool:
        """Return whether the estimator has a parameter of that name without a default."""
        return estimator_needs(self.estimator, parameter)


def plan_agent(
    row: AgentPlacement, algorithm: AlgorithmConfig, data: DataConfig, candidates: int | None
) -> AgentPlan:
    """Return the plan of an agent.

    Args:
        row: its row of the placement.
        algorithm: keys of the run; own values of an agent that is not trained are not read.
        data: lengths of agents without their own.
        candidates: see `AgentPlan`.

    Raises ConfigError for an invalid key or value in `algorithm.per_agent`.
    """
    common = replace(algorithm, per_agent={})
    settings = common if row.frozen else agent_settings(algorithm, row.agent_id)
    rollout = row.config.rollout
    return AgentPlan(
        **vars(row),
        algorithm=settings,
        sampling=Sampling.of(rollout, data, validate=False),
        val_sampling=Sampling.of(rollout, data, validate=True),
        max_prompt_length=rollout.prompt_length or data.max_prompt_length,
        candidates=candidates,
    )


def plan_api_agent(row: ApiPlacement, data: DataConfig) -> ApiPlan:
    """Return the plan of an agent behind an API.

    Args:
        row: its row of the placement.
        data: lengths of agents without their own.
    """
    rollout = row.config.rollout
    return ApiPlan(
        **vars(row),
        sampling=Sampling.of(rollout, data, validate=False),
        val_sampling=Sampling.of(rollout, data, validate=True),
    )


def own_keys(config: AlgorithmConfig, agent_id: str) -> dict[str, Any]:
    """Return the keys of one agent in `algorithm.per_agent`, under its name or its slug; {} if
    there are none.
    """
    return dict(config.per_agent.get(agent_id) or config.per_agent.get(slug(agent_id)) or {})


def agent_settings(config: AlgorithmConfig, agent_id: str) -> AlgorithmConfig:
    """Return the settings of one agent: those of the run, overridden by its own. Raises ConfigError
    for an invalid key or value.
    """
    agent_keys = own_keys(config, agent_id)
    where = f"algorithm.per_agent.{slug(agent_id)}"
    return with_values(replace(config, per_agent={}), agent_keys, where, PER_AGENT_KEYS)


def split_by_settings(
    config: AlgorithmConfig, agent_ids: np.ndarray
) -> list[tuple[AlgorithmConfig, np.ndarray]]:
    """Split rows by the settings of their agents, and return (settings, row indices) of each part.

    Args:
        config: settings of the run.
        agent_ids: `[bsz]` agent of each row.
    """
    parts: list[tuple[AlgorithmConfig, list[np.ndarray]]] = []
    for agent_id, rows in rows_by_value(agent_ids).items():
        settings = agent_settings(config, agent_id)
        same = next((rows_of_agents for other, rows_of_agents in parts if other == settings), None)
        if same is None:
            parts.append((settings, [rows]))
        else:
            same.append(rows)
    return [(settings, np.sort(np.concatenate(rows))) for settings, rows in parts]


def group_fields(config: EstimatorConfig) -> list[str]:
    """Return the sample fields that define a group: `algorithm.group_by`.

    `[uid]` without a config, or with one of verl's, which has no such key, unless it has Dr. MAS's
    `group_by_agent_id`.
    """
    group_by = own_key(config, "group_by", None)
    if group_by is not None:
        return list(group_by)
    return ["uid", "agent_id"] if own_key(config, "group_by_agent_id", False) else ["uid"]


def averages_trajectories(settings: Any, estimator: str) -> bool:
    """Return whether the rows of a trajectory are averaged first: with `auto`, for groups by `uid`
    alone and without groups (rae).

    Without a config, or with one of verl's, rows are not averaged.
    """
    statistics_over = own_key(settings, "statistics_over", "samples")
    if statistics_over != "auto":
        return bool(statistics_over == "trajectories")
    return group_fields(settings) == ["uid"] or not estimator_takes(estimator, "index")
