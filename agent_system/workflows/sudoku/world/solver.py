"""Solutions of a board: depth-first search with bit masks, the cell with the fewest possible digits
first.
"""

from __future__ import annotations

from functools import lru_cache

from agent_system.errors import AgentSystemError
from agent_system.workflows.sudoku.world.puzzle import (
    Board,
    BoardShape,
    SudokuPuzzle,
    clashing,
    from_text,
    shape_of,
    size_of,
    to_text,
)


def solutions(board: Board, limit: int = 2) -> list[Board]:
    """Return up to `limit` solutions of `board`; with the default, a list of one proves that the
    solution is unique.
    """
    if clashing(board):
        return []
    search = _Search(board, limit)
    search.run()
    return search.boards


def has_one_solution(board: Board) -> bool:
    """Return whether `board` has exactly one solution."""
    return len(solutions(board)) == 1


def make_puzzle(clues: Board) -> SudokuPuzzle:
    """Return the puzzle of `clues`.

    Raises:
        AgentSystemError: there is no solution, or several.
    """
    puzzle_solutions = solutions(clues)
    if len(puzzle_solutions) != 1:
        raise AgentSystemError(
            f"the puzzle {to_text(clues)!r} has "
            f"{'no solution' if not puzzle_solutions else 'several solutions'}, "
            "expected exactly one; make puzzles with: python -m agent_system.workflows.data sudoku"
        )
    return SudokuPuzzle(
        size_of(clues),
        clues,
        puzzle_solutions[0],
        tuple(cell for cell, digit in enumerate(clues) if not digit),
    )


@lru_cache(maxsize=4096)
def puzzle_from_text(text: str) -> SudokuPuzzle:
    """Return the puzzle written as one line; cached, because every episode of a task needs it.

    Raises:
        AgentSystemError: malformed text, no solution, or several.
    """
    return make_puzzle(from_text(text))


class _Search:
    """One search; `rows`, `columns` and `boxes` hold bit masks of the digits used in each."""

    def __init__(self, board: Board, limit: int) -> None:
        self.shape: BoardShape = shape_of(size_of(board))
        self.limit = limit
        self.boards: list[Board] = []
        self.cells = list(board)
        self.full = (1 << self.shape.size) - 1
        self.rows, self.columns, self.boxes = ([0] * self.shape.size for _ in range(3))
        self.open = {cell for cell, digit in enumerate(board) if not digit}
        for cell, digit in enumerate(board):
            if digit:
                self._flip(cell, 1 << (digit - 1))

    def run(self) -> None:
        """Collect solutions until `limit` are found."""
        if not self.open:
            self.boards.append(tuple(self.cells))
            return
        cell, choices = self._tightest()
        if not choices:
            return
        self.open.remove(cell)
        while choices and len(self.boards) < self.limit:
            bit = choices & -choices
            choices ^= bit
            self._flip(cell, bit)
            self.cells[cell] = bit.bit_length()
            self.run()
            self._flip(cell, bit)
        self.cells[cell] = 0
        self.open.add(cell)

    def _tightest(self) -> tuple[int, int]:
        shape = self.shape
        rows = self.rows
        columns = self.columns
        boxes = self.boxes
        full = self.full
        best = -1
        best_choices = 0
        fewest = shape.size + 1
        for cell in self.open:
            choices = full & ~(rows[shape.row[cell]] | columns[shape.column[cell]] | boxes[shape.box[cell]])
            count = choices.bit_count()
            if count < fewest:
                best = cell
                best_choices = choices
                fewest = count
                if count <= 1:
                    break
        return best, best_choices

    def _flip(self, cell: int, bit: int) -> None:
        shape = self.shape
        self.rows[shape.row[cell]] ^= bit
        self.columns[shape.column[cell]] ^= bit
        self.boxes[shape.box[cell]] ^= bit
