"""What one run may use."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from agent_system.errors import AgentSystemError


class SandboxError(AgentSystemError):
    """The sandbox cannot be what was asked for; not: a program that failed, which is a result."""


@dataclass(frozen=True)
class Limits:
    """Limits of one run: of one test, when a program is run on several.

    Attributes:
        cpu_s: CPU seconds of each process, rounded up to whole ones.
        wall_s: seconds on the clock.
        memory_mb: MiB that a process may take, and that all processes of the run may hold together.
        processes: processes and threads at a time, the program's own included.
        file_mb: MiB of one file.
        disk_mb: MiB of all files; held in memory, beside `memory_mb`, where the private folder is.
        output_kb: KiB each of stdout, stderr and a returned value; a program that writes more is ended.
    """

    cpu_s: float = 5.0
    wall_s: float = 10.0
    memory_mb: int = 512
    processes: int = 16
    file_mb: int = 16
    disk_mb: int = 32
    output_kb: int = 256

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            whole = f.name not in ("cpu_s", "wall_s")
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not 0 < value < math.inf:
                kind = "a whole number" if whole else "a number"
                raise SandboxError(f"sandbox limit {f.name}={value!r}: expected {kind} above 0")
