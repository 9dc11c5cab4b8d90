"""The process that `host_memory.kills_are_told` starts. It says on stderr that the kernel has
killed another one for lack of memory, and what that held.

Every run starts one, so it is a script that imports little: `pathlib` and `subprocess` would take
three times as long as it does.
"""

from __future__ import annotations

import os
import select
import sys
import time

SECONDS = 0.5
# counts of kills that are kept: a killed process may take seconds to end on a busy machine
RECENT = 10
GIB = 2**30


def kills_in(file: str) -> int:
    """Return the kills for lack of memory that a file of a control group, or /proc/vmstat, counts;
    0 if it says none.
    """
    try:
        with open(file, encoding="utf-8") as lines:
            counts = [line.split() for line in lines if line.startswith("oom_kill ")]
    except OSError:
        return 0
    return int(counts[0][1]) if counts else 0


def watch(pid: int, ways: str, counter: str, of_group: bool, limit: int) -> None:
    """Look at a process until the pipe on standard input closes or the process has gone.

    Args:
        pid: of the process.
        ways: ways out, for the message.
        counter: file of `kills_in`.
        of_group: whether it is of the control group of the process.
        limit: of the memory that the process can have, in bytes.
    """
    try:
        # Children of the process may hold the pipe open.
        process = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return
    peak_bytes = 0
    counts = [kills_in(counter)]
    while not (ready := select.select([0, process], [], [], SECONDS)[0]):
        peak_bytes = max(peak_bytes, _held_with_children(pid))
        # A kill of long ago, of another process, is not the cause.
        counts = [*counts[-RECENT:], kills_in(counter)]
    # Without its word the process was killed.
    if 0 in ready and os.read(0, 1):
        return
    time.sleep(SECONDS)
    if kills_in(counter) > counts[0]:
        sys.stderr.write(
            f"error: the system {'' if of_group else 'probably '}killed this run for lack of "
            f"memory: it held {peak_bytes / GIB:.1f} of {limit / GIB:.1f} GiB; {ways}\n"
        )


def _held_with_children(pid: int) -> int:
    """Return the resident bytes of a process and of all that it has started; memory that they share
    counts once in each.
    """
    parents: dict[int, int] = {}
    resident: dict[int, int] = {}
    page = os.sysconf("SC_PAGE_SIZE")
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                fields = stat.read().rpartition(")")[2].split()
            parents[int(name)] = int(fields[1])
            resident[int(name)] = int(fields[21]) * page
        except (OSError, IndexError, ValueError):
            continue  # it has ended
    pids = {pid}
    pid_count = 0
    while len(pids) > pid_count:
        pid_count = len(pids)
        pids |= {child for child, parent in parents.items() if parent in pids}
    return sum(resident.get(member, 0) for member in pids)


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "1", int(sys.argv[5]))
    os._exit(0)  # nothing is left to take apart
