"""Path planning on a map by a team of two: the Tool Agent proposes moves, the Executor Agent checks them and
moves.
"""

from agent_system.workflows.plan_path.env import PlanPathEnv, PlanPathEnvOptions
from agent_system.workflows.plan_path.team import ExecutorAgent, PlanPathOptions, PlanPathOrchestra, ToolAgent
from agent_system.workflows.plan_path.world.generate import Difficulty
from agent_system.workflows.proposer_executor import EXECUTOR, TOOL

__all__ = [
    "EXECUTOR",
    "TOOL",
    "Difficulty",
    "ExecutorAgent",
    "PlanPathEnv",
    "PlanPathEnvOptions",
    "PlanPathOptions",
    "PlanPathOrchestra",
    "ToolAgent",
]
