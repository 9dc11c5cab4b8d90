"""Create tasks, tokenizer, model and warm start of the roles of `lookup`, like
`examples.embedded.prepare` and with its options:

    python -m recipe.evolve.prepare --world evolve --out outputs/embedded --seed 0

The demonstrations teach the three roles with the error rates of `LookupSkills`, about `PRODUCTS` of the
products: with them, and a model that has learned them, the best team and the scores of others follow.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from agent_system.workflows.data import TaskSet
from agent_system.workflows.lookup.world.generate import CODE, SHELF, LookupTask, to_row
from agent_system.workflows.lookup.world.products import LETTERS, LookupProduct, products, shelf_rule
from agent_system.workflows.lookup.world.skills import LookupSkills
from benchmarks.shared.scripted_lookup import roles_team
from examples.embedded import prepare
from examples.embedded.course import Course, Messages, World
from verl.models.tiny import TinyModelSize

NAME = "evolve"
PROMPTS = {name: agent.prompt or "" for name, agent in roles_team().agents.items()}
# Shares of the demonstrations, by role.
SHARES = {"Solver": 0.45, "Checker": 0.51, "Filer": 0.04}
PRODUCTS = 192
SIZE = TinyModelSize(hidden_size=96, intermediate_size=288, num_layers=2, tie_embeddings=False)


@dataclass(frozen=True)
class EvolveCourse(Course):
    """See `Course`; `source`, a hash of this file, is part of the folder's name."""

    count: int = 96_000
    source: str = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def some_products(seed: int) -> list[LookupProduct]:
    """Return some of the products: as many as a tiny model can learn in minutes."""
    return random.Random(f"evolve-{seed}").sample(products(seed), PRODUCTS)


def all_tasks(num_train: int, num_test: int, seed: int) -> tuple[list[LookupTask], list[LookupTask]]:
    """Return all tasks about the products, whatever their number should be."""
    del num_train, num_test
    tasks = [LookupTask(item, asks) for item in some_products(seed) for asks in (CODE, SHELF)]
    random.Random(f"evolve-tasks-{seed}").shuffle(tasks)
    return [t for t in tasks if not t.product.held_out], [t for t in tasks if t.product.held_out]


def make_demos(course: Course, seed: int, exclude: Collection[str] = ()) -> list[Messages]:
    """Return conversations of all roles. `exclude` has no effect: the roles know every product, and which
    team is best is in no demonstration.
    """
    del exclude
    rng = random.Random(f"evolve-demos-{seed}")
    items = some_products(seed)
    rule = shelf_rule(seed)
    roles = rng.choices(list(SHARES), list(SHARES.values()), k=course.count)
    return [_demo(role, rng.choice(items), rule, rng) for role in roles]


def _demo(role: str, item: LookupProduct, rule: dict[str, str], rng: random.Random) -> Messages:
    skills = LookupSkills()
    question = LookupTask(item, rng.choice((CODE, SHELF))).prompt
    said = skills.code(item, rng)
    if role == "Solver":
        return _messages(role, question, "", said)
    if role == "Filer":
        said = rng.choice(LETTERS)
        return _messages(role, question, said, skills.shelf(said, rule, rng))
    if rng.random() < 0.5:
        said = item.code  # as often right as wrong
    return _messages(role, question, said, "right" if skills.is_approved(item, said, rng) else "wrong")


def _messages(role: str, question: str, said: str, reply: str) -> Messages:
    prompt = PROMPTS[role].format(env_prompt=question, team_context=f" {said}" if said else "")
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}]


WORLD = World(
    EvolveCourse(),
    TaskSet(all_tasks, to_row, key=lambda task: task.prompt),
    make_demos,
    borrows=("lookup",),
    size=SIZE,
)

if __name__ == "__main__":
    prepare.WORLDS[NAME] = WORLD
    prepare.main()
