"""Create tasks, tokenizer, model and warm start of the depot, like `examples.embedded.prepare` and with its
options:

    python -m recipe.skills.prepare --world depot --out outputs/embedded --seed 0

The demonstrations teach the form of the replies: every role answers every letter equally often, so the base
has neither skill.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from agent_system.workflows.data import TaskSet
from examples.embedded import prepare
from examples.embedded.course import Course, Messages, World, conversation
from recipe.skills.team import CODER, FILER, LETTERS, NAME, Coder, Filer
from verl.models.tiny import TinyModelSize

COLOURS = ("red", "blue", "green", "black", "white", "pink", "gold", "grey")
KINDS = ("kiwi", "plum", "pear", "fig", "lemon", "mango", "apple", "grape")
SOURCES = ("prepare.py", "team.py")


@dataclass(frozen=True)
class Product:
    """A product with the letters of its code and its shelf."""

    name: str
    code: str
    shelf: str


def products(seed: int) -> list[Product]:
    """Return all 64 products. Every letter is the code of eight of them, chosen at random, and the shelf of
    one colour.
    """
    rng = random.Random(f"depot-{seed}")
    names = list(product(COLOURS, KINDS))
    codes = rng.sample(LETTERS * (len(names) // len(LETTERS)), len(names))
    shelves = dict(zip(COLOURS, rng.sample(LETTERS, len(LETTERS)), strict=True))
    return [
        Product(f"{colour} {kind}", code, shelves[colour])
        for (colour, kind), code in zip(names, codes, strict=True)
    ]


def generate_split(num_train: int, num_test: int, seed: int) -> tuple[list[Product], list[Product]]:
    """Return all products twice, for training and for validation: a table has no unseen entries that could be
    answered.
    """
    del num_train, num_test
    return products(seed), products(seed)


def to_row(item: Product, index: int, split: str) -> dict[str, Any]:
    """Return the product as a row of verl's schema."""
    return {
        "data_source": f"verl_mas/{NAME}",
        "prompt": [{"role": "user", "content": item.name}],
        "ability": "memory",
        "reward_model": {"style": "rule", "ground_truth": item.code + item.shelf},
        "extra_info": {"split": split, "index": index},
    }


def make_demos(course: Course, seed: int, exclude: Collection[str] = ()) -> list[Messages]:
    """Return conversations with random products, roles and letters. `exclude` has no effect, because no
    demonstration shows an answer.
    """
    del exclude
    rng = random.Random(f"demos-{seed}")
    agents, items = (Coder(CODER), Filer(FILER)), products(seed)
    pairs = ((rng.choice(agents), rng.choice(items)) for _ in range(course.count))
    return [conversation(agent, item.name, f"{agent.word} {rng.choice(LETTERS)}") for agent, item in pairs]


@dataclass(frozen=True)
class DepotCourse(Course):
    """See `Course`; `source`, a hash of the files here, is part of the folder's name, so that a change of
    them creates a new one.
    """

    count: int = 9_600
    source: str = hashlib.sha256(
        b"".join(Path(__file__).with_name(name).read_bytes() for name in SOURCES)
    ).hexdigest()


# Large initial weights: with small ones the frozen head of an adapter's base bounds the probability of a
# letter, whatever the rank.
SIZE = TinyModelSize(
    hidden_size=32,
    intermediate_size=64,
    num_layers=1,
    num_heads=2,
    weight_std=0.25,
    tie_embeddings=False,
    embedding_std=0.2,
)
WORLD = World(
    DepotCourse(), TaskSet(generate_split, to_row, key=lambda item: item.name), make_demos, size=SIZE
)

if __name__ == "__main__":
    prepare.WORLDS[NAME] = WORLD
    prepare.main()
