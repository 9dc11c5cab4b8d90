"""Mathematics by a team of two: the Reasoner Agent answers by reasoning, the Tool Agent by a
program, until the answers agree.
"""

from agent_system.workflows.math_tool.env import MathToolEnv, MathToolEnvOptions
from agent_system.workflows.math_tool.team import (
    REASONER,
    TOOL_USER,
    MathToolOptions,
    MathToolOrchestra,
    ReasonerAgent,
    ToolUserAgent,
)

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
