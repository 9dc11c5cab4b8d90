"""The state of an episode and its only transition. Everything is immutable, so that a fork shares it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent_system.workflows.sudoku.world.action import Action, Move
from agent_system.workflows.sudoku.world.puzzle import Board, Puzzle, clashing, shape_of, to_text


@dataclass(frozen=True, slots=True)
class State:
    """A puzzle and how far it is filled.

    Attributes:
        puzzle: clues and solution.
        board: clues and what was written.
    """

    puzzle: Puzzle
    board: Board

    @classmethod
    def start(cls, puzzle: Puzzle) -> State:
        """Return the state in which only the clues stand."""
        return cls(puzzle, puzzle.clues)

    @property
    def num_right(self) -> int:
        """Cells without a clue that hold the digit of the solution."""
        board, solution = self.board, self.puzzle.solution
        return sum(board[cell] == solution[cell] for cell in self.puzzle.empty)

    @property
    def progress(self) -> float:
        """Share of the cells without a clue that are right; 1 when there are none."""
        return self.num_right / len(self.puzzle.empty) if self.puzzle.empty else 1.0

    @property
    def solved(self) -> bool:
        """Every cell is right."""
        return self.board == self.puzzle.solution

    @property
    def key(self) -> str:
        """The same for equal clues and equal boards, and for these only."""
        return f"{to_text(self.puzzle.clues)}|{to_text(self.board)}"


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of an action.

    Attributes:
        state: afterwards.
        readable: the text was an action at all.
        illegal: it touched a clue or left the board; what came before that was written.
        touched_clue: it was a clue.
        written: moves that were made, over the same digit or cell too.
        refused: moves that were not made because their digit would have clashed.
        cut: moves beyond the most that an action may make.
        clashes: written moves whose cell clashes with its row, column or box afterwards.
        placed: cells that were to have a digit which they did not hold.
        clashing: those of them that were refused or clash afterwards.
        right: cells that were to have the solution's digit or to lose a wrong one, and did not or held it before.
        wrong: cells that were to have a digit that is not the solution's, or to lose the solution's.
    """

    state: State
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
        """Share of the cells placed that clash; all of what cannot be read does, see `wrong_share`."""
        if not self.readable:
            return 1.0
        return self.clashing / self.placed if self.placed else 0.0

    @property
    def wrong_share(self) -> float:
        """Share of the cells that the action is about which it makes wrong; a digit that is refused may be right, beside a wrong one.

        Each cell counts once, and one that the action leaves as it was not at all, unless with a wrong digit: nothing that is written
        beside a wrong digit makes it cheaper but right ones. The cell at which an illegal action ends counts as wrong, and so does all
        of one that cannot be read: no reply is spared by what is the matter with it.
        """
        if not self.readable:
            return 1.0
        about = self.right + self.wrong + self.illegal
        return (self.wrong + self.illegal) / about if about else 0.0


def apply_action(state: State, action: Action | None, max_cells: int, clashes: str = "keep") -> Applied:
    """Write the cells of `action` in order until one is illegal or the puzzle is solved; None, and nothing to write, change nothing.

    A cell without a clue may be written again. A digit that its row, column or box holds is written (`clashes` is keep), left out
    (refuse), or left out while the cells that hold it are emptied unless they are clues (clear). A whole grid has to repeat the clues;
    where it repeats what stood there at the beginning, nothing is written.
    """
    if action is None:
        return Applied(state, readable=False)
    clues, size = state.puzzle.clues, state.puzzle.size
    board = list(state.board)
    written: list[int] = []
    placed: set[int] = set()
    refused: list[int] = []
    right: set[int] = set()
    wrong: set[int] = set()
    illegal = touched = False
    cut = 0
    moves = [move for move in action.moves if not _repeats(move, board, size)] if action.whole else list(action.moves)
    for number, move in enumerate(moves):
        if number >= max_cells:
            cut = len(moves) - number
            break
        cell = _cell(move, size)
        touched = cell is not None and bool(clues[cell])
        if cell is None or touched:
            illegal = True
            break
        held, solution = board[cell], state.puzzle.solution[cell]
        if move.digit not in (held, 0):
            placed.add(cell)
        if move.digit not in (solution, 0) or (held == solution and not move.digit):
            wrong.add(cell)
        elif move.digit != held:
            right.add(cell)
        holders = [peer for peer in shape_of(size).peers[cell] if board[peer] == move.digit] if move.digit and clashes != "keep" else []
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
    amiss = placed & (clash | set(refused))
    clashing_moves = sum(cell in clash for cell in written)
    counts = (len(written), len(refused), cut, clashing_moves, len(placed), len(amiss), len(right - wrong), len(wrong))
    return Applied(after, True, illegal, touched, *counts)


def _cell(move: Move, size: int) -> int | None:
    inside = 1 <= move.row <= size and 1 <= move.column <= size and 0 <= move.digit <= size
    return (move.row - 1) * size + move.column - 1 if inside else None


def _repeats(move: Move, board: list[int], size: int) -> bool:
    cell = _cell(move, size)
    return cell is not None and board[cell] == move.digit
