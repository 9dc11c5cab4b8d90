"""Options of a workflow: a dict from the command line becomes the workflow's own dataclass."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from agent_system.errors import AgentSystemError
from verl.utils.names import did_you_mean

T = TypeVar("T")
_SCALARS = {bool, int, float, str, NoneType}


@dataclass(frozen=True)
class NoOptions:
    """For workflows without options."""


def build_options(cls: type[T], values: Mapping[str, Any] | None, where: str) -> T:
    """Return an instance of `cls` built from `values`.

    Args:
        cls: a dataclass.
        values: option name to value; options left out keep their default.
        where: the config prefix for messages, such as `agent.orchestra.math`.

    Raises:
        AgentSystemError: an unknown option, a missing one without default, or a scalar of the wrong
            type.
    """
    if not is_dataclass(cls):
        raise AgentSystemError(f"{where}: config_class must be a dataclass, found {cls!r}")
    values = dict(values or {})
    hints = get_type_hints(cls)
    valid = {f.name: f for f in fields(cls) if f.init}
    for name, value in values.items():
        if name not in valid:
            listed = ", ".join(sorted(valid)) or "none (it takes no options)"
            raise AgentSystemError(
                f"{where}.{name} is not an option{did_you_mean(name, valid)}; valid: {listed}"
            )
        kind = hints[name]
        if {*(get_args(kind) if get_origin(kind) in (Union, UnionType) else [kind])} <= _SCALARS:
            values[name] = _validated(value, kind, f"{where}.{name}")
    try:
        return cls(**values)
    except TypeError as error:
        raise AgentSystemError(f"{where}: {error}") from error


def _validated(value: Any, kind: Any, name: str) -> Any:
    """Return `value` as type `kind`; an integer is converted to a declared float. Raise
    AgentSystemError for any other type.
    """
    try:
        return TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        expected = kind.__name__ if isinstance(kind, type) else kind
        raise AgentSystemError(
            f"{name} must be {expected}, found {value!r} ({type(value).__name__})"
        ) from error


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise AgentSystemError unless `value` of the option called `name` is one of `choices`."""
    if value not in choices:
        raise AgentSystemError(
            f"{name} must be one of {', '.join(choices)}, found {value!r}{did_you_mean(value, choices)}"
        )


def check_floats(options: Any) -> None:
    """Raise AgentSystemError unless every float among the options of an environment, the fields of
    a dataclass, is finite and 0 or more.
    """
    for field in fields(options):
        value = getattr(options, field.name)
        if isinstance(value, float) and not 0 <= value < math.inf:
            raise AgentSystemError(
                f"env.params.{field.name} must be a finite number, 0 or more, found {value}"
            )
