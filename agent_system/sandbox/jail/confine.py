"""The last steps before a program runs: its user, its limits, its filter. Every step is for good."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Any

from . import kernel, landlock, seccomp

STACK_BYTES = 64 << 20
OPEN_FILES = 128


@dataclass(frozen=True)
class Confinement:
    """How the programs of one worker are held.

    Attributes:
        namespaces: the process is in namespaces of its own, with a view of its own.
        landlock: files are kept away by Landlock.
        seccomp: system calls are filtered.
        uid: user to become; None stays.
        readable: with `landlock`, what can be read.
        counted: processes and threads of the same user that are not the program's, which the limit of processes counts too.
        overhead_bytes: address space that is taken before the program begins.
    """

    namespaces: bool
    landlock: bool
    seccomp: bool
    uid: int | None
    readable: tuple[str, ...]
    counted: int
    overhead_bytes: int


def confine(how: Confinement, limits: dict[str, Any], folder: str) -> None:
    """Confine this process. Raises OSError saying which step failed.

    Args:
        how: what is done.
        limits: the fields of `Limits`.
        folder: the one writable folder.
    """
    _limit(how, limits)
    if how.uid is not None:
        kernel.become(how.uid, how.uid)
    if how.namespaces or how.uid is not None:
        kernel.drop_capabilities()
    # Only now: a change of user takes it back.
    kernel.die_with_parent()
    kernel.no_new_privileges()
    scoped = how.landlock and landlock.scopes_signals()
    if how.landlock:
        landlock.restrict(how.readable, folder)
    if how.seccomp:
        seccomp.install(signals=how.namespaces or scoped)


def _limit(how: Confinement, limits: dict[str, Any]) -> None:
    cpu = int(-(-limits["cpu_s"] // 1))
    memory = how.overhead_bytes + limits["memory_mb"] * (1 << 20)
    wanted = {
        resource.RLIMIT_CPU: (cpu, cpu + 1),
        resource.RLIMIT_AS: (memory, memory),
        resource.RLIMIT_FSIZE: (limits["file_mb"] * (1 << 20),) * 2,
        resource.RLIMIT_NPROC: (how.counted + limits["processes"],) * 2,
        resource.RLIMIT_NOFILE: (OPEN_FILES, OPEN_FILES),
        resource.RLIMIT_STACK: (STACK_BYTES, STACK_BYTES),
        resource.RLIMIT_MEMLOCK: (0, 0),
        resource.RLIMIT_MSGQUEUE: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
    }
    for kind, (soft, hard) in wanted.items():
        most = resource.getrlimit(kind)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(kind, (soft, hard))
