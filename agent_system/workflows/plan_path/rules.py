"""How moves change the state: in order, until a move is illegal or the goal is reached. Pure, no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from agent_system.workflows.plan_path.grid import MOVES, GridMap

MOST_VISITS = 9
LONGEST_ACTION = 2000
_WORDS = {"UP": "U", "DOWN": "D", "LEFT": "L", "RIGHT": "R"}
_SEPARATORS = re.compile(r"[\s,;\"'\[\]()]+")


@dataclass(frozen=True, slots=True)
class State:
    """Where an episode stands.

    Attributes:
        cell: where the team is.
        best: shortest distance to the goal so far.
        visits: [cells], how often each cell was entered, up to 9. The start counts as entered once, and who runs into a wall enters the
            cell in front of it once more: a mistake that changed nothing would be made again.
        moves: legal moves made.
    """

    cell: int
    best: int
    visits: bytes
    moves: int = 0


@dataclass(frozen=True, slots=True)
class Walk:
    """What a list of moves leads to.

    Attributes:
        cells: entered, in order; one for each legal move.
        end: the last cell.
        illegal: a move led into a wall or over the edge; it and all later ones were not made.
        reached: it ends at the goal; later moves were not made.
    """

    cells: tuple[int, ...]
    end: int
    illegal: bool
    reached: bool


def initial_state(grid: GridMap) -> State:
    """Return the state at the start of an episode."""
    visits = bytearray(grid.height * grid.width)
    visits[grid.start] = 1
    return State(grid.start, grid.shortest, bytes(visits))


def parse_moves(text: object) -> str | None:
    """Return the moves as letters (`RRD`) or None when `text` is no list of moves.

    Letters U D L R or the words up, down, left, right in any case, together or apart: `RRD`, `R, R, D`, `["R", "R", "D"]`. An empty
    list, anything else in it, and a text of more than 2,000 characters are no list of moves.
    """
    if not isinstance(text, str) or len(text) > LONGEST_ACTION:
        return None
    letters = "".join(_WORDS.get(part, part) for part in _SEPARATORS.split(text.upper()))
    return letters if letters and set(letters) <= set(MOVES) else None


def walk(grid: GridMap, cell: int, moves: str) -> Walk:
    """Make `moves` from `cell` until one is illegal or the goal is reached."""
    cells: list[int] = []
    for move in moves:
        if cell == grid.goal:
            break
        there = grid.after(cell, move)
        if there is None:
            return Walk(tuple(cells), cell, illegal=True, reached=False)
        cell = there
        cells.append(cell)
    return Walk(tuple(cells), cell, illegal=False, reached=cell == grid.goal)


def advance(grid: GridMap, state: State, made: Walk) -> State:
    """Return the state after a walk that began at `state.cell`."""
    visits = bytearray(state.visits)
    for cell in (*made.cells, *([made.end] if made.illegal else [])):
        visits[cell] = min(MOST_VISITS, visits[cell] + 1)
    best = min([state.best, *(grid.distances[cell] for cell in made.cells)])
    return replace(state, cell=made.end, best=best, visits=bytes(visits), moves=state.moves + len(made.cells))
