"""Two ways to choose moves from what the compact view shows: with care, and by habit. They make demonstrations and tests.

Both know the position, the goal and the size of the map. The careful walker also reads the cells nearby and how often each was
entered; what it cannot see it takes for free. Entered cells cost more, so it leaves dead ends instead of going round in them.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator

from agent_system.workflows.plan_path.grid import MOVES, GridMap
from agent_system.workflows.plan_path.rules import State

VISIT_COST = 2


def visible(grid: GridMap, cell: int, radius: int) -> Iterator[int]:
    """The cells at most `radius` rows and columns away from `cell`."""
    row, column = grid.place(cell)
    for i in range(max(0, row - radius), min(grid.height, row + radius + 1)):
        for j in range(max(0, column - radius), min(grid.width, column + radius + 1)):
            yield i * grid.width + j


def costs_to_goal(grid: GridMap, state: State, radius: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return (cost to enter, cost to the goal) of every cell as far as `radius` tells; walls in sight are in neither."""
    cells = range(grid.height * grid.width)
    seen = set(visible(grid, state.cell, radius))
    enter = {c: 1 + VISIT_COST * state.visits[c] * (c in seen) for c in cells if c not in seen or c not in grid.walls}
    hidden = frozenset(c for c in cells if c not in enter)
    guess = GridMap(grid.height, grid.width, hidden, grid.start, grid.goal, ())
    found: dict[int, int] = {}
    waiting = [(0, grid.goal)]
    while waiting:
        cost, cell = heapq.heappop(waiting)
        if cell in found:
            continue
        found[cell] = cost
        for move in MOVES:
            there = guess.after(cell, move)
            if there is not None and there not in found:
                heapq.heappush(waiting, (cost + enter[cell], there))
    return enter, found


def careful_moves(grid: GridMap, state: State, radius: int, max_moves: int) -> str:
    """Return the cheapest way as far as it is in sight, at most `max_moves` long and at least one move.

    Ties go along the longer leg to the goal. Empty at the goal only.
    """
    enter, to_goal = costs_to_goal(grid, state, radius)
    seen = set(visible(grid, state.cell, radius))
    cell, found = state.cell, ""
    while cell != grid.goal and len(found) < max_moves:
        options = [(enter[c] + to_goal[c], i, m, c) for i, m in enumerate(_preference(grid, cell)) if (c := grid.after(cell, m)) in to_goal]
        if not options:
            break
        _, _, move, there = min(options)
        if there not in seen:
            break
        cell, found = there, found + move
    return found


def plan_cost(grid: GridMap, state: State, radius: int, moves: str) -> int | None:
    """Return what `moves` and the rest of the way cost by `costs_to_goal`; None when a move is illegal."""
    enter, to_goal = costs_to_goal(grid, state, radius)
    cell, cost = state.cell, 0
    for move in moves:
        there = grid.after(cell, move)
        if cell == grid.goal:
            break
        if there is None:
            return None
        cell, cost = there, cost + enter[there]
    return cost + to_goal[cell]


def habitual_moves(rng: random.Random, grid: GridMap, state: State, max_moves: int) -> str:
    """Return moves straight towards the goal, one leg after the other, without a look at the walls; empty at the goal only."""
    (row, column), (goal_row, goal_column) = grid.place(state.cell), grid.place(grid.goal)
    down, right = goal_row - row, goal_column - column
    legs = [("D" if down > 0 else "U") * abs(down), ("R" if right > 0 else "L") * abs(right)]
    rng.shuffle(legs)
    return "".join(legs)[:max_moves]


def random_moves(rng: random.Random, max_moves: int) -> str:
    """Return one to `max_moves` moves of any kind."""
    return "".join(rng.choices(tuple(MOVES), k=rng.randint(1, max_moves)))


def _preference(grid: GridMap, cell: int) -> list[str]:
    (row, column), (goal_row, goal_column) = grid.place(cell), grid.place(grid.goal)
    down, right = goal_row - row, goal_column - column
    pulls = {"U": -down, "D": down, "L": -right, "R": right}
    return sorted(MOVES, key=lambda move: -pulls[move])
