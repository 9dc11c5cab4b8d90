"""The sandbox of this process, configured once by the keys under `sandbox` and used by all
workflows.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from agent_system.errors import SandboxError
from verl.trainer.config.sandbox import SandboxConfig

if TYPE_CHECKING:
    from agent_system.sandbox.sandbox import Sandbox

_lock = threading.Lock()
_settings = SandboxConfig()
_sandbox: Sandbox | None = None


def make_sandbox(settings: SandboxConfig) -> Sandbox:
    """Start a separate sandbox. Raise ConfigError for invalid settings, SandboxError when this
    machine cannot meet them.
    """
    if settings.url:
        # imports aiohttp, which other backends do not need
        from agent_system.sandbox.fusion import (
            HttpSandbox,
        )

        return HttpSandbox(settings)
    # the isolation, which a run without programs does not need
    from agent_system.sandbox.local import LocalSandbox

    return LocalSandbox(settings)


def configure(settings: SandboxConfig) -> Sandbox:
    """Replace the sandbox of this process, and start and check the new one before anything
    expensive runs.

    Raises ConfigError for invalid settings, SandboxError when this machine cannot meet them.
    """
    global _settings, _sandbox
    close_shared()
    with _lock:
        sandbox = make_sandbox(settings)
        try:
            sandbox.check()
        except SandboxError:
            sandbox.close()
            raise
        _settings = settings
        _sandbox = sandbox
        return sandbox


def shared_sandbox() -> Sandbox:
    """Return the sandbox of this process, started with the last settings (or the defaults) if it is
    not running.
    """
    global _sandbox
    with _lock:
        if _sandbox is None:
            _sandbox = make_sandbox(_settings)
        return _sandbox


def shared_failures() -> float | None:
    """Return how many runs failed twice in the sandbox of this process since its start; None
    without a sandbox.
    """
    with _lock:
        if _sandbox is None:
            return None
        # loaded already, by the sandbox
        from agent_system.sandbox.result import Reason

        return float(_sandbox.counts[Reason.SANDBOX.value])


def close_shared() -> None:
    """Close the sandbox of this process, if there is one."""
    global _sandbox
    with _lock:
        sandbox = _sandbox
        _sandbox = None
    if sandbox is not None:
        sandbox.close()
