"""Path planning on a map by a team of two: the Tool Agent proposes moves, the Executor Agent checks
them and moves.
"""

from agent_system.workflows.plan_path.env import PlanPathEnv, PlanPathEnvOptions
from agent_system.workflows.plan_path.team import (
    PlanPathExecutorAgent,
    PlanPathOptions,
    PlanPathOrchestra,
    PlanPathProposerAgent,
)
from agent_system.workflows.plan_path.world.generate import PlanPathDifficulty
from agent_system.workflows.proposer_executor import EXECUTOR, TOOL

__all__ = [
    "EXECUTOR",
    "TOOL",
    "PlanPathDifficulty",
    "PlanPathEnv",
    "PlanPathEnvOptions",
    "PlanPathExecutorAgent",
    "PlanPathOptions",
    "PlanPathOrchestra",
    "PlanPathProposerAgent",
]
