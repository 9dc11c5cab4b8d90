"""Sudoku by a team of two: the Tool Agent plans, the Executor Agent checks the plan and writes on
the board.
"""

from agent_system.workflows.proposer_executor import EXECUTOR, TOOL
from agent_system.workflows.sudoku.env import SudokuEnv, SudokuEnvOptions
from agent_system.workflows.sudoku.team import (
    SudokuExecutorAgent,
    SudokuOptions,
    SudokuOrchestra,
    SudokuProposerAgent,
)

__all__ = [
    "EXECUTOR",
    "TOOL",
    "SudokuEnv",
    "SudokuEnvOptions",
    "SudokuExecutorAgent",
    "SudokuOptions",
    "SudokuOrchestra",
    "SudokuProposerAgent",
]
