"""`algorithm.per_agent`: keys of `algorithm` that one agent has for itself, and the check that each of them can take effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_type_hints

import numpy as np

from verl.trainer.config import AlgorithmConfig
from verl.trainer.placement import slug
from verl.trainer.ppo.estimator_keys import check_estimator_keys
from verl.trainer.ppo.registry import ESTIMATORS, estimator_takes
from verl.utils.names import did_you_mean, own_key

# What an advantage is computed from. The other keys of `algorithm` (KL in the reward, filters, corrections) hold for the whole team.
OF_ALL = ("adv_estimator", "call_weighting", "group_by", "group_by_agent_id", "singleton", "statistics_over")
PER_AGENT_KEYS = sorted({*OF_ALL, *(key for name in ESTIMATORS.names() for key in ESTIMATORS.traits(name).reads or ())})
CHOICES: Mapping[str, Sequence[str]] = {
    "statistics_over": ("auto", "samples", "trajectories"),
    "call_weighting": ("sample", "trajectory"),
    "singleton": ("zero", "raw"),
}


def own_keys(config: AlgorithmConfig, agent_id: str) -> dict[str, Any]:
    """What `algorithm.per_agent` gives one agent, under its name or its slug; {} when nothing."""
    return dict(config.per_agent.get(agent_id) or config.per_agent.get(slug(agent_id)) or {})


def agent_config(config: AlgorithmConfig, agent_id: str) -> AlgorithmConfig:
    """The settings of one agent: those of the run with its own put over them. Raises ValueError for a key that cannot be set."""
    return _over(replace(config, per_agent={}), own_keys(config, agent_id), f"algorithm.per_agent.{slug(agent_id)}", PER_AGENT_KEYS)


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


def check_per_agent(config: AlgorithmConfig, agent_ids: Sequence[str]) -> None:
    """Find what cannot be used in `algorithm.per_agent` before anything starts.

    Raises ValueError naming the key: an agent that is not in the team or is named twice, a key that an agent cannot have for itself,
    a value of the wrong type or range, an estimator that nothing registers, a main agent of M-GRPO that is not in the team.
    """
    names = {name: agent for agent in agent_ids for name in (agent, slug(agent))}
    seen: dict[str, str] = {}
    for name in config.per_agent:
        if name not in names:
            raise ValueError(
                f"algorithm.per_agent.{name}: no such agent{did_you_mean(name, names)}; agents that learn are {list(agent_ids)}"
            )
        if names[name] in seen:
            raise ValueError(f"algorithm.per_agent names agent '{names[name]}' twice: {seen[names[name]]} and {name}; keep one")
        seen[names[name]] = name
        if not isinstance(config.per_agent[name], Mapping):
            raise ValueError(f"algorithm.per_agent.{name}={config.per_agent[name]!r}: expected keys, e.g. {name}.adv_estimator=rloo")
    for agent_id in agent_ids:
        where = f"algorithm.per_agent.{slug(agent_id)}" if own_keys(config, agent_id) else "algorithm"
        _check_settings(agent_config(config, agent_id), agent_ids, where)


def _check_settings(settings: AlgorithmConfig, agent_ids: Sequence[str], where: str) -> None:
    for key, choices in CHOICES.items():
        if getattr(settings, key) not in choices:
            raise ValueError(f"{where}.{key}={getattr(settings, key)!r}: expected one of {', '.join(choices)}")
    known = ESTIMATORS.names()
    if settings.adv_estimator not in known:
        near = did_you_mean(settings.adv_estimator, known)
        raise ValueError(f"{where}.adv_estimator={settings.adv_estimator!r}{near}; expected one of {', '.join(known)}")
    for key in ("gamma", "lam"):
        if not 0 <= getattr(settings, key) <= 1:
            raise ValueError(f"{where}.{key}={getattr(settings, key)}: expected a number from 0 to 1")
    check_estimator_keys(settings, where)
    _check_statistics(settings, where)
    if settings.adv_estimator == "m_grpo":
        main, calls = settings.m_grpo.main_agent, settings.m_grpo.sub_calls
        if main not in agent_ids:
            raise ValueError(f"{where}.m_grpo.main_agent={main!r}: expected one of {list(agent_ids)}")
        if calls < 1:
            raise ValueError(f"{where}.m_grpo.sub_calls={calls}: expected 1 or more")


def _check_statistics(settings: AlgorithmConfig, where: str) -> None:
    """Ways to average or weigh that the estimator does not have."""
    estimator = settings.adv_estimator
    if settings.statistics_over == "trajectories" and not estimator_takes(estimator, "traj_index"):
        raise ValueError(
            f"{where}.statistics_over=trajectories: estimator '{estimator}' cannot average trajectories first; use auto or samples"
        )
    traits = ESTIMATORS.traits(estimator)
    if settings.call_weighting == "trajectory" and traits.weighs_calls_by:
        raise ValueError(
            f"{where}.call_weighting=trajectory has no effect: {estimator} weighs calls by {where}.{traits.weighs_calls_by}; use sample"
        )
    if settings.call_weighting == "trajectory" and traits.cannot_weigh and not averages_trajectories(settings, estimator):
        raise ValueError(
            f"{where}.call_weighting=trajectory: {estimator} {traits.cannot_weigh} and cannot weigh them; use sample, or "
            f"{where}.statistics_over=trajectories"
        )


def _over(config: Any, own: Mapping[str, Any], where: str, allowed: Sequence[str]) -> Any:
    hints = get_type_hints(type(config))
    changes: dict[str, Any] = {}
    for key, value in own.items():
        if key not in allowed:
            near = did_you_mean(key, allowed)
            raise ValueError(f"{where}.{key}: not a key that an agent has for itself{near}; those are {', '.join(allowed)}")
        section = getattr(config, key)
        if not is_dataclass(section):
            changes[key] = _typed(value, hints[key], f"{where}.{key}")
        elif isinstance(value, Mapping):
            changes[key] = _over(section, value, f"{where}.{key}", [f.name for f in fields(section)])
        else:
            raise ValueError(f"{where}.{key}={value!r}: expected keys of algorithm.{key}")
    return replace(config, **changes)


def _typed(value: Any, hint: Any, where: str) -> Any:
    """`value` as the key's type has it (an int where a float is meant becomes one)."""
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type):
        fits = isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool)
        expected = hint.__name__
    elif "list" in str(hint):
        fits = value is None or isinstance(value, list)
        expected = "a list, or null"
    else:
        fits, expected = value is None or isinstance(value, str), "a name, or null"
    if not fits:
        raise ValueError(f"{where}={value!r}: expected {expected}")
    return value
