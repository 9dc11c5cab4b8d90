"""Walking over a map by a team of two: the Tool Agent proposes moves, the Executor Agent checks them and moves."""

from agent_system.workflows.plan_path.agents import EXECUTOR, TOOL, ExecutorAgent, ToolAgent
from agent_system.workflows.plan_path.env import PlanPathEnv
from agent_system.workflows.plan_path.options import Difficulty, PlanPathEnvOptions, PlanPathOptions
from agent_system.workflows.plan_path.orchestra import PlanPathOrchestra

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
