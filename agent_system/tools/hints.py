"""JSON schemas of argument types that chat templates' own schemas do not describe: enumerations,
dataclasses, typed dictionaries.
"""

from __future__ import annotations

import types
import typing
from typing import Any

import typing_extensions
from pydantic import PydanticUserError, TypeAdapter

from agent_system.errors import AgentSystemError

_PLAIN = (str, int, float, bool, type(None), Any, ...)
_PLAIN_ORIGINS = (list, dict, typing.Union, types.UnionType, typing.Literal)


def is_plain(hint: Any) -> bool:
    """Return whether transformers describes a type completely."""
    origin = typing.get_origin(hint)
    if origin is None:
        return hint in _PLAIN
    return origin is typing.Literal or (
        origin in _PLAIN_ORIGINS and all(map(is_plain, typing.get_args(hint)))
    )


class SelfReferenceError(TypeError):
    """A type refers to itself, which a schema for a model cannot show."""


def readable(hint: Any, above: tuple[Any, ...] = ()) -> Any:
    """Return a type with `typing_extensions.TypedDict` in place of `typing.TypedDict`, which
    pydantic does not read before Python 3.12.

    Raises:
        SelfReferenceError: such a type is one of those around it, `above`.
    """
    if typing.is_typeddict(hint):
        if hint in above:
            raise SelfReferenceError(f"{hint.__name__} refers to itself")
        above = (*above, hint)
        fields = typing.get_type_hints(hint, include_extras=True)
        items = {
            name: typing_extensions.Required[readable(field, above)]  # type: ignore[misc]
            if name in hint.__required_keys__
            else typing_extensions.NotRequired[readable(field, above)]  # type: ignore[misc]
            for name, field in fields.items()
        }
        return typing_extensions.TypedDict(hint.__name__, items)  # type: ignore[operator]
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    changed = (
        tuple(readable(one, above) for one in arguments)
        if origin not in (None, typing.Literal, typing.Annotated)
        else arguments
    )
    if changed == arguments:
        return hint
    return typing.Union[changed] if origin in (typing.Union, types.UnionType) else origin[changed]


def schema_of(hint: Any, what: str) -> dict[str, Any]:
    """Return the JSON schema of a type, without references.

    Raises:
        AgentSystemError: the type has none, or refers to itself; the message begins with `what`.
    """
    try:
        schema = TypeAdapter(readable(hint)).json_schema()
    except (PydanticUserError, ValueError, SelfReferenceError) as error:
        raise AgentSystemError(
            f"{what}: type {hint!r} has no JSON schema: {str(error).partition(chr(10))[0]}"
        ) from error
    definitions = schema.pop("$defs", {})

    def inlined(value: Any, above: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            return [inlined(one, above) for one in value]
        if not isinstance(value, dict):
            return value
        if any(isinstance(choice, (list, dict)) for choice in value.get("enum", ())):
            raise AgentSystemError(
                f"{what}: an enumeration has the values {value['enum']!r:.80}, which no JSON value "
                "equals; expected texts or numbers"
            )
        name = str(value.get("$ref", "")).rpartition("/")[2]
        if name in above:
            raise AgentSystemError(
                f"{what}: type {name} refers to itself, which a schema for a model cannot show"
            )
        if name:
            return inlined(definitions[name], (*above, name)) | {
                key: one for key, one in value.items() if key != "$ref"
            }
        # Titles repeat names, at the price of tokens in every prompt; but an argument may be
        # called `title`.
        if isinstance(value.get("properties"), dict):
            properties = {key: inlined(one, above) for key, one in value["properties"].items()}
            return {
                key: properties if key == "properties" else inlined(one, above)
                for key, one in value.items()
                if key != "title"
            }
        return {key: inlined(one, above) for key, one in value.items() if key != "title"}

    return inlined(schema, ())
