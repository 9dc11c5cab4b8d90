"""Works a puzzle out as a person would, one certain cell after the other, and says why each is certain."""

from __future__ import annotations

from dataclasses import dataclass

from agent_system.workflows.sudoku.puzzle import Board, Puzzle, shape_of


@dataclass(frozen=True)
class Step:
    """One cell found.

    Attributes:
        cell, digit: what was found.
        seen: digits in the cell's row, column and box, when they leave only `digit`; else empty.
        certain: it follows from the board; False where the steps below know no reason and the solution had to be looked up.
    """

    cell: int
    digit: int
    seen: tuple[int, ...] = ()
    certain: bool = True

    def words(self, size: int) -> str:
        """Return the step in words: `1 2 sees 1 3 4 so 2.`, or `only 1 2 can be 2.`, or `1 2 maybe 2.`"""
        place = f"{self.cell // size + 1} {self.cell % size + 1}"
        if self.seen:
            return f"{place} sees {' '.join(map(str, self.seen))} so {self.digit}."
        return f"only {place} can be {self.digit}." if self.certain else f"{place} maybe {self.digit}."


def deduce(puzzle: Puzzle) -> list[Step]:
    """Return a step for every cell without a clue, each from the clues and the steps before it.

    A cell with one digit left comes first, in reading order; then a digit with one place left in a row, column or box.
    """
    board = list(puzzle.clues)
    steps: list[Step] = []
    while len(steps) < len(puzzle.empty):
        step = _single(tuple(board), puzzle) or _only_place(tuple(board), puzzle) or _looked_up(board, puzzle)
        board[step.cell] = step.digit
        steps.append(step)
    return steps


def _single(board: Board, puzzle: Puzzle) -> Step | None:
    for cell in puzzle.empty:
        if not board[cell]:
            seen = _seen(board, cell, puzzle.size)
            if len(seen) == puzzle.size - 1:
                return Step(cell, puzzle.solution[cell], tuple(sorted(seen)))
    return None


def _only_place(board: Board, puzzle: Puzzle) -> Step | None:
    for unit in shape_of(puzzle.size).units:
        missing = {cell: _seen(board, cell, puzzle.size) for cell in unit if not board[cell]}
        for cell in missing:
            digit = puzzle.solution[cell]
            if all(digit in seen for other, seen in missing.items() if other != cell):
                return Step(cell, digit)
    return None


def _looked_up(board: list[int], puzzle: Puzzle) -> Step:
    cell = next(cell for cell in puzzle.empty if not board[cell])
    return Step(cell, puzzle.solution[cell], certain=False)


def _seen(board: Board, cell: int, size: int) -> set[int]:
    return {board[peer] for peer in shape_of(size).peers[cell]} - {0}
