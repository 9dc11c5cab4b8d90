"""Rooms generated from a seed, solvable by construction: boxes start on the goals and are pulled
away (reverse play).

The reversed moves are a solution. A bounded search then finds a solution with the fewest pushes and
proves it; where the search reaches its limit, the reversed moves are the best known solution.
Training and test rooms of `generate_split` differ also up to rotation, reflection and the player's
start cell.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.data import TaskSet, draw_distinct
from agent_system.workflows.sokoban.world.rules import OPPOSITE, Room, SokobanState, render, walk
from agent_system.workflows.sokoban.world.solver import Solution, least_pushes, pulls_from, reachable, solve

DATA_SOURCE = "verl_mas/sokoban"
DRAWS_PER_ROOM = 20_000


@dataclass(frozen=True)
class SokobanDifficulty:
    """Difficulty of generated rooms.

    Attributes:
        size: width and height in cells, including the ring of walls: 6 leaves 4x4 cells to move in.
        boxes: number of boxes, and of goals.
        min_pushes, max_pushes: bounds of the fewest pushes that solve a room.
        wall_share: probability of a wall in a cell inside the ring, 0 to 0.6.
    """

    size: int = 6
    boxes: int = 1
    min_pushes: int = 2
    max_pushes: int = 30
    wall_share: float = 0.1

    def __post_init__(self) -> None:
        cells = (self.size - 2) ** 2
        if not 5 <= self.size <= 12:
            raise AgentSystemError(f"Sokoban size must be 5 to 12, found {self.size}")
        if not 1 <= self.boxes <= cells // 4:
            raise AgentSystemError(
                f"Sokoban boxes must be 1 to {cells // 4} in a room of size {self.size}, found {self.boxes}"
            )
        if not 1 <= self.min_pushes <= self.max_pushes:
            raise AgentSystemError(
                f"Sokoban needs 1 <= min_pushes <= max_pushes, found {self.min_pushes} and {self.max_pushes}"
            )
        if not 0.0 <= self.wall_share <= 0.6:
            raise AgentSystemError(f"Sokoban wall_share must be 0 to 0.6, found {self.wall_share:g}")


@dataclass(frozen=True)
class SokobanPuzzle:
    """A room, its initial state and a solution."""

    room: Room
    start: SokobanState
    solution: Solution

    @property
    def text(self) -> str:
        """The room as text, as in the tasks."""
        return render(self.room, self.start)

    @property
    def key(self) -> str:
        """Key that is equal for rooms that differ by a rotation, a reflection or the player's cell
        only.
        """
        return puzzle_key(self.room, self.start)


def puzzle_key(room: Room, state: SokobanState) -> str:
    """Return the lexicographically smallest text of walls, goals and boxes over the eight
    symmetries of the square.
    """
    rows = render(room, SokobanState(-1, state.boxes)).splitlines()
    texts = []
    for _ in range(4):
        rows = ["".join(column) for column in zip(*reversed(rows), strict=True)]
        texts += ["\n".join(rows), "\n".join(row[::-1] for row in rows)]
    return min(texts)


def draw_room(rng: random.Random, difficulty: SokobanDifficulty) -> Room | None:
    """Draw walls and goals; cells outside the largest connected component become walls. Return None
    when too few cells are left.
    """
    size = difficulty.size
    inside = [row * size + column for row in range(1, size - 1) for column in range(1, size - 1)]
    open_cells = {cell for cell in inside if rng.random() >= difficulty.wall_share}
    floor = max(_components(open_cells, size), key=len, default=set())
    if len(floor) < 2 * difficulty.boxes + 2:
        return None
    goals = frozenset(rng.sample(sorted(floor), difficulty.boxes))
    return Room(size, size, frozenset(range(size * size)) - floor, goals)


def _components(cells: set[int], width: int) -> list[set[int]]:
    left = set(cells)
    components = []
    while left:
        component = set()
        edge = [min(left)]
        left.discard(edge[0])
        while edge:
            cell = edge.pop()
            component.add(cell)
            near = {cell - 1, cell + 1, cell - width, cell + width} & left
            left -= near
            edge += sorted(near)
        components.append(component)
    return components


def reverse_play(
    rng: random.Random, room: Room, difficulty: SokobanDifficulty
) -> tuple[SokobanState, str] | None:
    """Pull boxes off the goals at random; return a state that was passed and the moves that solve
    the room from there.

    The state is drawn from those whose lower bound reaches `min_pushes`, or else from those with
    the highest lower bound; the player's cell is drawn from those that it can walk to. Return None
    when no state has every box off the goals.
    """
    state = SokobanState(rng.choice(sorted(room.floor - room.goals)), room.goals)
    moves = ""
    passed: list[tuple[int, SokobanState, str]] = []
    for _ in range(rng.randint(difficulty.min_pushes, difficulty.max_pushes)):
        pulls = pulls_from(room, state)
        if not pulls:
            break
        path, state = rng.choice(pulls)
        moves = path + moves
        if not state.boxes & room.goals:
            passed.append((least_pushes(room, state.boxes), state, moves))
    if not passed:
        return None
    farthest = max(bound for bound, *_ in passed)
    _, passed_state, solution = rng.choice(
        [one for one in passed if one[0] >= min(difficulty.min_pushes, farthest)]
    )
    paths = reachable(room, passed_state)
    cell = rng.choice(sorted(paths))
    return SokobanState(cell, passed_state.boxes), "".join(
        OPPOSITE[letter] for letter in reversed(paths[cell])
    ) + solution


def draw_puzzle(rng: random.Random, difficulty: SokobanDifficulty) -> SokobanPuzzle | None:
    """Draw one room; return None when it is not of this difficulty."""
    room = draw_room(rng, difficulty)
    start_and_moves = None if room is None else reverse_play(rng, room, difficulty)
    if room is None or start_and_moves is None:
        return None
    start, reversed_moves = start_and_moves
    solver_solution = solve(room, start).solution
    solution = solver_solution or Solution(
        reversed_moves, walk(room, start, reversed_moves).pushes, optimal=False
    )
    return (
        SokobanPuzzle(room, start, solution)
        if difficulty.min_pushes <= solution.pushes <= difficulty.max_pushes
        else None
    )


def generate(
    count: int, seed: int, difficulty: SokobanDifficulty, *, exclude: frozenset[str] = frozenset()
) -> list[SokobanPuzzle]:
    """Return `count` different rooms whose keys are not in `exclude`; deterministic in its
    arguments.

    Raises:
        AgentSystemError: there are too few rooms of this difficulty, or they are too rare.
    """
    rng = random.Random(f"sokoban-{seed}")

    def draw() -> SokobanPuzzle | None:
        puzzle = draw_puzzle(rng, difficulty)
        # a key of a room takes long, so that without `exclude` it is not computed
        return None if puzzle is None or (exclude and puzzle.key in exclude) else puzzle

    return draw_distinct(
        count,
        draw,
        lambda puzzle: puzzle.text,
        (),
        DRAWS_PER_ROOM,
        lambda number: (
            f"found {number} of {count} Sokoban rooms and then none in {DRAWS_PER_ROOM} draws of "
            f"{difficulty}; ask for fewer rooms, fewer pushes, another wall_share or a larger size"
        ),
    )


def generate_split(
    num_train: int, num_test: int, seed: int, difficulty: SokobanDifficulty
) -> tuple[list[SokobanPuzzle], list[SokobanPuzzle]]:
    """Return (train, test) rooms without a common key."""
    test = generate(num_test, 2 * seed + 1, difficulty)
    train = generate(num_train, 2 * seed, difficulty, exclude=frozenset(puzzle.key for puzzle in test))
    return train, test


def to_row(puzzle: SokobanPuzzle, index: int, split: str) -> dict[str, Any]:
    """Return the room as a row of verl's schema; `extra_info` holds a solution and its number of
    pushes.
    """
    solution = puzzle.solution
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": puzzle.text}],
        "ability": "planning",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {
            "split": split,
            "index": index,
            "boxes": len(puzzle.start.boxes),
            "solution": solution.moves,
            "pushes": solution.pushes,
            "optimal": solution.optimal,
        },
    }


TASKS = TaskSet(generate_split, to_row, key=lambda puzzle: puzzle.key, difficulty=SokobanDifficulty)
