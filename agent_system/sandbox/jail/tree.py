"""The processes below a process: who they are, what they hold, and their end."""

from __future__ import annotations

import os
import signal
from contextlib import suppress


def children(pid: int) -> list[int]:
    """Process ids of the children of all threads of a process; none when it is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(word) for word in file.read().split()]
    except FileNotFoundError:
        return found or _children_by_parent(pid)
    except OSError:
        return found
    return found


def _children_by_parent(pid: int) -> list[int]:
    """The same where the kernel keeps no list of children: every process is asked for its parent."""
    if not os.path.exists(f"/proc/{pid}") or os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):
        return []
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == pid:
                    found.append(int(name))
    return found


def descendants(pid: int) -> list[int]:
    """Process ids of all processes below a process, parents first."""
    found = children(pid)
    for child in found:  # grows while it is read
        found += [c for c in children(child) if c not in found]
    return found


def memory_bytes(pid: int) -> int:
    """Private and shared memory that a process holds, without files it has mapped; 0 when it is gone.

    A first thread that has ended holds none any more, while the others of its process go on: they are asked as well.
    """
    with suppress(OSError):
        for thread in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/status", "rb") as file:
                found = [line for line in file if line.startswith((b"RssAnon:", b"RssShmem:"))]
                if found:
                    return sum(int(line.split()[1]) * 1024 for line in found)
    return 0


def threads(pid: int) -> int:
    """Threads of a process, one that has ended and is not yet collected included; 0 when it is gone."""
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/task"))
    return 0


def threads_of(uid: int) -> int:
    """Threads of a user on the whole machine, which the limit of processes counts where there is no user namespace."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == uid:
                    total += len(os.listdir(f"/proc/{name}/task"))
    return total


def kill_descendants(pid: int) -> None:
    """Kill all processes below a process, which must be their subreaper for orphans to be found.

    First all are stopped, so that none can fork while others are looked for, then all are killed.
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
