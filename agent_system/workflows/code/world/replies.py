"""Parsing of the Tester's tests. Their form in a reply:

    <input>
    3 4
    </input>
    <output>
    7
    </output>

For a function, the input holds one argument per line and the output the value, all as JSON. An
input without an output is not a test.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_system.json_text import parse_json
from agent_system.workflows.code.world.judge import python_key
from agent_system.workflows.code.world.problem import Case

Pair = tuple[str, str]

_TAG = re.compile(r"<(/?)(input|output)\s*>", re.IGNORECASE)
_ORDER = ("input", "/input", "output", "/output")


@dataclass(frozen=True)
class Suite:
    """The tests of a reply, one per input; inputs whose words or values are equal in Python count
    as one: `0 0` and `00 0.0`.

    Attributes:
        cases: tests whose input has one output; they are run.
        contradictory: number of inputs with several outputs; each counts as one wrong test.
        surplus: number of tests left out.
        unclear: the contradictory tests, each with its first output.
    """

    cases: tuple[Case, ...] = ()
    contradictory: int = 0
    surplus: int = 0
    unclear: tuple[Case, ...] = ()

    def __len__(self) -> int:
        """Number of tests that count."""
        return len(self.cases) + self.contradictory


def read_pairs(text: str) -> list[Pair]:
    """Return every `<input>...</input>` that is followed by a non-empty `<output>...</output>`, in
    order.
    """
    pairs: list[Pair] = []
    ends: list[re.Match[str]] = []
    for tag in _TAG.finditer(text):
        name = tag.group(1) + tag.group(2).lower()
        if name == "input":
            ends = []
        if len(ends) < 4 and name == _ORDER[len(ends)]:
            ends.append(tag)
        else:
            ends = []
        if len(ends) == 4:
            pairs.append((text[ends[0].end() : ends[1].start()], text[ends[2].end() : ends[3].start()]))
    return [(input_text, expected) for input_text, expected in pairs if expected.strip()]


def write_pairs(pairs: Sequence[Pair]) -> str:
    """Return the text that `read_pairs` reads."""
    return "\n".join(
        f"<input>{input_text}</input><output>{expected}</output>" for input_text, expected in pairs
    )


def read_tests(text: str, function: str, most: int) -> Suite:
    """Return the tests in an action of the Tester.

    Args:
        text: see `read_pairs`.
        function: the function to call; empty for stdin.
        most: maximum number of tests. Further tests are left out, and so is invalid JSON where JSON
            is required.
    """
    cases: dict[str, Case] = {}
    contradictory: set[str] = set()
    pairs = list(dict.fromkeys(read_pairs(text)))
    for input_text, expected in pairs:
        case = _read(input_text, expected, function)
        if case is None:
            continue
        key = _parsed(case.given, function)
        if key not in cases and len(cases) < most:
            cases[key] = case
        elif key in cases and _is_other(case, cases[key], function):
            contradictory.add(key)
    consistent, unclear = (
        tuple(case for key, case in cases.items() if (key in contradictory) is value)
        for value in (False, True)
    )
    return Suite(consistent, len(unclear), len(pairs) - len(cases), unclear)


def _is_other(case: Case, first: Case, function: str) -> bool:
    """Return whether two tests have the same input and different outputs. `00` and `0` are
    different inputs, since a program reads text.
    """
    same_input = _plain(case.given, function) == _plain(first.given, function)
    return same_input and _plain(case.expected, function) != _plain(first.expected, function)


def _parsed(test_input: Any, function: str) -> str:
    """Return the key of an input: equal where the values, or the words read as numbers, are equal
    in Python.
    """
    return python_key(test_input if function else [_number(word) for word in test_input.split()])


def _number(word: str) -> Any:
    """Return the finite number that Python parses from a word, or the word."""
    for read in (int, float):
        try:
            number = read(word)
        except ValueError:
            continue
        return number if math.isfinite(number) else word
    return word


def _plain(value: Any, function: str) -> str:
    """Return the words of a text separated by single spaces, or a value as JSON."""
    return json.dumps(value, sort_keys=True) if function else " ".join(value.split())


def _read(input_text: str, expected: str, function: str) -> Case | None:
    if not function:
        return Case(f"{input_text.strip()}\n", f"{expected.strip()}\n")
    try:
        return Case(
            [parse_json(line) for line in input_text.strip().split("\n") if line.strip()],
            parse_json(expected.strip()),
        )
    except ValueError:
        return None
