"""The products: an arbitrary code each, a shelf by a rule on the code, and for some a wrong letter."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product

LETTERS = "ABCDEFGH"
COLOURS = (
    "red", "blue", "green", "black", "white", "pink", "gold", "grey", "brown", "amber", "ivory", "coral",
    "navy", "teal", "lime", "plum",
)  # fmt: skip
KINDS = (
    "kiwi", "pear", "fig", "lemon", "mango", "apple", "grape", "melon", "peach", "date", "onion", "leek",
    "bean", "corn", "rice", "oat", "bread", "cake", "milk", "tea", "salt", "soap", "rope", "nail", "lamp",
    "desk", "chair", "glove", "boot", "hat", "coat", "book",
)  # fmt: skip
TRAPS = 0.4
HELD_OUT = 128


@dataclass(frozen=True)
class LookupProduct:
    """A product.

    Attributes:
        name: colour and kind.
        code: a letter.
        shelf: a letter that follows from the code, never the same.
        trap: the wrong letter that is taken for the code of a trap product; empty for others.
        held_out: its tasks are for tests.
    """

    name: str
    code: str
    shelf: str
    trap: str
    held_out: bool


def shelf_rule(seed: int) -> dict[str, str]:
    """Return the shelf of each code: the next letter in a ring of all letters."""
    ring = random.Random(f"lookup-shelves-{seed}").sample(LETTERS, len(LETTERS))
    return dict(zip(ring, [*ring[1:], ring[0]], strict=True))


def products(seed: int) -> list[LookupProduct]:
    """Return all 512 products. Every letter is the code of 64; 40 % are trap products, and 128 are
    held out.
    """
    rng = random.Random(f"lookup-{seed}")
    names = [f"{colour} {kind}" for colour, kind in product(COLOURS, KINDS)]
    codes = rng.sample(LETTERS * (len(names) // len(LETTERS)), len(names))
    traps = frozenset(rng.sample(range(len(names)), round(TRAPS * len(names))))
    held_out = frozenset(rng.sample(range(len(names)), HELD_OUT))
    shelves = shelf_rule(seed)
    return [
        LookupProduct(
            name,
            code,
            shelves[code],
            rng.choice(LETTERS.replace(code, "")) if number in traps else "",
            number in held_out,
        )
        for number, (name, code) in enumerate(zip(names, codes, strict=True))
    ]
