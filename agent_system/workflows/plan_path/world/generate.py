"""Maps generated from a seed, each solvable, with the length of its shortest path; training and
test sets are disjoint.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.data import TaskSet, draw_distinct
from agent_system.workflows.plan_path.world.grid import LARGEST_SIDE, GridMap, distances_to, make_map

DATA_SOURCE = "verl_mas/plan_path"
MOST_DRAWS = 10_000


@dataclass(frozen=True)
class PlanPathDifficulty:
    """Difficulty of generated maps.

    Attributes:
        size: rows and columns.
        wall_share: share of cells that are walls.
        min_path, max_path: bounds of the shortest path from start to goal, in moves.
    """

    size: int = 10
    wall_share: float = 0.2
    min_path: int = 7
    max_path: int = 18

    def __post_init__(self) -> None:
        if not 2 <= self.size <= LARGEST_SIDE:
            raise AgentSystemError(f"size must be 2 to {LARGEST_SIDE}, found {self.size}")
        if not 0 <= self.wall_share <= 0.6:
            raise AgentSystemError(
                f"wall_share must be 0 to 0.6 (denser maps have hardly any path), found {self.wall_share}"
            )
        if not 1 <= self.min_path <= self.max_path or self.min_path >= self.size**2:
            raise AgentSystemError(
                "needs 1 <= min_path <= max_path and min_path below the number of cells "
                f"({self.size**2}), found min_path {self.min_path} and max_path {self.max_path}"
            )


def draw_map(rng: random.Random, difficulty: PlanPathDifficulty) -> GridMap:
    """Draw one map.

    Raises:
        AgentSystemError: 10,000 draws gave no map of this difficulty.
    """
    size = difficulty.size
    cells = range(size * size)
    for _ in range(MOST_DRAWS):
        walls = frozenset(rng.sample(cells, round(difficulty.wall_share * len(cells))))
        start = rng.choice([cell for cell in cells if cell not in walls])
        distances = distances_to(size, size, walls, start)
        goals = [cell for cell in cells if difficulty.min_path <= distances[cell] <= difficulty.max_path]
        if goals:
            return make_map(size, size, walls, start, rng.choice(goals))
    raise AgentSystemError(
        f"no map in {MOST_DRAWS} draws has {difficulty}; lower min_path or wall_share, or raise size"
    )


def generate(
    count: int, seed: int, difficulty: PlanPathDifficulty | None = None, *, exclude: Collection[str] = ()
) -> list[GridMap]:
    """Return `count` distinct maps whose texts are not in `exclude`; deterministic in its
    arguments.

    Raises:
        AgentSystemError: there are too few different maps of this difficulty.
    """
    difficulty = difficulty or PlanPathDifficulty()
    rng = random.Random(f"plan-path-{seed}")
    return draw_distinct(
        count,
        lambda: draw_map(rng, difficulty),
        lambda grid: grid.text,
        exclude,
        MOST_DRAWS,
        lambda number: (
            f"found only {number} of {count} different maps with {difficulty}; raise size or ask for fewer"
        ),
    )


def generate_split(
    num_train: int, num_test: int, seed: int, difficulty: PlanPathDifficulty | None = None
) -> tuple[list[GridMap], list[GridMap]]:
    """Return (train, test) maps without overlap. The test maps do not depend on `num_train`."""
    test = generate(num_test, 2 * seed + 1, difficulty)
    return generate(num_train, 2 * seed, difficulty, exclude={grid.text for grid in test}), test


def to_row(grid: GridMap, index: int, split: str) -> dict[str, Any]:
    """Return the map as a row of verl's schema; the ground truth is the length of the shortest
    path.
    """
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": grid.text}],
        "ability": "planning",
        "reward_model": {"style": "rule", "ground_truth": str(grid.shortest)},
        "extra_info": {"split": split, "index": index, "map": grid.text, "shortest": grid.shortest},
    }


TASKS = TaskSet(generate_split, to_row, key=lambda grid: grid.text, difficulty=PlanPathDifficulty)
