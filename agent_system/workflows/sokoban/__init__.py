"""Sokoban by a team of two: the Tool Agent proposes moves, the Executor Agent checks and makes
them.
"""

from agent_system.workflows.proposer_executor import EXECUTOR, TOOL
from agent_system.workflows.sokoban.env import SokobanEnv, SokobanEnvOptions
from agent_system.workflows.sokoban.team import (
    SokobanExecutorAgent,
    SokobanOptions,
    SokobanOrchestra,
    SokobanProposerAgent,
)
from agent_system.workflows.sokoban.world.generate import SokobanDifficulty

__all__ = [
    "EXECUTOR",
    "TOOL",
    "SokobanDifficulty",
    "SokobanEnv",
    "SokobanEnvOptions",
    "SokobanExecutorAgent",
    "SokobanOptions",
    "SokobanOrchestra",
    "SokobanProposerAgent",
]
