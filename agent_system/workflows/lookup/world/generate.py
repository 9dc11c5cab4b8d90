"""Tasks: the code and the shelf of every product, 768 for training and 256 of the products that are
held out.

Rows follow verl's schema; `extra_info` has what is asked and the product's code, for the metrics.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.data import TaskSet
from agent_system.workflows.lookup.world.products import LookupProduct, products

DATA_SOURCE = "verl_mas/lookup"
CODE, SHELF = "code", "shelf"


@dataclass(frozen=True)
class LookupTask:
    """A question about a product: its code or its shelf."""

    product: LookupProduct
    asks: str

    @property
    def prompt(self) -> str:
        """The question, such as `red kiwi shelf`."""
        return f"{self.product.name} {self.asks}"

    @property
    def answer(self) -> str:
        """The letter."""
        return self.product.code if self.asks == CODE else self.product.shelf


def generate_split(num_train: int, num_test: int, seed: int) -> tuple[list[LookupTask], list[LookupTask]]:
    """Return different tasks in random order. Raise AgentSystemError for more than there are."""
    splits = []
    for name, count, held_out in (("train", num_train, False), ("test", num_test, True)):
        tasks = [
            LookupTask(p, asks) for p in products(seed) if p.held_out == held_out for asks in (CODE, SHELF)
        ]
        if count > len(tasks):
            raise AgentSystemError(
                f"lookup has {len(tasks)} different {name} tasks, not {count}: --train 768 --test 256"
            )
        splits.append(random.Random(f"lookup-tasks-{seed}").sample(tasks, len(tasks))[:count])
    return splits[0], splits[1]


def to_row(task: LookupTask, index: int, split: str) -> dict[str, Any]:
    """Return a task as a row of verl's schema."""
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": task.prompt}],
        "ability": "memory",
        "reward_model": {"style": "rule", "ground_truth": task.answer},
        "extra_info": {"split": split, "index": index, "asks": task.asks, "code": task.product.code},
    }


TASKS = TaskSet(generate_split, to_row, key=lambda task: task.prompt)
