"""What a tool returns, of whatever kind, as the text that the model reads."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import functools
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from pydantic import BaseModel

from agent_system.tools.tool import make_tool


class Color(enum.Enum):
    RED = "red"


class Model(BaseModel):
    day: datetime.date = datetime.date(2020, 1, 2)
    name: str | None = None


@dataclass
class Point:
    x: int = 1
    marks: set[str] = field(default_factory=lambda: {"b", "a"})


class Pair(NamedTuple):
    first: int
    second: str


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is", "as it is"),
        (None, "null"),
        (Color.RED, '"red"'),
        (
            [Model(), Model(name="n")],
            '[{"day": "2020-01-02", "name": null}, {"day": "2020-01-02", "name": "n"}]',
        ),
        ({"p": Point()}, '{"p": {"x": 1, "marks": ["a", "b"]}}'),
        (Pair(1, "é"), '[1, "é"]'),
        (frozenset({3, 1}), "[1, 3]"),
        (range(3), "[0, 1, 2]"),
        (deque([1]), "[1]"),
        (map(str, (1, 2)), '["1", "2"]'),
        ({"b": 1, "a": 2}.keys(), '["b", "a"]'),
        ({"b": 1, "a": 2}.values(), "[1, 2]"),
        (MappingProxyType({"a": 1}), '{"a": 1}'),
        (Counter("aab"), '{"a": 2, "b": 1}'),
        ({"a": np.arange(2), "n": np.int64(3), "b": np.bool_(True)}, '{"a": [0, 1], "n": 3, "b": true}'),
        (np.float32(1.5), "1.5"),
        (b"abc", '"abc"'),
        ({"d": datetime.date(2020, 1, 2)}, '{"d": "2020-01-02"}'),
        (decimal.Decimal("1.50"), '"1.50"'),
        (Counter([(1, "a"), (1, "a")]), '{"[1, \\"a\\"]": 2}'),
        (
            {datetime.date(2020, 1, 2): Point(), Color.RED: [None]},
            '{"2020-01-02": {"x": 1, "marks": ["a", "b"]}, "red": [null]}',
        ),
        ([{np.int64(3): {frozenset({1}): True}}], '[{"3": {"[1]": true}}]'),
        (MappingProxyType({b"k": map(str, (1,))}), '{"k": ["1"]}'),
    ],
)
def test_a_result_that_is_no_text_is_json(result: Any, text: str) -> None:
    def tool() -> Any:
        """Return it."""
        return result

    assert asyncio.run(make_tool(tool).call({}, 10.0)) == text


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return wrapper


@decorated
async def coroutine(count: int) -> Any:
    """Return it.

    Args:
        count: a number.
    """
    await asyncio.sleep(0)
    return {"count": count}


def awaitable(count: int) -> Awaitable[Any]:
    """Return it.

    Args:
        count: a number.
    """
    return coroutine(count)  # type: ignore[no-any-return]


async def stream(count: int) -> AsyncIterator[int]:
    """Yield numbers.

    Args:
        count: how many.
    """
    for number in range(count):
        yield number


def point(count: int) -> Point:
    """Return it.

    Args:
        count: a number.
    """
    return Point(count, set())


def generator(count: int) -> Iterator[int]:
    """Yield numbers.

    Args:
        count: how many.
    """
    yield from range(count)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (coroutine, '{"count": 2}'),
        (awaitable, '{"count": 2}'),
        (stream, "[0, 1]"),
        (decorated(stream), "[0, 1]"),
        (generator, "[0, 1]"),
        (point, '{"x": 2, "marks": []}'),
    ],
)
def test_what_has_to_be_awaited_or_collected_is(function: Callable[..., Any], text: str) -> None:
    tool = make_tool(function)
    assert asyncio.run(tool.call(tool.validate({"count": 2}), 10.0)) == text


def test_an_error_of_a_decorated_coroutine_is_that_of_the_tool() -> None:
    @decorated
    async def fails() -> None:
        """Fail."""
        raise KeyError("no such city")

    with pytest.raises(Exception, match="fails failed: KeyError"):
        asyncio.run(make_tool(fails).call({}, 10.0))
