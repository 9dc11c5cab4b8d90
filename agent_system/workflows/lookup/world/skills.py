"""What roles of given skills say: labels for a warm start, or the replies of a scripted team."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from agent_system.workflows.lookup.world.products import LETTERS, LookupProduct


@dataclass(frozen=True)
class LookupSkills:
    """How often roles are right.

    Attributes:
        solver: the Solver, about the code of a usual product; its wrong letters are spread.
        solver_trap: about the code of a trap product.
        trapped: how often it says the trap product's wrong letter.
        checker: the Checker, about the Solver's letter.
        filer: the Filer, about the shelf of the letter that it is given.
    """

    solver: float = 0.55
    solver_trap: float = 0.30
    trapped: float = 0.60
    checker: float = 0.95
    filer: float = 0.97

    def code(self, product: LookupProduct, rng: random.Random) -> str:
        """Return the letter that the Solver says."""
        draw = rng.random()
        if draw < (self.solver_trap if product.trap else self.solver):
            return product.code
        if product.trap and draw < self.solver_trap + self.trapped:
            return product.trap
        return rng.choice([letter for letter in LETTERS if letter not in (product.code, product.trap)])

    def is_approved(self, product: LookupProduct, letter: str, rng: random.Random) -> bool:
        """Return whether the Checker approves a letter."""
        return (letter == product.code) == (rng.random() < self.checker)

    def shelf(self, letter: str, rule: Mapping[str, str], rng: random.Random) -> str:
        """Return the shelf that the Filer says for a code."""
        right = rule.get(letter, "")
        if right and rng.random() < self.filer:
            return right
        return rng.choice([other for other in LETTERS if other != right])
