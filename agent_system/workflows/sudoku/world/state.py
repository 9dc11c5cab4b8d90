"""The state of an episode and its only transition. Everything is immutable, so forks share it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent_system.workflows.sudoku.world.action import Action, Move
from agent_system.workflows.sudoku.world.puzzle import Board, SudokuPuzzle, clashing, shape_of, to_text


@dataclass(frozen=True, slots=True)
class SudokuState:
    """A puzzle and its current board.

    Attributes:
        puzzle: clues and solution.
        board: clues and written digits.
    """

    puzzle: SudokuPuzzle
    board: Board

    @classmethod
    def start(cls, puzzle: SudokuPuzzle) -> SudokuState:
        """Return the initial state, in which the board holds the clues only."""
        return cls(puzzle, puzzle.clues)

    @property
    def num_right(self) -> int:
        """Number of cells without a clue that hold the solution's digit."""
        board = self.board
        solution = self.puzzle.solution
        return sum(board[cell] == solution[cell] for cell in self.puzzle.empty)

    @property
    def progress(self) -> float:
        """Share of the cells without a clue that are right; 1 when there are none."""
        return self.num_right / len(self.puzzle.empty) if self.puzzle.empty else 1.0

    @property
    def solved(self) -> bool:
        """Whether every cell is right."""
        return self.board == self.puzzle.solution

    @property
    def key(self) -> str:
        """Key that is equal only for equal clues and equal boards."""
        return f"{to_text(self.puzzle.clues)}|{to_text(self.board)}"


@dataclass(frozen=True, slots=True)
class AppliedAction:
    """Result of an action.

    Attributes:
        state: state after the action.
        readable: the text could be parsed as an action.
        illegal: a move touched a clue or left the board; earlier moves were made.
        touched_clue: the illegal move touched a clue.
        written: moves made, including repetitions of a digit or a cell.
        refused: moves not made because their digit would have clashed.
        cut: moves beyond `max_cells`.
        clashes: written moves whose cell clashes with its row, column or box afterwards.
        placed: cells for which the action has a digit other than the one they held.
        clashing: cells of `placed` that were refused or clash afterwards.
        right: cells that the action corrects: by the solution's digit, or by emptying a wrong one.
        wrong: cells for which the action has a wrong digit, or which it empties of the solution's
            digit.
    """

    state: SudokuState
    readable: bool = True
    illegal: bool = False
    touched_clue: bool = False
    written: int = 0
    refused: int = 0
    cut: int = 0
    clashes: int = 0
    placed: int = 0
    clashing: int = 0
    right: int = 0
    wrong: int = 0

    @property
    def clash_share(self) -> float:
        """Share of the placed cells that clash; 1 for an unreadable action."""
        if not self.readable:
            return 1.0
        return self.clashing / self.placed if self.placed else 0.0

    @property
    def wrong_share(self) -> float:
        """Share of the action's cells that it makes wrong; refused digits are included, since they
        may be right.

        Each cell counts once. A cell that keeps a right or no digit does not count, so only right
        digits lower the share. The cell at which an illegal action stops counts as wrong. 1 for an
        unreadable action, so that no error costs less than a wrong digit.
        """
        if not self.readable:
            return 1.0
        counted = self.right + self.wrong + self.illegal
        return (self.wrong + self.illegal) / counted if counted else 0.0


def apply_action(
    state: SudokuState, action: Action | None, max_cells: int, clashes: str = "keep"
) -> AppliedAction:
    """Write the cells of `action` in order until one is illegal or the puzzle is solved; None is an
    unreadable action.

    A cell without a clue may be written again. A digit that its row, column or box already holds is
    written (`clashes` is keep), left out (refuse), or left out while the cells that hold it are
    emptied unless they are clues (clear). A whole grid must repeat the clues; its cells that repeat
    the board are not written.
    """
    if action is None:
        return AppliedAction(state, readable=False)
    clues = state.puzzle.clues
    size = state.puzzle.size
    board = list(state.board)
    written: list[int] = []
    placed: set[int] = set()
    refused: list[int] = []
    right: set[int] = set()
    wrong: set[int] = set()
    illegal = touched = False
    cut = 0
    moves = (
        [move for move in action.moves if not _repeats(move, board, size)]
        if action.whole
        else list(action.moves)
    )
    for number, move in enumerate(moves):
        if number >= max_cells:
            cut = len(moves) - number
            break
        cell = _cell(move, size)
        touched = cell is not None and bool(clues[cell])
        if cell is None or touched:
            illegal = True
            break
        old_digit = board[cell]
        solution = state.puzzle.solution[cell]
        if move.digit not in (old_digit, 0):
            placed.add(cell)
        if move.digit not in (solution, 0) or (old_digit == solution and not move.digit):
            wrong.add(cell)
        elif move.digit != old_digit:
            right.add(cell)
        holders = (
            [peer for peer in shape_of(size).peers[cell] if board[peer] == move.digit]
            if move.digit and clashes != "keep"
            else []
        )
        if holders:
            refused.append(cell)
            emptied = [peer for peer in holders if not clues[peer]] if clashes == "clear" else []
            for peer in emptied:
                board[peer] = 0
            continue
        board[cell] = move.digit
        written.append(cell)
        if tuple(board) == state.puzzle.solution:
            break
    after = replace(state, board=tuple(board)) if tuple(board) != state.board else state
    clash = clashing(after.board) if written else set()
    placed_clashing = placed & (clash | set(refused))
    clashing_moves = sum(cell in clash for cell in written)
    counts = (
        len(written),
        len(refused),
        cut,
        clashing_moves,
        len(placed),
        len(placed_clashing),
        len(right - wrong),
        len(wrong),
    )
    return AppliedAction(after, True, illegal, touched, *counts)


def _cell(move: Move, size: int) -> int | None:
    inside = 1 <= move.row <= size and 1 <= move.column <= size and 0 <= move.digit <= size
    return (move.row - 1) * size + move.column - 1 if inside else None


def _repeats(move: Move, board: list[int], size: int) -> bool:
    cell = _cell(move, size)
    return cell is not None and board[cell] == move.digit
