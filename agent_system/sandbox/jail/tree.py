"""The descendants of a process: finding, measuring and killing them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress


def children(pid: int) -> list[int]:
    """Return process ids of the children of all threads of a process; empty when it has ended."""
    child_pids: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                child_pids += [int(word) for word in file.read().split()]
    except FileNotFoundError:
        return child_pids or _children_by_parent(pid)
    except OSError:
        return child_pids
    return child_pids


def _children_by_parent(pid: int) -> list[int]:
    """Return the same where the kernel has no list of children, from the parent of every process."""
    if not os.path.exists(f"/proc/{pid}") or os.path.exists(
        f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    ):
        return []
    child_pids = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == pid:
                    child_pids.append(int(name))
    return child_pids


def descendants(pid: int) -> list[int]:
    """Return process ids of all descendants of a process, parents first."""
    pids = children(pid)
    for child in pids:  # the list grows during the loop
        pids += [c for c in children(child) if c not in pids]
    return pids


def memory_bytes(pid: int) -> int:
    """Return the private and shared memory of a process in bytes, without mapped files; 0 when it
    has ended.

    The first thread reports no memory once it has ended, even if other threads of the process still
    run, so the others are read too.
    """
    with suppress(OSError):
        for thread in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/status", "rb") as file:
                memory_lines = [line for line in file if line.startswith((b"RssAnon:", b"RssShmem:"))]
                if memory_lines:
                    return sum(int(line.split()[1]) * 1024 for line in memory_lines)
    return 0


def threads(pid: int) -> int:
    """Return the number of threads of a process, zombies included; 0 when it has ended."""
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/task"))
    return 0


def threads_of(uid: int) -> int:
    """Return the number of threads of a user on the whole machine, which the process limit counts
    without a user namespace.
    """
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == uid:
                    total += len(os.listdir(f"/proc/{name}/task"))
    return total


def kill_descendants(pid: int) -> None:
    """Kill all descendants of a process, which must be their subreaper so that orphans are found.

    All are stopped first, so that none can fork during the search, then all are killed.
    """
    stopped: set[int] = set()
    while fresh := set(descendants(pid)) - stopped:
        for child in fresh:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGSTOP)
        stopped |= fresh
    for child in stopped:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGKILL)
