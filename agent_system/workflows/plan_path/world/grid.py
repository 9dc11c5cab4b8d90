"""A map: walls, a start, a goal, and the distance of every cell to the goal. Pure, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from agent_system.errors import AgentSystemError

FREE, WALL, START, GOAL = ".", "#", "S", "G"
MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
UNREACHABLE = -1
LARGEST_SIDE = 64


@dataclass(frozen=True, slots=True)
class GridMap:
    """An immutable map; cells are numbered row by row from 0 at the top left.

    Attributes:
        height, width: in cells.
        walls: cells that cannot be entered.
        start, goal: cells.
        distances: [height * width], length of the shortest path from each cell to the goal; -1 for
            walls and unreachable cells.
    """

    height: int
    width: int
    walls: frozenset[int]
    start: int
    goal: int
    distances: tuple[int, ...]

    @property
    def shortest(self) -> int:
        """Moves from start to goal; -1 when there is no path."""
        return self.distances[self.start]

    @property
    def text(self) -> str:
        """Rows of `.#SG`, which `parse_map` reads; equal texts are equal maps."""
        cells = [WALL if cell in self.walls else FREE for cell in range(self.height * self.width)]
        cells[self.start], cells[self.goal] = START, GOAL
        return "\n".join(
            "".join(cells[row * self.width : (row + 1) * self.width]) for row in range(self.height)
        )

    def place(self, cell: int) -> tuple[int, int]:
        """Return (row, column)."""
        return divmod(cell, self.width)

    def after(self, cell: int, move: str) -> int | None:
        """Return the cell after `move`, or None for a wall or the edge."""
        return _neighbour(self.height, self.width, self.walls, cell, move)

    def way_to_goal(self, cell: int) -> tuple[int, int]:
        """Return the offset of the goal from `cell`: (rows down, columns right)."""
        (row, column), (goal_row, goal_column) = self.place(cell), self.place(self.goal)
        return goal_row - row, goal_column - column

    def shortest_moves(self, cell: int) -> str:
        """Return a shortest path to the goal, with ties broken in the order U D L R; empty at the
        goal or when there is no path.
        """
        moves = []
        while self.distances[cell] > 0:
            for move in MOVES:
                there = self.after(cell, move)
                if there is not None and self.distances[there] == self.distances[cell] - 1:
                    moves.append(move)
                    cell = there
                    break
        return "".join(moves)


def make_map(height: int, width: int, walls: frozenset[int], start: int, goal: int) -> GridMap:
    """Return the map with its distances (breadth-first search from the goal)."""
    return GridMap(height, width, walls, start, goal, distances_to(height, width, walls, goal))


def distances_to(height: int, width: int, walls: frozenset[int], target: int) -> tuple[int, ...]:
    """Return the distance from every cell to `target` in moves, [height * width]; -1 where there is
    no path.
    """
    distances = [UNREACHABLE] * (height * width)
    distances[target] = 0
    waiting = deque([target])
    while waiting:
        cell = waiting.popleft()
        for there in _neighbours(height, width, walls, cell):
            if distances[there] == UNREACHABLE:
                distances[there] = distances[cell] + 1
                waiting.append(there)
    return tuple(distances)


def parse_map(text: str) -> GridMap:
    """Parse rows of `.` (free), `#` (wall), `S` (start) and `G` (goal).

    Raises:
        AgentSystemError: rows of different lengths, other characters, not exactly one start and one
            goal, more than 64 rows or columns, or an unreachable goal.
    """
    rows = [row.strip() for row in text.strip().splitlines()]
    width = len(rows[0]) if rows else 0
    if (
        not 1 <= len(rows) <= LARGEST_SIDE
        or not 1 <= width <= LARGEST_SIDE
        or any(len(row) != width for row in rows)
    ):
        raise AgentSystemError(
            f"a map needs 1 to {LARGEST_SIDE} rows of one length, found lengths "
            f"{[len(row) for row in rows]!s:.120}"
        )
    cells = "".join(rows)
    unknown = sorted(set(cells) - {FREE, WALL, START, GOAL})
    if unknown or cells.count(START) != 1 or cells.count(GOAL) != 1:
        raise AgentSystemError(
            f"a map is made of {FREE} {WALL} and exactly one {START} and one {GOAL}, found "
            f"{cells.count(START)} {START}, {cells.count(GOAL)} {GOAL} and the characters "
            f"{unknown!r:.80}"
        )
    walls = frozenset(cell for cell, sign in enumerate(cells) if sign == WALL)
    grid = make_map(len(rows), width, walls, cells.index(START), cells.index(GOAL))
    if grid.shortest == UNREACHABLE:
        raise AgentSystemError(
            "this map cannot be solved: walls cut the goal off from the start; open a path:\n" + grid.text
        )
    return grid


def _neighbour(height: int, width: int, walls: frozenset[int], cell: int, move: str) -> int | None:
    down, right = MOVES[move]
    row = cell // width + down
    column = cell % width + right
    there = row * width + column
    return there if 0 <= row < height and 0 <= column < width and there not in walls else None


def _neighbours(height: int, width: int, walls: frozenset[int], cell: int) -> Iterator[int]:
    for move in MOVES:
        there = _neighbour(height, width, walls, cell, move)
        if there is not None:
            yield there
