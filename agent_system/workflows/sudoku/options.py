"""What can be set: difficulties of puzzles, and the options of orchestra and environment."""

from __future__ import annotations

from dataclasses import dataclass, fields

from agent_system.errors import AgentSystemError, suggestion
from agent_system.options import check_choice
from agent_system.workflows.programs import check_writes_programs
from agent_system.workflows.sudoku.prompts import STYLES

# Fewest and most clues, by size and difficulty. No 4x4 puzzle with one solution has fewer than 4 clues, no 9x9 one fewer than 17.
CLUES: dict[int, dict[str, tuple[int, int]]] = {
    4: {"easy": (9, 11), "medium": (7, 8), "hard": (5, 6)},
    9: {"easy": (40, 45), "medium": (32, 36), "hard": (26, 29)},
}
VIEWS = ("grid", "digits")
CLASHES = ("keep", "refuse", "clear")
TOOLS = ("cells", "code")


def clue_range(size: int, difficulty: str) -> tuple[int, int]:
    """Return the fewest and the most clues of a difficulty: a name of `CLUES`, or a number such as `8`.

    Raises:
        AgentSystemError: an unknown size or difficulty, or a number that leaves nothing to fill or several solutions.
    """
    if size not in CLUES:
        raise AgentSystemError(f"the size of a puzzle must be one of {', '.join(map(str, CLUES))}, found {size}")
    if difficulty.isascii() and difficulty.isdigit():
        clues, least, most = int(difficulty), {4: 4, 9: 24}[size], size * size - 1
        if not least <= clues <= most:
            raise AgentSystemError(f"a puzzle of size {size} is made with {least} to {most} clues, found {clues}")
        return clues, clues
    known = CLUES[size]
    if difficulty not in known:
        raise AgentSystemError(
            f"the difficulty of a puzzle must be one of {', '.join(known)} or a number of clues, "
            f"found {difficulty!r}{suggestion(difficulty, known)}"
        )
    return known[difficulty]


@dataclass(frozen=True)
class SudokuOptions:
    """Options under `agent.orchestra.sudoku`.

    Attributes:
        prompt_style: wording of the prompts: full | short (for models of a few million parameters).
        tool: how the Tool plans: cells (it writes them, or a grid) | code (it writes a program that prints them, run in the sandbox).
    """

    prompt_style: str = "full"
    tool: str = "cells"

    def __post_init__(self) -> None:
        check_choice("agent.orchestra.sudoku.prompt_style", self.prompt_style, tuple(STYLES))
        check_choice("agent.orchestra.sudoku.tool", self.tool, TOOLS)
        check_writes_programs("agent.orchestra.sudoku", self.tool, self.prompt_style, otherwise="cells")


@dataclass(frozen=True)
class SudokuEnvOptions:
    """Options under `env.params`; see `reward.py` for what each reward pays.

    Attributes:
        view: what the agents see: grid (the clues, and the board below them once something is written) | digits (the board alone, 0 where
            it is empty).
        clashes: what becomes of a digit that its row, column or box holds already: keep (it is written) | refuse (it is not) |
            clear (it is not, and the cells that hold it are emptied, but for clues: a wrong digit that is in the way goes again).
        max_cells: most cells that one action may change; what follows them is left out and counted.
        success_reward: team reward for the solved puzzle, once.
        progress_reward: team reward for all cells right; each part of it is paid when it is reached for the first time.
        plan_reward: local reward of the Tool for a plan that makes all cells right; paid as the difference to its last plan.
        illegal_penalty: subtracted from the local reward of a call whose action cannot be read, touches a clue or leaves the board.
        clash_penalty: times the share of the cells given a digit that clash with a row, column or box, subtracted likewise.
        wrong_penalty: times the share of the action's cells that it makes wrong (another digit than the solution's, or the solution's
            taken away), subtracted likewise; cells left as they were do not count.
    """

    view: str = "grid"
    clashes: str = "keep"
    max_cells: int = 81
    success_reward: float = 1.0
    progress_reward: float = 0.5
    plan_reward: float = 0.5
    illegal_penalty: float = 0.1
    clash_penalty: float = 0.1
    wrong_penalty: float = 0.3

    def __post_init__(self) -> None:
        check_choice("env.params.view", self.view, VIEWS)
        check_choice("env.params.clashes", self.clashes, CLASHES)
        if self.max_cells < 1:
            raise AgentSystemError(f"env.params.max_cells must be 1 or more, found {self.max_cells}")
        for field in fields(self):
            if isinstance(getattr(self, field.name), float) and not getattr(self, field.name) >= 0:
                raise AgentSystemError(f"env.params.{field.name} must be 0 or more, found {getattr(self, field.name):g}")
