"""The designs of the warm start: a core that finds a code, and what is done with the Filer."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import product
from typing import Any

SOLVE = {"call": "Solver", "id": "c"}
CHECK = [{"call": "Checker", "id": "v", "sees": ["c"]}, {"stop": {"of": "v", "is": "right"}}]
FILE = {"call": "Filer", "id": "f", "sees": ["c"]}
# Steps for the Filer, and what the team returns.
ENDINGS: dict[str, tuple[list[Any], Any]] = {
    "code": ([], "c"),
    "shelf": ([FILE], "f"),
    "both": ([{"if": {"observation": "asks", "is": "shelf"}, "do": [FILE]}], ["f", "c"]),
}


def vote(n: int) -> dict[str, Any]:
    """Return a vote of `n` Solvers."""
    return {"vote": "Solver", "n": n, "id": "c"}


def cores() -> dict[str, list[Any]]:
    """Return the steps that find a code, by name."""
    tries = {"alone": [SOLVE]} | {f"vote {n}": [vote(n)] for n in (3, 5, 9)}
    loops = {
        f"{rounds} x {name}, checked": [{"loop": rounds, "do": [*tries[name], *CHECK]}]
        for rounds, name in product((2, 3, 5, 8), ("alone", "vote 3"))
    }
    return tries | loops


def designs() -> Iterator[tuple[str, str, str]]:
    """Yield core, ending and text of every design."""
    for (core, steps), (ending, (more, returned)) in product(cores().items(), ENDINGS.items()):
        yield core, ending, write([*steps, *more], returned)


def write(steps: list[Any], returned: Any) -> str:
    """Return a design as the Designer writes it."""
    return json.dumps({"do": steps, "return": returned}, separators=(",", ":"))


ALL = tuple(designs())


def draw(rng: random.Random) -> str:
    """Return a random design."""
    return rng.choice(ALL)[2]
