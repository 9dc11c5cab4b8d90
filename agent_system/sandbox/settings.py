"""The keys under `sandbox`."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent_system.errors import without_password
from agent_system.sandbox.levels import rank
from agent_system.sandbox.limits import Limits, SandboxError

BACKENDS = ("local", "http")


@dataclass(frozen=True)
class SandboxSettings:
    """Where programs run, how well they are held, and what they may use.

    Attributes:
        backend: `local` (processes on this machine) or `http` (a SandboxFusion server).
        level: `auto` takes the strongest that works; a name takes that one.
        min_level: a weaker one is refused.
        workers: runs at a time; 0 takes the number of cores (`local`) or 32 (`http`).
        packages: importable packages beside the standard library (`local`); what they import must be listed too.
        max_timeouts: of one program's tests: after so many that ran out of time the rest is skipped; 0 runs all.
        limits: of one run.
        url: address of the server (`http`), without `/run_code`.
        request_timeout_s: seconds that a request may take beyond the limits of its run, waiting at the server included (`http`).
    """

    backend: str = "local"
    level: str = "auto"
    min_level: str = "landlock"
    workers: int = 0
    packages: tuple[str, ...] = ()
    max_timeouts: int = 2
    limits: Limits = field(default_factory=Limits)
    url: str = field(default="", repr=False)
    request_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise SandboxError(f"sandbox.backend={self.backend!r}: expected one of {', '.join(BACKENDS)}")
        if self.level != "auto" and rank(self.level) < rank(self.min_level):
            raise SandboxError(f"sandbox.level={self.level} is weaker than sandbox.min_level={self.min_level}; change one of them")
        rank(self.min_level)
        if self.workers < 0 or self.max_timeouts < 0 or self.request_timeout_s <= 0:
            raise SandboxError(
                f"sandbox.workers and sandbox.max_timeouts must be 0 or more and sandbox.request_timeout_s above 0, "
                f"found {self.workers}, {self.max_timeouts} and {self.request_timeout_s:g}"
            )
        if self.backend == "http" and not self.url.startswith(("http://", "https://")):
            shown = without_password(self.url)
            raise SandboxError(f"sandbox.url={shown!r}: sandbox.backend=http needs the server's address, such as http://localhost:8080")
