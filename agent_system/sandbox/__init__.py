"""Isolated execution of programs that a model wrote. See docs/sandbox.md."""

from agent_system.sandbox.job import FunctionCall, Test
from agent_system.sandbox.limits import Limits, SandboxError
from agent_system.sandbox.result import Reason, RunResult
from agent_system.sandbox.sandbox import Sandbox
from agent_system.sandbox.settings import SandboxSettings
from agent_system.sandbox.shared import close_shared, configure, make_sandbox, shared_failures, shared_sandbox

__all__ = [
    "FunctionCall",
    "Limits",
    "Reason",
    "RunResult",
    "Sandbox",
    "SandboxError",
    "SandboxSettings",
    "Test",
    "close_shared",
    "configure",
    "make_sandbox",
    "shared_failures",
    "shared_sandbox",
]
