"""What a condition compares: numbers exactly, of replies and of an environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agent_system import Observation, Projection
from agent_system.errors import AgentSystemError
from agent_system.workflows.graph import Team
from agent_system.workflows.graph.play import TurnState, compile_condition
from agent_system.workflows.graph.source import read_text

BIG = 2**53 + 1


class World:
    """A turn of which conditions read the observation alone."""

    def __init__(self, value: Any) -> None:
        self.observation = Observation("", {"k": value})


def holds(value: Any, comparison: str, *, in_world: bool) -> bool:
    """Whether a condition holds for a value of the observation, or for an action."""
    subject = "observation: k" if in_world else "of: a"
    text = "team: 1\nagents:\n  A: {prompt: x}\ndo:\n- {call: A, id: a}\n"
    steps = f"- {{call: A, unless: {{{subject}, {comparison}}}}}\nreturn: a\n"
    unless: Any = Team.parse(text + steps).spec.do[1]
    turn: Any = World(value)
    results = {} if in_world else {"a": Projection(value)}
    return compile_condition(unless.unless)(TurnState(turn, results, {}))


NUMBERS = st.one_of(
    st.integers(-(10**20), 10**20), st.floats(-1e20, 1e20).filter(lambda x: x == 0 or abs(x) > 1e-5)
)


@given(NUMBERS, NUMBERS)
def test_numbers_are_compared_exactly(value: float, other: float) -> None:
    written = read_text(f"a: {other!r}", "text").value["a"] if not isinstance(other, int) else other
    assert written == other
    for given_value in (value, str(value)):
        assert holds(given_value, f"is: {other!r}", in_world=True) == (value == other)
        assert holds(given_value, f"below: {other!r}", in_world=True) == (value < other)
        assert holds(given_value, f"above: {other!r}", in_world=True) == (value > other)
    assert holds(str(value), f"in: [{other!r}, {value!r}]", in_world=False)


@pytest.mark.parametrize(
    ("action", "comparison", "expected"),
    [
        (str(BIG), f"is: {BIG}", True), (str(BIG - 1), f"is: {BIG}", False),
        (str(BIG), f"above: {BIG - 1}", True),
        (str(BIG - 1), f"below: {BIG}", True), (f"{BIG}.0", f"is: {BIG}", True),
        ("12345678901234567890", "is: 12345678901234567890", True),
        ("0.1", "is: 0.1", True), ("0.1", "below: 0.1", False), (" 7 ", "is: 7", True),
        ("7.0", "is: 7", True),
        ("1e3", "is: 1000", True), ("007", "is: 7", True), (".5", "above: 0.4", True), ("+7", "is: 7", True),
        ("1_000", "is: 1000", False), ("1_000", "above: 0", False), ("infinity", "above: 0", False),
        ("inf", "above: 0", False),
        ("-inf", "below: 0", False), ("nan", "below: 0", False), ("٣", "is: 3", False),
        ("0x10", "is: 16", False),
        ("", "below: 1", False), ("7 8", "is: 7", False), ("1e999999999999", "above: 0", False),
        ("9" * 1000, "above: 1", True),
        ("9" * 1001, "above: 1", False),
        ("1e400", "above: 1", True), ("True", "is: 1", False), ("yes", "is: ' yes '", True),
        ("true", "is: true", False),
    ],
)  # fmt: skip
def test_a_text_is_a_number_as_replies_write_one(action: str, comparison: str, expected: bool) -> None:
    assert holds(action, comparison, in_world=False) is expected


@pytest.mark.parametrize(
    ("value", "comparison", "expected"),
    [
        *((kind(3), "is: 3", True) for kind in (int, float, np.int64, np.int8, np.uint16, np.float32,
            np.float64)),
        *((kind(3), "in: [2, 3]", True) for kind in (np.int64, np.float64, np.array, torch.tensor)),
        *((kind(3), "above: 2", True) for kind in (np.int64, np.float32, np.array, torch.tensor)),
        *((kind(3), "below: 3", False) for kind in (np.int64, np.float32)),
        (np.bool_(True), "is: true", True), (np.bool_(False), "is: false", True),
        (np.bool_(True), "is: 1", False),
        (torch.tensor(True), "is: true", True), (np.int64(1), "is: true", False), (1, "is: true", False),
        (True, "is: 1", False),
        (np.int64(BIG), f"is: {BIG}", True), (np.int64(BIG - 1), f"is: {BIG}", False),
        (np.float64("nan"), "is: 3", False),
        (float("nan"), "above: 0", False), (float("inf"), "above: 0", True), (np.str_("x"), "is: x", True),
        (" x", "is: x", True),
        (None, "is: null", True), (0, "is: null", False), (np.array([3, 3]), "is: 3", False),
        ([3], "is: 3", False),
        (np.array([3, 3]), "is: x", False), (np.array([3, 3]), "is: null", False),
        (np.array([1, 2]), "above: 0", False),
        ("3", "is: 3", True), (3, "is: '3'", False),
    ],
)  # fmt: skip
def test_a_value_of_an_environment_is_compared_as_pythons(
    value: Any, comparison: str, expected: bool
) -> None:
    assert holds(value, comparison, in_world=True) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.bool_(True), True), (np.bool_(False), False), (np.int64(0), False), (np.array([0, 0]), True),
        (np.array([]), False),
        ([], False), ("", False), ("x", True), (None, False), (torch.zeros(2), True),
        (torch.tensor(0), False), (0.5, True),
    ],
)  # fmt: skip
def test_a_value_without_a_comparison_is_true_or_not(value: Any, expected: bool) -> None:
    text = (
        "team: 1\nagents:\n  A: {prompt: x}\ndo:\n- {call: A, id: a}\n- {call: A, unless: "
        "{observation: k}}\nreturn: a\n"
    )
    unless: Any = Team.parse(text).spec.do[1]
    turn: Any = World(value)
    assert compile_condition(unless.unless)(TurnState(turn, {}, {})) is expected


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("{of: a, is: }", "unless.is: no reply is null"),
        ("{of: a, is: null}", "unless.is: no reply is null"),
        ("{of: a, in: [x, null]}", "unless.in: no reply is null"),
        ("{of: a, field: valid, is: null}", "no reply is null"),
        ("{of: null, is: x}", "unless.of: expected a text"), ("{of: null}", "unless.of: expected a text"),
        ("{observation: null}", "unless.observation: expected a text"),
        ("{observation: }", "expected a text"),
        ("{loop: null}", "expected a text"), ("{of: a, below: true}", "below: expected a number, found True"),
        ("{of: a, above: x}", "above: expected a number, found 'x'"),
        ("{of: a, above: null}", "above: expected a number"),
    ],
)  # fmt: skip
def test_a_condition_that_says_nothing_is_refused(condition: str, said: str) -> None:
    text = (
        "team: 1\nagents:\n  A: {prompt: x}\ndo:\n- {call: A, id: a}\n- {loop: 2, do: [{call: A, "
        "unless: %s}]}\nreturn: a\n"
    )
    with pytest.raises(AgentSystemError) as error:
        Team.parse(text % condition)
    assert said in str(error.value) and "\n" not in str(error.value)
