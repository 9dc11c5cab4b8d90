"""Isolated execution of programs that a model wrote. See docs/sandbox.md.

A run imports `shared.py` alone until its environment or one of its agents runs a program: all other
names of the package are imported on demand.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agent_system.errors import SandboxError
from agent_system.sandbox.shared import close_shared, configure, make_sandbox, shared_failures, shared_sandbox
from verl.trainer.config.sandbox import SandboxConfig, SandboxLimitsConfig

if TYPE_CHECKING:
    from agent_system.sandbox.job import FunctionCall, Test
    from agent_system.sandbox.result import Reason, RunResult
    from agent_system.sandbox.sandbox import Sandbox

__all__ = [
    "FunctionCall",
    "Reason",
    "RunResult",
    "Sandbox",
    "SandboxConfig",
    "SandboxError",
    "SandboxLimitsConfig",
    "Test",
    "close_shared",
    "configure",
    "make_sandbox",
    "shared_failures",
    "shared_sandbox",
]
_ON_DEMAND = {
    "FunctionCall": "agent_system.sandbox.job",
    "Reason": "agent_system.sandbox.result",
    "RunResult": "agent_system.sandbox.result",
    "Sandbox": "agent_system.sandbox.sandbox",
    "Test": "agent_system.sandbox.job",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ON_DEMAND[name]), name)
