"""Who is trained where: the table agent -> policy -> worker group, built once from the config and checked before any model loads."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from verl.trainer.config import ActorRolloutRefConfig, AgentConfig

# Keys of `rollout` that belong to a request, so that agents on one policy may differ in them.
PER_REQUEST = ("top_p", "top_k", "response_length", "prompt_length", "val_kwargs")


class PlacementError(ValueError):
    """A team that cannot be placed as configured."""


@dataclass(frozen=True)
class AgentPlacement:
    """One row of the table; `config` has the agent's own overrides applied."""

    agent_id: str
    policy_id: str
    wg_id: str
    config: ActorRolloutRefConfig


@dataclass(frozen=True)
class WorkerGroupSpec:
    """One worker group: the model it holds and the agents it serves."""

    wg_id: str
    model_path: str
    agent_ids: tuple[str, ...]
    config: ActorRolloutRefConfig


@dataclass(frozen=True)
class Placement:
    """The whole table, in the order of `agent.agent_ids`."""

    agents: tuple[AgentPlacement, ...]
    groups: tuple[WorkerGroupSpec, ...]

    def agent(self, agent_id: str) -> AgentPlacement:
        """The row of one agent."""
        return next(a for a in self.agents if a.agent_id == agent_id)

    def signature(self) -> list[dict[str, str]]:
        """What a checkpoint must agree with: agent, policy and worker group of every row."""
        return [{"agent_id": a.agent_id, "policy_id": a.policy_id, "wg_id": a.wg_id} for a in self.agents]


def slug(name: str) -> str:
    """Lower-case letters, digits and underscores only: a name for folders, metrics and adapters."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def build_placement(agent: AgentConfig, base: ActorRolloutRefConfig) -> Placement:
    """Place every agent; agents with the same model share a policy when `agent.model_sharing` is on.

    Raises:
        PlacementError: no or repeated agents, names that metrics cannot tell apart, lists of different length, a model that is not
            named or does not exist, an unknown override, or agents on one policy that disagree on how it is trained.
    """
    names = list(agent.agent_ids)
    if not names:
        raise PlacementError("agent.agent_ids is empty; name at least one agent")
    if len(set(names)) < len(names):
        raise PlacementError(f"agent.agent_ids={names} names an agent twice; every agent needs its own name")
    _check_slugs(names)
    models = _model_paths(agent, base)
    configs = [_config_of(i, names, models[i], agent.agent_specific_parameters, base) for i in range(len(names))]
    wg_ids = _worker_group_ids(names, models, agent.model_sharing)
    rows = tuple(AgentPlacement(n, wg, wg, c) for n, wg, c in zip(names, wg_ids, configs, strict=True))
    groups = []
    for wg_id in dict.fromkeys(wg_ids):
        members = [r for r in rows if r.wg_id == wg_id]
        _check_one_policy(members)
        groups.append(WorkerGroupSpec(wg_id, members[0].config.model.path or "", tuple(m.agent_id for m in members), members[0].config))
    return Placement(rows, tuple(groups))


def _check_slugs(names: Sequence[str]) -> None:
    by_slug: dict[str, str] = {}
    for name in names:
        other = by_slug.setdefault(slug(name), name)
        if not slug(name) or other != name:
            found = f"agents '{other}' and '{name}' both become '{slug(name)}'" if slug(name) else f"agent '{name}' becomes an empty name"
            raise PlacementError(
                f"agent.agent_ids={list(names)}: {found} in metrics and folders, where only a-z and 0-9 count; "
                "give every agent a name with at least one of them that differs in them from the others"
            )


def _model_paths(agent: AgentConfig, base: ActorRolloutRefConfig) -> list[str]:
    names, models = list(agent.agent_ids), list(agent.model_ids)
    if not models:
        if not base.model.path:
            raise PlacementError("no model: set actor_rollout_ref.model.path, or agent.model_ids with one model an agent")
        models = [base.model.path] * len(names)
    if len(models) != len(names):
        raise PlacementError(f"agent.model_ids has {len(models)} entries, agent.agent_ids has {len(names)}; they are parallel lists")
    for name, model in zip(names, models, strict=True):
        looks_local = model.startswith((".", "/", "~")) or model.count("/") > 1
        folder = Path(model).expanduser()
        if looks_local and not (folder / "config.json").is_file():
            raise PlacementError(f"model of agent '{name}': no Hugging Face model at {model!r} (config.json expected there)")
    return models


def _worker_group_ids(names: Sequence[str], models: Sequence[str], sharing: bool) -> list[str]:
    if not sharing:
        keys: list[str] = list(names)
    else:
        keys = [m if list(models).count(m) > 1 else n for n, m in zip(names, models, strict=True)]
    by_key: dict[str, str] = {}
    for key in keys:
        if key in by_key:
            continue
        wanted = slug(Path(key).name if key in models else key) or "policy"
        taken = set(by_key.values())
        by_key[key] = wanted if wanted not in taken else next(f"{wanted}_{i}" for i in range(2, 10_000) if f"{wanted}_{i}" not in taken)
    return [by_key[k] for k in keys]


def _config_of(
    index: int, names: Sequence[str], model: str, overrides: Mapping[str, Any], base: ActorRolloutRefConfig
) -> ActorRolloutRefConfig:
    config = copy.deepcopy(base)
    config.model.path = model
    for path, values in _leaves(overrides, base):
        dotted = ".".join(path)
        if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != len(names):
            raise PlacementError(
                f"agent.agent_specific_parameters.{dotted}={values!r}: expected a list of {len(names)} values, "
                f"one for each of {list(names)}"
            )
        section: Any = config
        for part in path[:-1]:
            section = getattr(section, part)
        if values[index] is not None:
            setattr(section, path[-1], _checked(dotted, values[index], getattr(section, path[-1])))
    return config


def _leaves(tree: Mapping[str, Any], section: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Walk overrides along the config's own tree: (path, list of values) at every key that is not a section."""
    known = {f.name for f in fields(section)}
    for name, value in tree.items():
        here = (*path, name)
        if name not in known:
            raise PlacementError(
                f"agent.agent_specific_parameters.{'.'.join(here)}: no such key under actor_rollout_ref; known there: {sorted(known)}"
            )
        child = getattr(section, name)
        if is_dataclass(child):
            if not isinstance(value, Mapping):
                raise PlacementError(f"agent.agent_specific_parameters.{'.'.join(here)} is a section; set one of its keys")
            yield from _leaves(value, child, here)
        else:
            yield here, value


def _checked(dotted: str, value: Any, default: Any) -> Any:
    """`value` if its type fits the key's default; integers pass for floats, anything for an optional key."""
    if isinstance(default, float) and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if default is None or type(value) is type(default):
        return value
    raise PlacementError(
        f"agent.agent_specific_parameters.{dotted}: {value!r} is {type(value).__name__}, expected {type(default).__name__}"
    )


def _check_one_policy(members: Sequence[AgentPlacement]) -> None:
    first = members[0]
    for other in members[1:]:
        for name in ("model", "actor", "ref", "rollout"):
            mine, theirs = getattr(first.config, name), getattr(other.config, name)
            skip = PER_REQUEST if name == "rollout" else ()
            differing = [f.name for f in fields(mine) if f.name not in skip and getattr(mine, f.name) != getattr(theirs, f.name)]
            if differing:
                raise PlacementError(
                    f"agents '{first.agent_id}' and '{other.agent_id}' share policy '{first.policy_id}' but differ in "
                    f"{[f'{name}.{d}' for d in differing]}; give them one value, or set agent.model_sharing=false"
                )
