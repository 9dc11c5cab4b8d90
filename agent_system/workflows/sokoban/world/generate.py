"""Rooms made by a seed, solvable by construction: boxes start on the goals and are pulled away, as if the game ran backwards.

The moves back are a solution. A bounded search then finds the one with the fewest pushes and proves it; where it gives up, the way
back is the best that is known. `generate_split` makes training and test rooms that stay different when they are turned, mirrored,
or entered from another cell.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.data import TaskSet
from agent_system.workflows.sokoban.world.rules import OPPOSITE, Room, State, render, walk
from agent_system.workflows.sokoban.world.solver import Solution, least_pushes, pulls_from, reach, solve

DATA_SOURCE = "verl_mas/sokoban"
DRAWS_PER_ROOM = 20_000


@dataclass(frozen=True)
class Difficulty:
    """What rooms the generator makes.

    Attributes:
        size: width and height in cells, the ring of walls counted: 6 leaves 4x4 cells to move in.
        boxes: how many, and as many goals.
        min_pushes, max_pushes: bounds of the fewest pushes that solve a room.
        wall_share: chance of a wall in a cell inside the ring, 0 to 0.6.
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
            raise AgentSystemError(f"Sokoban boxes must be 1 to {cells // 4} in a room of size {self.size}, found {self.boxes}")
        if not 1 <= self.min_pushes <= self.max_pushes:
            raise AgentSystemError(f"Sokoban needs 1 <= min_pushes <= max_pushes, found {self.min_pushes} and {self.max_pushes}")
        if not 0.0 <= self.wall_share <= 0.6:
            raise AgentSystemError(f"Sokoban wall_share must be 0 to 0.6, found {self.wall_share:g}")


@dataclass(frozen=True)
class Puzzle:
    """A room, where it starts, and a way to solve it."""

    room: Room
    start: State
    solution: Solution

    @property
    def text(self) -> str:
        """The room as the tasks show it."""
        return render(self.room, self.start)

    @property
    def key(self) -> str:
        """The same for rooms that differ by a turn, a mirror or the player's cell only."""
        return puzzle_key(self.room, self.start)


def puzzle_key(room: Room, state: State) -> str:
    """Return the smallest text of walls, goals and boxes over the eight symmetries of the square."""
    boxes_and_goals = render(room, State(-1, state.boxes)).splitlines()
    looks = []
    rows = boxes_and_goals
    for _ in range(4):
        rows = ["".join(column) for column in zip(*reversed(rows), strict=True)]
        looks += ["\n".join(rows), "\n".join(row[::-1] for row in rows)]
    return min(looks)


def draw_room(rng: random.Random, difficulty: Difficulty) -> Room | None:
    """Draw walls and goals; cells cut off from the largest connected part become walls. None when too few cells are left."""
    size = difficulty.size
    inside = [row * size + column for row in range(1, size - 1) for column in range(1, size - 1)]
    open_cells = {cell for cell in inside if rng.random() >= difficulty.wall_share}
    floor = max(_parts(open_cells, size), key=len, default=set())
    if len(floor) < 2 * difficulty.boxes + 2:
        return None
    goals = frozenset(rng.sample(sorted(floor), difficulty.boxes))
    return Room(size, size, frozenset(range(size * size)) - floor, goals)


def _parts(cells: set[int], width: int) -> list[set[int]]:
    left, parts = set(cells), []
    while left:
        part, edge = set(), [min(left)]
        left.discard(edge[0])
        while edge:
            cell = edge.pop()
            part.add(cell)
            near = {cell - 1, cell + 1, cell - width, cell + width} & left
            left -= near
            edge += sorted(near)
        parts.append(part)
    return parts


def play_back(rng: random.Random, room: Room, difficulty: Difficulty) -> tuple[State, str] | None:
    """Pull boxes off the goals at random; return a state on the way and the moves that solve the room from there.

    It is one that surely needs `min_pushes`, drawn from those on the way, else the one with the highest lower bound; the player may
    stand wherever it can walk to. None when no state has every box off the goals.
    """
    state, moves = State(rng.choice(sorted(room.floor - room.goals)), room.goals), ""
    passed: list[tuple[int, State, str]] = []
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
    _, chosen, way_back = rng.choice([one for one in passed if one[0] >= min(difficulty.min_pushes, farthest)])
    paths = reach(room, chosen)
    cell = rng.choice(sorted(paths))
    return State(cell, chosen.boxes), "".join(OPPOSITE[letter] for letter in reversed(paths[cell])) + way_back


def draw_puzzle(rng: random.Random, difficulty: Difficulty) -> Puzzle | None:
    """Draw one room; None when it is not of this difficulty."""
    room = draw_room(rng, difficulty)
    drawn = None if room is None else play_back(rng, room, difficulty)
    if room is None or drawn is None:
        return None
    start, way_back = drawn
    found = solve(room, start).solution
    solution = found or Solution(way_back, walk(room, start, way_back).pushes, optimal=False)
    return Puzzle(room, start, solution) if difficulty.min_pushes <= solution.pushes <= difficulty.max_pushes else None


def generate(count: int, seed: int, difficulty: Difficulty, *, exclude: frozenset[str] = frozenset()) -> list[Puzzle]:
    """Return `count` different rooms, none with a key in `exclude`; a function of its arguments alone.

    Raises:
        AgentSystemError: rooms of this difficulty are too rare, or there are not so many.
    """
    rng = random.Random(f"sokoban-{seed}")
    seen: set[str] = set()
    puzzles: list[Puzzle] = []
    misses = 0
    while len(puzzles) < count:
        puzzle = draw_puzzle(rng, difficulty)
        if puzzle is None or puzzle.text in seen or (exclude and puzzle.key in exclude):
            misses += 1
            if misses > DRAWS_PER_ROOM:
                raise AgentSystemError(
                    f"found {len(puzzles)} of {count} Sokoban rooms and then none in {DRAWS_PER_ROOM} draws of {difficulty}; "
                    "ask for fewer rooms, fewer pushes, another wall_share or a larger size"
                )
            continue
        misses = 0
        seen.add(puzzle.text)
        puzzles.append(puzzle)
    return puzzles


def generate_split(num_train: int, num_test: int, seed: int, difficulty: Difficulty) -> tuple[list[Puzzle], list[Puzzle]]:
    """Return (train, test) rooms; no key is in both."""
    test = generate(num_test, 2 * seed + 1, difficulty)
    train = generate(num_train, 2 * seed, difficulty, exclude=frozenset(puzzle.key for puzzle in test))
    return train, test


def to_row(puzzle: Puzzle, index: int, split: str) -> dict[str, Any]:
    """Return the room as a row of verl's schema; a solution and its pushes are under `extra_info`."""
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


TASKS = TaskSet(generate_split, to_row, key=lambda puzzle: puzzle.key, difficulty=Difficulty)
