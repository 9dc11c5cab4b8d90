"""Programming by a team of two: the Coder Agent writes a program, the Tester Agent writes tests,
and both are run.
"""

from agent_system.workflows.code.env import CodeEnv, CodeEnvOptions
from agent_system.workflows.code.team import (
    CODER,
    TESTER,
    CodeOptions,
    CodeOrchestra,
    CoderAgent,
    TesterAgent,
)

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
