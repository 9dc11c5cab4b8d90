"""Programming by a team of two: the Coder Agent writes a program, the Tester Agent writes tests, and both are run."""

from agent_system.workflows.code.agents import CODER, TESTER, CoderAgent, TesterAgent
from agent_system.workflows.code.env import CodeEnv
from agent_system.workflows.code.options import CodeEnvOptions, CodeOptions
from agent_system.workflows.code.orchestra import CodeOrchestra

__all__ = [
    "CODER",
    "TESTER",
    "CodeEnv",
    "CodeEnvOptions",
    "CodeOptions",
    "CodeOrchestra",
    "CoderAgent",
    "TesterAgent",
]
