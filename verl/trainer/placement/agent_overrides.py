"""`agent.agent_specific_parameters`: keys under `actor_rollout_ref` with a value for each agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from typing import Any

from verl.trainer.config import ActorRolloutRefConfig
from verl.trainer.config.spec import ConfigError, with_values

WHERE = "agent.agent_specific_parameters"


class PlacementError(ConfigError):
    """A team that cannot be placed as configured."""


def config_of(
    index: int, names: Sequence[str], model: str, overrides: Mapping[str, Any], base: ActorRolloutRefConfig
) -> tuple[ActorRolloutRefConfig, frozenset[str]]:
    """`base` with one agent's model and its own values, and the dotted names of the keys of which it has one.

    Args:
        index: of the agent in `names`.
        names: all agents.
        model: of the agent.
        overrides: a tree of keys with a list of values, one for each agent; None keeps the common value.
        base: everything under `actor_rollout_ref`; it is not changed.

    Raises ConfigError for an unknown key, a list of the wrong length, or a value that the key cannot have.
    """
    own = _own(index, names, overrides, base, WHERE)
    if "path" in own.get("model", {}):
        raise PlacementError(f"{WHERE}.model.path: models are placed by agent.model_ids; name them there")
    config = deepcopy(with_values(base, own, WHERE, who=f" (agent '{names[index]}')"))
    return replace(config, model=replace(config.model, path=model)), frozenset(_leaves(own))


def _own(index: int, names: Sequence[str], tree: Mapping[str, Any], section: Any, where: str) -> dict[str, Any]:
    """The tree with one agent's values in the place of the lists, without those that are None."""
    found: dict[str, Any] = {}
    known = {f.name for f in fields(section)}
    for name, value in tree.items():
        here = f"{where}.{name}"
        if name not in known:
            raise PlacementError(f"{here}: no such key under actor_rollout_ref; known there: {sorted(known)}")
        if is_dataclass(getattr(section, name)):
            if not isinstance(value, Mapping):
                raise PlacementError(f"{here} is a section; set one of its keys")
            found[name] = _own(index, names, value, getattr(section, name), here)
        elif not isinstance(value, Sequence) or isinstance(value, str) or len(value) != len(names):
            raise PlacementError(f"{here}={value!r}: expected a list of {len(names)} values, one for each of {list(names)}")
        elif value[index] is not None or here == f"{WHERE}.model.path":
            found[name] = value[index]
    return found


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The dotted names of a tree; a key whose value is itself a mapping would count as a section, of which there is none here."""
    out: list[str] = []
    for name, value in tree.items():
        out += _leaves(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [f"{prefix}{name}"]
    return out
