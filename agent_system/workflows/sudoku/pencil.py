"""Pencil marks: the digits that each empty cell could hold. What the marks show, and two ways to act on it, with care and by guess."""

from __future__ import annotations

import random

from agent_system.workflows.sudoku.puzzle import clashing, shape_of
from agent_system.workflows.sudoku.state import State

Cells = list[tuple[int, int]]


def candidates(state: State, cell: int) -> tuple[int, ...]:
    """Return the digits that no other cell of the row, column and box of `cell` holds, in order."""
    seen = {state.board[peer] for peer in shape_of(state.puzzle.size).peers[cell]}
    return tuple(digit for digit in range(1, state.puzzle.size + 1) if digit not in seen)


def written(state: State) -> list[int]:
    """Return the cells without a clue that hold a digit, in reading order."""
    return [cell for cell in state.puzzle.empty if state.board[cell]]


def empty(state: State) -> list[int]:
    """Return the cells that hold no digit, in reading order."""
    return [cell for cell in state.puzzle.empty if not state.board[cell]]


def contradicts(state: State) -> bool:
    """Whether something on the board must be wrong: cells clash, or an empty one has no digit left."""
    return bool(clashing(state.board)) or any(not candidates(state, cell) for cell in empty(state))


def marks_text(state: State) -> str:
    """Return a line for every empty cell, row, column and candidates (`1 3: 2 4`, or `no`), then what is written (`Has: 2 1 4!`).

    `!` stands behind a written digit that clashes.
    """
    size, clash = state.puzzle.size, clashing(state.board)
    lines = [f"{_place(cell, size)}: {' '.join(map(str, candidates(state, cell))) or 'no'}" for cell in empty(state)]
    has = "; ".join(f"{_place(cell, size)} {state.board[cell]}{'!' if cell in clash else ''}" for cell in written(state))
    return "\n".join([*lines, f"Has: {has}"] if has else lines)


def careful_cells(state: State) -> Cells:
    """Return every cell with one candidate and its digit; where the board contradicts itself, every written cell, emptied.

    Where neither is there, what is written is emptied too, and on the bare puzzle the first empty cell gets its first candidate.
    """
    single = [(cell, found[0]) for cell in empty(state) if len(found := candidates(state, cell)) == 1]
    if single and not contradicts(state):
        return single
    if written(state):
        return [(cell, 0) for cell in written(state)]
    first = empty(state)[0]
    return [(first, candidates(state, first)[0])]


def guessed_cells(rng: random.Random, state: State, most: int) -> Cells:
    """Return one to `most` cells, each with any digit: empty cells in reading order, or a written one where none is empty."""
    cells = empty(state)[: rng.randint(1, most)] or [rng.choice(written(state))]
    return [(cell, rng.randint(1, state.puzzle.size)) for cell in cells]


def _place(cell: int, size: int) -> str:
    return f"{cell // size + 1} {cell % size + 1}"
