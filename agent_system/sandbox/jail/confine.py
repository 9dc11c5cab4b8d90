"""The last steps before a program runs: its user, limits and seccomp filter. No step can be undone."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Callable
from typing import Any, NamedTuple

from . import kernel, landlock, stacks, tree

STACK_BYTES = 64 << 20
# No memory limit counts the kernel's buffers of sockets and pipes: their number is bounded here,
# their size by the filter.
OPEN_FILES = 64
# Pending timers and signals use kernel memory.
PENDING_SIGNALS = 256
# Processes and threads that the same user may start elsewhere while a test runs without using up
# the test's limit.
OTHER_THREADS = 1000


class Confinement(NamedTuple):
    """Isolation of the programs of one worker.

    Attributes:
        namespaces: the process has its own namespaces and file system view.
        landlock: Landlock restricts access to files.
        filter: installs the filter of system calls; None for none.
        uid: user to become; None keeps the user.
        readable: paths that can be read with `landlock`.
        writable: likewise files that can be written; the folder of a run is another.
        counted: number of processes and threads of the same user outside the program, which the
            process limit counts too; None if it varies: then the watcher counts those of the run,
            and the kernel's limit is only a ceiling between its looks.
        overhead_bytes: address space in use before the program starts.
    """

    namespaces: bool
    landlock: bool
    filter: Callable[[], None] | None
    uid: int | None
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    counted: int | None
    overhead_bytes: int


def confine_worker() -> None:
    """Apply the restrictions that are the same for every program and that the starting processes
    can live with.
    """
    kernel.no_new_privileges()
    kernel.never_gain_capabilities()
    if os.geteuid() == 0:
        # The groups of root would stay with the user of programs.
        os.setgroups([])
    kernel.share_heap()
    # Programs may raise it, as recursive ones do: the stack counts as memory.
    resource.setrlimit(
        resource.RLIMIT_STACK,
        (_at_most(resource.RLIMIT_STACK, STACK_BYTES), resource.getrlimit(resource.RLIMIT_STACK)[1]),
    )
    _set({
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_SIGPENDING: PENDING_SIGNALS,
    })  # fmt: skip


def limit_job(how: Confinement, limits: dict[str, Any]) -> None:
    """Set the limits of a job that its init can live with."""
    if how.counted is not None:
        _set({resource.RLIMIT_NPROC: how.counted + limits["processes"]})
    # Not earlier: descriptors of folders that are open for programs have higher numbers.
    _set({resource.RLIMIT_NOFILE: OPEN_FILES})
    stacks.bound(limits["memory_mb"] << 19, limits["processes"])


def confine(how: Confinement, limits: dict[str, Any], folder: str) -> None:
    """Confine this process, which then becomes the program. Raise OSError naming the step that
    failed.

    Args:
        how: the isolation.
        limits: the fields of `SandboxLimitsConfig`.
        folder: the only writable folder.
    """
    cpu_s = math.ceil(limits["cpu_s"])
    # The soft limit's signal identifies the cause; the hard limit's signal cannot be ignored.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    # The init writes the input of a program, which may be larger than its files.
    _set(
        {
            resource.RLIMIT_AS: how.overhead_bytes + (limits["memory_mb"] << 20),
            resource.RLIMIT_FSIZE: limits["disk_mb"] << 20,
        }
    )
    # in a namespace the host's processes are not visible
    if how.counted is None and not how.namespaces:
        _set({resource.RLIMIT_NPROC: tree.threads_of(os.getuid()) + limits["processes"] + OTHER_THREADS})
    if how.uid is not None:
        os.setresgid(how.uid, how.uid, how.uid)
        os.setresuid(how.uid, how.uid, how.uid)  # also drops the capabilities
    # In a user namespace of its own also an ordinary user has all of them.
    elif how.namespaces:
        kernel.drop_capabilities()
    if not how.namespaces:
        kernel.die_with_parent()  # not earlier: a change of user resets it
    if how.landlock:
        landlock.restrict(how.readable, (*how.writable, folder))
    # Last: it refuses calls of the steps before.
    if how.filter is not None:
        how.filter()


def _set(limits: dict[int, int]) -> None:
    """Set soft and hard limits, none above the present hard limit."""
    for kind, value in limits.items():
        value = _at_most(kind, value)
        resource.setrlimit(kind, (value, value))


def _at_most(kind: int, value: int) -> int:
    """Return `value`, or the present hard limit if that is lower."""
    most = resource.getrlimit(kind)[1]
    return value if most == resource.RLIM_INFINITY else min(value, most)
