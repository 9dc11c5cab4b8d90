"""Create tasks, tokenizer, model and warm start of the Designer, like `examples.embedded.prepare` and with its
options:

    python -m recipe.designer.prepare --world designer --out outputs/embedded --seed 0

The demonstrations teach the roles of the world `lookup` with the error rates of `LookupSkills`, about all
products, and the Designer valid designs, whatever is asked: it has the form, and no judgement.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from agent_system.workflows.data import TaskSet
from agent_system.workflows.graph import Team
from agent_system.workflows.lookup.world.generate import CODE, SHELF, LookupTask, to_row
from agent_system.workflows.lookup.world.products import LETTERS, LookupProduct, products, shelf_rule
from agent_system.workflows.lookup.world.skills import LookupSkills
from examples.embedded import prepare
from examples.embedded.course import Course, Messages, World
from recipe.designer.designs import draw
from verl.models.tiny import TinyModelSize

NAME = "designer"
HERE = Path(__file__).parent
SOURCES = ("prepare.py", "designs.py", "roles.yaml")
ROLES = Team.load(HERE / "roles.yaml").agents
PROMPT = "Design: {env_prompt}"
# Shares of the demonstrations, by role.
SHARES = {"Solver": 0.40, "Checker": 0.40, "Filer": 0.03, "Designer": 0.17}
PRODUCTS = 128


@dataclass(frozen=True)
class DesignerCourse(Course):
    """See `Course`; `source`, a hash of the files here, is part of the folder's name."""

    count: int = 80_000
    source: str = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in SOURCES)).hexdigest()


def some_products(seed: int) -> list[LookupProduct]:
    """Return 128 of the products: as many as a tiny model can learn in minutes."""
    return random.Random(f"designer-{seed}").sample(products(seed), PRODUCTS)


def all_tasks(num_train: int, num_test: int, seed: int) -> tuple[list[LookupTask], list[LookupTask]]:
    """Return all tasks about the products, whatever their number should be."""
    del num_train, num_test
    tasks = [LookupTask(item, asks) for item in some_products(seed) for asks in (CODE, SHELF)]
    random.Random(f"designer-tasks-{seed}").shuffle(tasks)
    return [t for t in tasks if not t.product.held_out], [t for t in tasks if t.product.held_out]


def make_demos(course: Course, seed: int, exclude: Collection[str] = ()) -> list[Messages]:
    """Return conversations of all roles. `exclude` has no effect: the roles know every product, and what a
    Designer should write is in no demonstration.
    """
    del exclude
    rng = random.Random(f"designer-demos-{seed}")
    items = some_products(seed)
    rule = shelf_rule(seed)
    roles = rng.choices(list(SHARES), list(SHARES.values()), k=course.count)
    return [_demo(role, rng.choice(items), rule, rng) for role in roles]


def _demo(role: str, item: LookupProduct, rule: dict[str, str], rng: random.Random) -> Messages:
    skills = LookupSkills()
    question = LookupTask(item, rng.choice((CODE, SHELF))).prompt
    said = skills.code(item, rng)
    if rng.random() < 0.5 and role == "Checker":
        said = item.code  # as often right as wrong
    if role == "Designer":
        return _messages(PROMPT.format(env_prompt=question), draw(rng))
    if role == "Filer":
        said = rng.choice(LETTERS)
        return _messages(_prompt(role, question, said), skills.shelf(said, rule, rng))
    if role == "Checker":
        verdict = "right" if skills.is_approved(item, said, rng) else "wrong"
        return _messages(_prompt(role, question, said), verdict)
    return _messages(_prompt(role, question, ""), said)


def _prompt(role: str, question: str, said: str) -> str:
    template = ROLES[role].prompt or ""
    return template.format(env_prompt=question, team_context=f" {said}" if said else "")


def _messages(prompt: str, reply: str) -> Messages:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}]


SIZE = TinyModelSize(hidden_size=96, intermediate_size=288, num_layers=2, tie_embeddings=False)
WORLD = World(
    DesignerCourse(),
    TaskSet(all_tasks, to_row, key=lambda task: task.prompt),
    make_demos,
    borrows=("lookup",),
    size=SIZE,
)

if __name__ == "__main__":
    prepare.WORLDS[NAME] = WORLD
    prepare.main()
