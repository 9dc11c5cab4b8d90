"""Boards of Sudoku: rows, columns, boxes and peers, and puzzles as text. No randomness, no I/O.

A board is a tuple of `size * size` digits in reading order, 0 for an empty cell. Rows and columns
are counted from 1 wherever people or models read them, cells from 0 inside the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from agent_system.errors import AgentSystemError

Board = tuple[int, ...]

SIZES = (4, 9)
EMPTY = "."


@dataclass(frozen=True)
class BoardShape:
    """Rows, columns, boxes and peers of a board of one size.

    Attributes:
        size: cells per row; digits are 1..size.
        units: the cells of every row, column and box.
        row, column, box: index of each cell's row, column and box, from 0.
        peers: for each cell, the cells that may not hold the same digit.
    """

    size: int
    units: tuple[tuple[int, ...], ...]
    row: tuple[int, ...]
    column: tuple[int, ...]
    box: tuple[int, ...]
    peers: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class SudokuPuzzle:
    """A board of clues and its unique solution.

    Attributes:
        size: cells per row.
        clues: the given board.
        solution: the full board.
        empty: cells without a clue.
    """

    size: int
    clues: Board
    solution: Board
    empty: tuple[int, ...]

    @property
    def num_clues(self) -> int:
        """Number of clues."""
        return len(self.clues) - len(self.empty)


@cache
def shape_of(size: int) -> BoardShape:
    """Return the shape of a board of `size` rows.

    Raises:
        AgentSystemError: a size other than 4 and 9.
    """
    if size not in SIZES:
        raise AgentSystemError(f"a Sudoku has {' or '.join(map(str, SIZES))} rows, found {size}")
    side = round(size**0.5)
    cells = range(size * size)
    row = tuple(cell // size for cell in cells)
    column = tuple(cell % size for cell in cells)
    box = tuple(row[cell] // side * side + column[cell] // side for cell in cells)
    units = tuple(
        tuple(cell for cell in cells if kind[cell] == number)
        for kind in (row, column, box)
        for number in range(size)
    )
    peers = tuple(
        tuple(sorted({other for unit in units if cell in unit for other in unit} - {cell})) for cell in cells
    )
    return BoardShape(size, units, row, column, box, peers)


def size_of(board: Board) -> int:
    """Return the number of rows of a board."""
    return round(len(board) ** 0.5)


def to_text(board: Board) -> str:
    """Return the board as one line of digits and dots."""
    return "".join(str(digit) if digit else EMPTY for digit in board)


def from_text(text: str) -> Board:
    """Parse the text of `to_text`; 0 also stands for an empty cell.

    Raises:
        AgentSystemError: not 16 or 81 cells, or a digit out of range.
    """
    size = {n * n: n for n in SIZES}.get(len(text))
    if size is None or not set(text) <= set(EMPTY + "0123456789"[: size + 1]):
        raise AgentSystemError(
            f"a puzzle is 16 cells of 1..4 or 81 cells of 1..9 in one line, {EMPTY!r} or 0 where "
            f"it is empty; found {text!r:.100}"
        )
    return tuple(0 if char == EMPTY else int(char) for char in text)


def rows_text(board: Board, empty: str = EMPTY) -> str:
    """Return the board as one line per row, with spaces between cells and `empty` for an empty
    cell.
    """
    size = size_of(board)
    cells = [str(digit) if digit else empty for digit in board]
    return "\n".join(" ".join(cells[start : start + size]) for start in range(0, len(cells), size))


def clashing(board: Board) -> set[int]:
    """Return the filled cells that hold the same digit as another cell of their row, column or box."""
    peers = shape_of(size_of(board)).peers
    return {
        cell
        for cell, digit in enumerate(board)
        if digit and any(board[peer] == digit for peer in peers[cell])
    }


def canonical(clues: Board) -> Board:
    """Return `clues` with digits renamed in the order in which they first appear.

    Two puzzles are equal up to a renaming of digits if and only if their canonical forms are equal;
    if each has one solution, so are their solutions. Puzzles that differ by swapped rows or a
    rotation have different canonical forms.
    """
    names: dict[int, int] = {0: 0}
    return tuple(names.setdefault(digit, len(names)) for digit in clues)
