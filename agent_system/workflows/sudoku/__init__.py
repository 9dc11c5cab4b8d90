"""Sudoku by a team of two: the Tool Agent plans, the Executor Agent checks and writes."""

from agent_system.workflows.sudoku.agents import EXECUTOR, TOOL, ExecutorAgent, ToolAgent
from agent_system.workflows.sudoku.env import SudokuEnv
from agent_system.workflows.sudoku.options import SudokuEnvOptions, SudokuOptions
from agent_system.workflows.sudoku.orchestra import SudokuOrchestra

__all__ = [
    "EXECUTOR",
    "TOOL",
    "ExecutorAgent",
    "SudokuEnv",
    "SudokuEnvOptions",
    "SudokuOptions",
    "SudokuOrchestra",
    "ToolAgent",
]
