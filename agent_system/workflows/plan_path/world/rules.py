"""State transitions: moves are made in order until a move is illegal or the goal is reached. Pure,
no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent_system.workflows.plan_path.world.grid import GridMap

MOST_VISITS = 9


@dataclass(frozen=True, slots=True)
class PlanPathState:
    """State of an episode.

    Attributes:
        cell: the team's position.
        best: shortest distance to the goal so far.
        visits: [cells], how often each cell was entered, up to 9. The start counts as entered once,
            and an illegal move enters the current cell once more: with an unchanged view a
            deterministic policy would repeat the mistake.
        moves: number of legal moves made.
    """

    cell: int
    best: int
    visits: bytes
    moves: int = 0


@dataclass(frozen=True, slots=True)
class PlanPathWalk:
    """Result of a list of moves.

    Attributes:
        cells: cells entered, in order; one per legal move.
        end: the last cell.
        illegal: a move led into a wall or over the edge; it and all later ones were not made.
        reached: the walk ends at the goal; later moves were not made.
    """

    cells: tuple[int, ...]
    end: int
    illegal: bool
    reached: bool


def initial_state(grid: GridMap) -> PlanPathState:
    """Return the initial state of an episode."""
    visits = bytearray(grid.height * grid.width)
    visits[grid.start] = 1
    return PlanPathState(grid.start, grid.shortest, bytes(visits))


def walk(grid: GridMap, cell: int, moves: str) -> PlanPathWalk:
    """Make `moves` from `cell` until one is illegal or the goal is reached."""
    cells: list[int] = []
    for move in moves:
        if cell == grid.goal:
            break
        there = grid.after(cell, move)
        if there is None:
            return PlanPathWalk(tuple(cells), cell, illegal=True, reached=False)
        cell = there
        cells.append(cell)
    return PlanPathWalk(tuple(cells), cell, illegal=False, reached=cell == grid.goal)


def advance(grid: GridMap, state: PlanPathState, agent_walk: PlanPathWalk) -> PlanPathState:
    """Return the state after a walk that began at `state.cell`."""
    visits = bytearray(state.visits)
    for cell in (*agent_walk.cells, *([agent_walk.end] if agent_walk.illegal else [])):
        visits[cell] = min(MOST_VISITS, visits[cell] + 1)
    best = min([state.best, *(grid.distances[cell] for cell in agent_walk.cells)])
    return replace(
        state, cell=agent_walk.end, best=best, visits=bytes(visits), moves=state.moves + len(agent_walk.cells)
    )


def without_visits(state: PlanPathState) -> PlanPathState:
    """Return the state as one sees it who does not remember where it was: no cell counts as
    visited.
    """
    return replace(state, visits=bytes(len(state.visits)))
