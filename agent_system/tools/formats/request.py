"""One tool call as a reply writes it, and the types of its arguments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_system.json_text import parse_json
from agent_system.tools.formats.literals import literal

_CDATA = "<![CDATA["
_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """One tool call of a reply.

    Attributes:
        name: name of the tool; empty when it could not be parsed.
        arguments: its arguments, unchecked JSON.
        error: why it could not be parsed, for the model; empty otherwise.
        id: the id that the reply gives to the call; empty for none.
        renamed: the chat template refuses the id that the reply gives; this one is shown in its
            place.
    """

    name: str = ""
    arguments: Any = None
    error: str = ""
    id: str = ""
    renamed: bool = False

    @property
    def is_readable(self) -> bool:
        """Whether client libraries can read it: an object of JSON in valid Unicode."""
        try:
            json.dumps([self.name, self.arguments], ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            return False
        return not self.error and isinstance(self.arguments, dict | None)


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools that a reply may call; with none, every name may be one.

    Attributes:
        schemas: the parameters of each tool, by its name.
    """

    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, tools: Iterable[Mapping[str, Any]]) -> OfferedTools:
        """Return the tools with these schemas in OpenAI's form."""
        functions = [tool["function"] for tool in tools]
        return cls({function["name"]: function.get("parameters") or {} for function in functions})

    def allow(self, name: str) -> bool:
        """Return whether a tool may have this name."""
        return not self.schemas or name in self.schemas

    def typed(self, name: str, key: str, text: str, quoted: bool = False) -> Any:
        """Return an argument that is written as plain text, with the type of the tool's schema.

        Text of another type stays text; an argument without a schema is JSON where it can be. With
        `quoted` the reply says that it is text: it stays so where the schema allows text.
        """
        # between quotes the mark is a part of the text
        if text.startswith(_CDATA) and not quoted:
            text = text.removeprefix(_CDATA).removesuffix("]]>")
        schema = self.schemas.get(name, {})
        declared = _declared(schema, schema.get("properties", {}).get(key), 0)
        if declared == {"string"} or (quoted and (not declared or "string" in declared)):
            return text
        value = _value(text)
        if not declared or _is_one_of(value, declared) or (value is None and "string" not in declared):
            return value
        return text


def _declared(root: Mapping[str, Any], schema: Any, depth: int) -> set[str]:
    """Return the types that a schema allows; empty where it does not say."""
    # References may form a circle.
    if not isinstance(schema, Mapping) or depth > 8:
        return set()
    types = schema.get("type")
    if types is not None:
        return set(types) if isinstance(types, list) else {str(types)}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for step in reference[2:].split("/"):
            target = target.get(step) if isinstance(target, Mapping) else None
        return _declared(root, target, depth + 1)
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if values:
        return {"string"} if all(isinstance(value, str) for value in values) else set()
    choices = [*schema.get("anyOf", []), *schema.get("oneOf", []), *schema.get("allOf", [])]
    return set().union(*(_declared(root, choice, depth + 1) for choice in choices))


def _is_one_of(value: Any, declared: set[str]) -> bool:
    if isinstance(value, str):
        return "string" in declared
    if isinstance(value, bool):
        return "boolean" in declared
    return any(isinstance(value, _TYPES.get(name, ())) for name in declared)


def _value(text: str) -> Any:
    stripped = text.strip()
    for read in (parse_json, literal):
        try:
            return read(stripped)
        except (ValueError, RecursionError):  # of another form
            continue
    return text
