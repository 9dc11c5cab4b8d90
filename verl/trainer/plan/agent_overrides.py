"""`agent.agent_specific_parameters`: keys under `actor_rollout_ref` with one value per agent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from typing import Any

from verl.trainer.config import ActorRolloutRefConfig, AgentConfig
from verl.trainer.config.spec import ConfigError, followers, with_values
from verl.utils.names import value_at

WHERE = "agent.agent_specific_parameters"
COMMON = "actor_rollout_ref."


class PlacementError(ConfigError):
    """Invalid placement of a team."""


def config_of(
    index: int, names: Sequence[str], model: str, overrides: Mapping[str, Any], base: ActorRolloutRefConfig
) -> tuple[ActorRolloutRefConfig, frozenset[str]]:
    """Return `base` with one agent's model and own values, and the dotted names of the keys with an
    own value.

    Args:
        index: index of the agent in `names`.
        names: names of all agents.
        model: model of the agent.
        overrides: nested mapping of keys to lists with one value per agent; None keeps the common
            value.
        base: common configuration `actor_rollout_ref`; it is not changed.

    Raises ConfigError for an unknown key, a list of the wrong length, or an invalid value.
    """
    agent_values = _agent_values(index, names, overrides, base, WHERE)
    if "path" in agent_values.get("model", {}):
        raise PlacementError(f"{WHERE}.model.path: models are assigned by agent.model_ids; set them there")
    config = deepcopy(with_values(base, agent_values, WHERE, who=f" (agent '{names[index]}')"))
    own_keys = frozenset(leaves(agent_values))
    listed_keys = leaves(overrides)
    for name, like in followers(ActorRolloutRefConfig).items():
        leader = like.removeprefix(COMMON)
        # a common value of its own stays
        if leader in own_keys and name not in listed_keys and value_at(base, name) == value_at(base, leader):
            section, _, leaf = name.rpartition(".")
            setattr(value_at(config, section), leaf, value_at(config, leader))
    return replace(config, model=replace(config.model, path=model)), own_keys


def keep_common_values(agent: AgentConfig, common: ActorRolloutRefConfig, set_keys: Collection[str]) -> None:
    """Give each agent the common value of a key that was set, where agents have own values of the
    key that it follows: if both common values are equal, `config_of` cannot know that it was set.

    Args:
        agent: the agents; their own values are changed.
        common: values of all agents.
        set_keys: keys with leaders that were set, by their full names.
    """
    tree = agent.agent_specific_parameters
    listed_keys = leaves(tree)
    for name, like in followers(ActorRolloutRefConfig).items():
        leader = like.removeprefix(COMMON)
        if f"{COMMON}{name}" not in set_keys or leader not in listed_keys or name in listed_keys:
            continue
        value = value_at(common, name)
        section, _, leaf = name.rpartition(".")
        is_equal = value == value_at(common, leader)
        if is_equal and isinstance(tree.setdefault(section, {}), dict):
            tree[section][leaf] = [value] * len(agent.agent_ids)


def _agent_values(
    index: int, names: Sequence[str], tree: Mapping[str, Any], section: Any, where: str
) -> dict[str, Any]:
    """Return the tree with one agent's values instead of the lists, without those that are None."""
    values: dict[str, Any] = {}
    field_names = {f.name for f in fields(section)}
    for name, value in tree.items():
        here = f"{where}.{name}"
        if name not in field_names:
            raise PlacementError(
                f"{here}: no such key under actor_rollout_ref; known there: {sorted(field_names)}"
            )
        if is_dataclass(getattr(section, name)):
            if not isinstance(value, Mapping):
                raise PlacementError(f"{here} is a section; set one of its keys")
            values[name] = _agent_values(index, names, value, getattr(section, name), here)
        elif not isinstance(value, Sequence) or isinstance(value, str) or len(value) != len(names):
            raise PlacementError(
                f"{here}={value!r}: expected a list of {len(names)} values, one for each of {list(names)}"
            )
        elif value[index] is not None or here == f"{WHERE}.model.path":
            values[name] = value[index]
    return values


def leaves(tree: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted names of a tree; mappings are sections, since no key here has a mapping as
    its value.
    """
    out: list[str] = []
    for name, value in tree.items():
        out += leaves(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [f"{prefix}{name}"]
    return out
