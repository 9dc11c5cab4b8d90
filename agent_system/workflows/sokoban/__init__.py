"""Sokoban by a team of two: the Tool Agent proposes moves, the Executor Agent checks and makes them."""

from agent_system.workflows.sokoban.agents import EXECUTOR, TOOL, ExecutorAgent, ToolAgent
from agent_system.workflows.sokoban.env import SokobanEnv
from agent_system.workflows.sokoban.options import Difficulty, SokobanEnvOptions, SokobanOptions
from agent_system.workflows.sokoban.orchestra import SokobanOrchestra

__all__ = [
    "EXECUTOR",
    "TOOL",
    "Difficulty",
    "ExecutorAgent",
    "SokobanEnv",
    "SokobanEnvOptions",
    "SokobanOptions",
    "SokobanOrchestra",
    "ToolAgent",
]
