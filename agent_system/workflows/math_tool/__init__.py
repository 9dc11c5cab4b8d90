"""Mathematics by a team of two: the Reasoner Agent by reasoning, the Tool Agent by a program, until they agree."""

from agent_system.workflows.math_tool.agents import REASONER, TOOL_USER, ReasonerAgent, ToolUserAgent
from agent_system.workflows.math_tool.env import MathToolEnv
from agent_system.workflows.math_tool.options import MathToolEnvOptions, MathToolOptions
from agent_system.workflows.math_tool.orchestra import MathToolOrchestra

__all__ = [
    "REASONER",
    "TOOL_USER",
    "MathToolEnv",
    "MathToolEnvOptions",
    "MathToolOptions",
    "MathToolOrchestra",
    "ReasonerAgent",
    "ToolUserAgent",
]
