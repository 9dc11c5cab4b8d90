"""The Tester's tests: how they stand in a reply, and what is made of them.

    <input>
    3 4
    </input>
    <output>
    7
    </output>

For a function, the input holds one argument a line and the output the value, all as JSON. A test has an output: without one nothing is
said.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_system.sandbox.result import parse_json
from agent_system.workflows.code.world.judge import python_key
from agent_system.workflows.code.world.problem import Case

Pair = tuple[str, str]

_TAG = re.compile(r"<(/?)(input|output)\s*>", re.IGNORECASE)
_ORDER = ("input", "/input", "output", "/output")


@dataclass(frozen=True)
class Suite:
    """The tests of a reply, one for each input; inputs whose words or values Python calls equal are one: `0 0` and `00 0.0`.

    Attributes:
        cases: those with one output, which are run.
        contradictory: inputs that stand there with several outputs; each counts as one wrong test.
        surplus: what else was written and is left out.
        unclear: the contradictory ones, each with the first of its outputs.
    """

    cases: tuple[Case, ...] = ()
    contradictory: int = 0
    surplus: int = 0
    unclear: tuple[Case, ...] = ()

    def __len__(self) -> int:
        """How many tests count."""
        return len(self.cases) + self.contradictory


def read_pairs(text: str) -> list[Pair]:
    """Return every `<input>...</input>` that is followed by an `<output>...</output>` that is not empty, in order."""
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
    return [(given, expected) for given, expected in pairs if expected.strip()]


def write_pairs(pairs: Sequence[Pair]) -> str:
    """The text that `read_pairs` reads."""
    return "\n".join(f"<input>{given}</input><output>{expected}</output>" for given, expected in pairs)


def read_tests(text: str, function: str, most: int) -> Suite:
    """Return the tests in an action of the Tester.

    Args:
        text: see `read_pairs`.
        function: what the task calls; empty for stdin.
        most: tests that count. Left out are those beyond it and those that are no JSON where there must be JSON.
    """
    cases: dict[str, Case] = {}
    contradictory: set[str] = set()
    pairs = list(dict.fromkeys(read_pairs(text)))
    for given, expected in pairs:
        case = _read(given, expected, function)
        if case is None:
            continue
        key = _parsed(case.given, function)
        if key not in cases and len(cases) < most:
            cases[key] = case
        elif key in cases and _is_other(case, cases[key], function):
            contradictory.add(key)
    certain, unclear = (tuple(case for key, case in cases.items() if (key in contradictory) is said) for said in (False, True))
    return Suite(certain, len(unclear), len(pairs) - len(cases), unclear)


def _is_other(case: Case, first: Case, function: str) -> bool:
    """Whether a test says of the same input that another output is right. `00` and `0` may be different texts to the program."""
    same_input = _plain(case.given, function) == _plain(first.given, function)
    return same_input and _plain(case.expected, function) != _plain(first.expected, function)


def _parsed(given: Any, function: str) -> str:
    """What tells inputs apart: a text that is the same where Python calls the values, or the words read as numbers, equal."""
    return python_key(given if function else [_number(word) for word in given.split()])


def _number(word: str) -> Any:
    """The number that Python reads in a word, or the word."""
    for read in (int, float):
        try:
            number = read(word)
        except ValueError:
            continue
        return number if math.isfinite(number) else word
    return word


def _plain(value: Any, function: str) -> str:
    """The words of text, or a value as JSON."""
    return json.dumps(value, sort_keys=True) if function else " ".join(value.split())


def _read(given: str, expected: str, function: str) -> Case | None:
    if not function:
        return Case(f"{given.strip()}\n", f"{expected.strip()}\n")
    try:
        return Case([parse_json(line) for line in given.strip().splitlines() if line.strip()], parse_json(expected.strip()))
    except ValueError:
        return None
