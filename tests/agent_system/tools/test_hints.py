"""Types of a tool's arguments: each is described to the model as it is read, or the tool is not made."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, Optional, TypedDict

import pytest

from agent_system import AgentSystemError
from agent_system.tools import make_tool
from agent_system.tools.tool import ToolInputError


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    x: int
    color: Color = Color.RED
    tags: list[str] = field(default_factory=list)


class Place(TypedDict):
    city: str
    point: NotRequired[Point]


class Node(TypedDict):
    next: Node


class Pair(enum.Enum):
    ONE = (1, 2)


class Odd(enum.Enum):
    ONE = object()
    TWO = 1j


class Closed:
    pass


def tool_with(hint: Any, name: str = "value", default: Any = ...) -> Any:
    """A tool that tells what it was called with."""
    namespace: dict[str, Any] = {"hint": hint, "default": default}
    shown = f"{name}: hint" + ("" if default is ... else " = default")
    exec(
        f"def tell({shown}) -> str:\n    '''Tell.\n\n    Args:\n        {name}: the value.\n    '''\n    "
        f"return repr({name})",
        namespace,
    )
    return make_tool(namespace["tell"])


COLOR = {"type": "string", "enum": ["red", "blue"]}
POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer"},
        "color": COLOR | {"default": "red"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["x"],
}


@pytest.mark.parametrize(
    ("hint", "schema", "argument", "value"),
    [
        (Color, COLOR, "blue", Color.BLUE),
        (Level, {"type": "integer", "enum": [1, 2]}, 2, Level.HIGH),
        (list[Color], {"type": "array", "items": COLOR}, ["red"], [Color.RED]),
        (Optional[Color], {"anyOf": [COLOR, {"type": "null"}]}, None, None),
        (Color | None, {"anyOf": [COLOR, {"type": "null"}]}, "red", Color.RED),
        (dict[str, Color], {"type": "object", "additionalProperties": COLOR}, {"a": "red"}, {"a": Color.RED}),
        (Point, POINT, {"x": 3, "color": "blue"}, Point(3, Color.BLUE)),
        (
            Place,
            {"type": "object", "properties": {"city": {"type": "string"}, "point": POINT}, "required": ["city"]},
            {"city": "Oslo"},
            {"city": "Oslo"},
        ),
        (bytes, {"type": "string", "format": "binary"}, "é", "é".encode()),
        (tuple[int, str], {"maxItems": 2, "minItems": 2, "prefixItems": [{"type": "integer"}, {"type": "string"}], "type": "array"},
         [1, "a"], (1, "a")),
        (list, {"type": "array", "items": {}}, [1, "a"], [1, "a"]),
        (Optional[list], {"anyOf": [{"type": "array", "items": {}}, {"type": "null"}]}, [1], [1]),
        (dict[str, list], {"type": "object", "additionalProperties": {"type": "array", "items": {}}}, {"a": [1]}, {"a": [1]}),
        (dict, {"type": "object", "additionalProperties": True}, {"a": 1}, {"a": 1}),
        (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, [1], {1}),
        (Literal["a", 1], {"type": ["string", "integer"], "enum": ["a", 1]}, "a", "a"),
        (dict[str, list[int]], {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}}, {}, {}),
    ],
)  # fmt: skip
def test_the_schema_says_what_is_read(hint: Any, schema: dict[str, Any], argument: Any, value: Any) -> None:
    tool = tool_with(hint)
    assert tool.schema["function"]["parameters"]["properties"]["value"] == schema | {
        "description": "the value."
    }
    assert tool.validate({"value": argument}) == {"value": value}
    assert asyncio.run(tool.call(tool.validate({"value": argument}), 60)) == repr(value)


@pytest.mark.parametrize("hint", [Color, Level, Point, Place, tuple[int, str]])
def test_what_the_schema_does_not_have_is_refused(hint: Any) -> None:
    for wrong in ("green", 7, {"y": 1}, [None]):
        with pytest.raises(ToolInputError, match="wrong arguments of tell: value"):
            tool_with(hint).validate({"value": wrong})


@pytest.mark.parametrize(
    "hint", [Closed, Node, list[Closed], Callable[[], int], Optional[Closed], Pair, list[Pair], Odd]
)
def test_a_type_that_no_model_can_fill_is_an_error_when_the_tool_is_made(hint: Any) -> None:
    with pytest.raises(AgentSystemError, match="tool 'tell'"):
        tool_with(hint)


@pytest.mark.parametrize(
    "name",
    [
        "_x",
        "__x",
        "model_config",
        "model_x",
        "schema",
        "copy",
        "json",
        "dict",
        "validate",
        "self_",
        "fields",
        "argument_1",
        "é",
    ],
)
def test_every_name_of_an_argument_works(name: str) -> None:
    tool = tool_with(int, name)
    assert tool.validate({name: "3"}) == {name: 3} and list(
        tool.schema["function"]["parameters"]["properties"]
    ) == [name]
    with pytest.raises(ToolInputError, match=f"no argument 'other'; its arguments: {name}"):
        tool.validate({"other": 1})
    assert tool_with(int, name, 5).validate({}) == {name: 5}
