"""Careful and habitual choice of moves from the compact view, for demonstrations and tests.

Both use the offset of the goal. The careful walker also uses the cells straight ahead in the four directions
and their visits: it is real-time search (LRTA*, Korf 1990) with the number of visits in place of learned
costs, so it leaves dead ends instead of cycling in them.
"""

from __future__ import annotations

import random

from agent_system.workflows.plan_path.world.grid import MOVES, GridMap
from agent_system.workflows.plan_path.world.rules import PlanPathState, walk

VISIT_COST = 2


def in_sight(moves: str, radius: int) -> str:
    """Return the first moves whose cells are visible: in one direction, at most `radius` of them."""
    straight = len(moves) - len(moves.lstrip(moves[:1])) if moves else 0
    return moves[: min(straight, radius)]


def cost(grid: GridMap, state: PlanPathState, moves: str) -> int | None:
    """Return the cost of `moves`, higher for visited cells, plus the Manhattan distance that is left; None
    when a move is illegal.

    Moves after the goal are not made and cost nothing.
    """
    cell, total = state.cell, 0
    for move in moves:
        if cell == grid.goal:
            break
        there = grid.after(cell, move)
        if there is None:
            return None
        cell, total = there, total + 1 + VISIT_COST * state.visits[there]
    return total + sum(abs(way) for way in grid.way_to_goal(cell))


def careful_moves(grid: GridMap, state: PlanPathState, radius: int, max_moves: int) -> str:
    """Return the cheapest move, repeated while its cells are visible and the cost does not increase; at most
    `max_moves`.

    Ties are broken in favour of the larger offset of the goal. Empty at the goal, and where no move is legal.
    """
    if state.cell == grid.goal:
        return ""
    priced = [
        (found, i, move)
        for i, move in enumerate(_preference(grid, state.cell))
        if (found := cost(grid, state, move)) is not None
    ]
    if not priced:
        return ""
    price, _, move = min(priced)
    moves = move
    while (
        len(moves) < min(radius, max_moves)
        and (further := cost(grid, state, moves + move)) is not None
        and further <= price
    ):
        if walk(grid, state.cell, moves).reached:
            break
        moves += move
    return moves


def habitual_moves(rng: random.Random, grid: GridMap, state: PlanPathState, max_moves: int) -> str:
    """Return moves straight towards the goal, one direction after the other, regardless of walls; empty at
    the goal only.
    """
    down, right = grid.way_to_goal(state.cell)
    legs = [("D" if down > 0 else "U") * abs(down), ("R" if right > 0 else "L") * abs(right)]
    rng.shuffle(legs)
    return "".join(legs)[:max_moves]


def random_moves(rng: random.Random, max_moves: int) -> str:
    """Return one to `max_moves` random moves."""
    return "".join(rng.choices(tuple(MOVES), k=rng.randint(1, max_moves)))


def _preference(grid: GridMap, cell: int) -> list[str]:
    down, right = grid.way_to_goal(cell)
    pulls = {"U": -down, "D": down, "L": -right, "R": right}
    return sorted(MOVES, key=lambda move: -pulls[move])
