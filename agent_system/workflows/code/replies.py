"""The Tester's tests: how they stand in a reply, and what is made of them.

    <input>
    3 4
    </input>
    <output>
    7
    </output>

For a function, the input holds one argument a line and the output the value, all as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from agent_system.sandbox.result import parse_json
from agent_system.workflows.code.problem import Case

Pair = tuple[str, str]

_TAG = re.compile(r"<(/?)(input|output)\s*>", re.IGNORECASE)
_ORDER = ("input", "/input", "output", "/output")


def read_pairs(text: str) -> list[Pair]:
    """Return every `<input>...</input>` that is followed by an `<output>...</output>`, in order."""
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
    return pairs


def write_pairs(pairs: Sequence[Pair]) -> str:
    """The text that `read_pairs` reads."""
    return "\n".join(f"<input>{given}</input><output>{expected}</output>" for given, expected in pairs)


def read_cases(text: str, function: str, most: int) -> tuple[tuple[Case, ...], int]:
    """Return the tests in an action of the Tester, each once, and how many were left out.

    Args:
        text: see `read_pairs`.
        function: what the task calls; empty for stdin.
        most: tests that count. Left out are those beyond it and those that are no JSON where there must be JSON.
    """
    cases: dict[str, Case] = {}
    pairs = list(dict.fromkeys(read_pairs(text)))
    for given, expected in pairs:
        case = _read(given, expected, function)
        if case is not None and len(cases) < most:
            cases.setdefault(json.dumps([case.given, case.expected]), case)
    return tuple(cases.values()), len(pairs) - len(cases)


def _read(given: str, expected: str, function: str) -> Case | None:
    if not function:
        return Case(f"{given.strip()}\n", f"{expected.strip()}\n")
    try:
        return Case([parse_json(line) for line in given.strip().splitlines() if line.strip()], parse_json(expected.strip()))
    except ValueError:
        return None
