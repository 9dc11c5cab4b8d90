"""`agent.agent_specific_parameters`: keys under `actor_rollout_ref` with a value for each agent."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from verl.trainer.config import ActorRolloutRefConfig


class PlacementError(ValueError):
    """A team that cannot be placed as configured."""


def config_of(
    index: int, names: Sequence[str], model: str, overrides: Mapping[str, Any], base: ActorRolloutRefConfig
) -> ActorRolloutRefConfig:
    """`base` with one agent's model and its own values.

    Args:
        index: of the agent in `names`.
        names: all agents.
        model: of the agent.
        overrides: a tree of keys with a list of values, one for each agent; None keeps the common value.
        base: everything under `actor_rollout_ref`; it is not changed.

    Raises:
        PlacementError: an unknown key, a list of the wrong length, or a value of the wrong type.
    """
    config = copy.deepcopy(base)
    config.model.path = model
    for path, values in _leaves(overrides, base):
        dotted = ".".join(path)
        if dotted == "model.path":
            raise PlacementError("agent.agent_specific_parameters.model.path: models are placed by agent.model_ids; name them there")
        if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != len(names):
            raise PlacementError(
                f"agent.agent_specific_parameters.{dotted}={values!r}: expected a list of {len(names)} values, "
                f"one for each of {list(names)}"
            )
        section: Any = config
        for part in path[:-1]:
            section = getattr(section, part)
        if values[index] is not None:
            setattr(section, path[-1], _checked(dotted, values[index], section, path[-1]))
    return config


def own_keys(index: int, overrides: Mapping[str, Any], base: ActorRolloutRefConfig) -> frozenset[str]:
    """The keys, dotted, of which an agent has a value of its own; `overrides` as `config_of` accepts them."""
    return frozenset(".".join(path) for path, values in _leaves(overrides, base) if values[index] is not None)


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


def _checked(dotted: str, value: Any, section: Any, name: str) -> Any:
    """`value` if it has the type of the key `name` of `section`; integers pass for floats. Raises PlacementError naming both."""
    hint = get_type_hints(type(section))[name]
    if not _fits(value, hint):
        expected = str(hint).replace("typing.", "") if get_args(hint) else hint.__name__
        raise PlacementError(f"agent.agent_specific_parameters.{dotted}: {value!r} is {type(value).__name__}, expected {expected}")
    return float(value) if hint is float else value


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    parts = get_args(hint)
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_fits(item, parts[0]) for item in value)
    if get_origin(hint) is dict:
        return isinstance(value, Mapping)
    if parts:  # Optional
        return any(_fits(value, part) for part in parts)
    return type(value) is hint or (hint is float and type(value) is int)
