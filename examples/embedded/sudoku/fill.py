"""Careful and guessed continuations of a board, for demonstrations and tests."""

from __future__ import annotations

import random

from agent_system.workflows.sudoku.world.puzzle import Board, shape_of, size_of


def candidates(board: Board, cell: int) -> tuple[int, ...]:
    """Return the digits that no other cell of the row, column and box of `cell` holds, in order."""
    size = size_of(board)
    seen = {board[peer] for peer in shape_of(size).peers[cell]}
    return tuple(digit for digit in range(1, size + 1) if digit not in seen)


def careful(board: Board) -> Board:
    """Return the board with every cell that has one candidate filled; if there is none, the first empty cell
    with its first candidate.

    A board without an empty cell, or whose first empty cell has no candidate, is returned unchanged.
    """
    empty = [cell for cell, digit in enumerate(board) if not digit]
    found = {cell: candidates(board, cell) for cell in empty}
    single = {cell: digits[0] for cell, digits in found.items() if len(digits) == 1}
    if not single and empty and found[empty[0]]:
        single = {empty[0]: found[empty[0]][0]}
    return _with(board, single)


def guessed(rng: random.Random, board: Board, most: int) -> Board:
    """Return the board with random digits in the first empty cells, one to `most` of them."""
    empty = [cell for cell, digit in enumerate(board) if not digit][: rng.randint(1, most)]
    return _with(board, {cell: rng.randint(1, size_of(board)) for cell in empty})


def _with(board: Board, cells: dict[int, int]) -> Board:
    return tuple(cells.get(cell, digit) for cell, digit in enumerate(board))
