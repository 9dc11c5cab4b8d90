"""Sokoban by a team of two: the Tool Agent proposes moves, the Executor Agent checks and makes them."""

from agent_system.workflows.proposer_executor import EXECUTOR, TOOL
from agent_system.workflows.sokoban.env import SokobanEnv, SokobanEnvOptions
from agent_system.workflows.sokoban.team import ExecutorAgent, SokobanOptions, SokobanOrchestra, ToolAgent
from agent_system.workflows.sokoban.world.generate import Difficulty

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
