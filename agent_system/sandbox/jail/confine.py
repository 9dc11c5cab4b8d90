"""The last steps before a program runs: its user, its limits, its filter. Every step is for good."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Callable
from typing import Any, NamedTuple

from . import kernel, landlock, tree

STACK_BYTES = 64 << 20
# The kernel's buffers of sockets and pipes are in no limit of memory: their number is bounded here, their size by the filter.
OPEN_FILES = 64
# Timers and signals that wait are held by the kernel.
WAITING_SIGNALS = 256
# Processes and threads that others of the same user may start while a test runs, without the test running out of its own.
OTHERS = 1000


class Confinement(NamedTuple):
    """How the programs of one worker are held.

    Attributes:
        namespaces: the process is in namespaces of its own, with a view of its own.
        landlock: files are kept away by Landlock.
        filter: puts the filter of system calls in place; None for none.
        uid: user to become; None stays.
        readable: with `landlock`, what can be read.
        counted: processes and threads of the same user that are not the program's, which the limit of processes counts too; None where
            others start and end some: then the watcher counts those of the run, and the limit is a ceiling for what comes in between.
        overhead_bytes: address space that is taken before the program begins.
    """

    namespaces: bool
    landlock: bool
    filter: Callable[[], None] | None
    uid: int | None
    readable: tuple[str, ...]
    counted: int | None
    overhead_bytes: int


def confine_worker() -> None:
    """What is the same for every program and does not hinder those who start it."""
    kernel.no_new_privileges()
    kernel.never_gain_capabilities()
    if os.geteuid() == 0:
        os.setgroups([])
    _set({
        resource.RLIMIT_STACK: STACK_BYTES,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_SIGPENDING: WAITING_SIGNALS,
    })  # fmt: skip


def limit_job(how: Confinement, limits: dict[str, Any]) -> None:
    """Limits of a job that its init can live with."""
    if how.counted is not None:
        _set({resource.RLIMIT_NPROC: how.counted + limits["processes"]})
    _set({
        resource.RLIMIT_FSIZE: limits["file_mb"] << 20,
        resource.RLIMIT_NOFILE: OPEN_FILES,  # only here: folders that are open for programs have higher numbers
    })  # fmt: skip


def confine(how: Confinement, limits: dict[str, Any], folder: str) -> None:
    """Confine this process, which is to be the program. Raises OSError saying which step failed.

    Args:
        how: what is done.
        limits: the fields of `Limits`.
        folder: the one writable folder.
    """
    cpu_s = math.ceil(limits["cpu_s"])
    # The signal of the soft limit says what happened, that of the hard limit cannot be ignored.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    _set({resource.RLIMIT_AS: how.overhead_bytes + (limits["memory_mb"] << 20)})
    if how.counted is None and not how.namespaces:  # elsewhere the host's processes cannot be seen
        _set({resource.RLIMIT_NPROC: tree.threads_of(os.getuid()) + limits["processes"] + OTHERS})
    if how.uid is not None:
        os.setresgid(how.uid, how.uid, how.uid)
        os.setresuid(how.uid, how.uid, how.uid)  # takes the capabilities with it
    elif how.namespaces:
        kernel.drop_capabilities()
    if not how.namespaces:
        kernel.die_with_parent()  # only now: a change of user takes it back
    if how.landlock:
        landlock.restrict(how.readable, folder)
    if how.filter is not None:
        how.filter()


def _set(wanted: dict[int, int]) -> None:
    """Set limits for good, none above what we may have ourselves."""
    for kind, value in wanted.items():
        most = resource.getrlimit(kind)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (value, value))
