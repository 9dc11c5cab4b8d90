"""Isolated execution of programs that a model wrote. See docs/sandbox.md."""

from agent_system.errors import SandboxError
from agent_system.sandbox.job import FunctionCall, Test
from agent_system.sandbox.result import Reason, RunResult
from agent_system.sandbox.sandbox import Sandbox
from agent_system.sandbox.shared import close_shared, configure, make_sandbox, shared_failures, shared_sandbox
from verl.trainer.config.sandbox import SandboxConfig, SandboxLimitsConfig

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
