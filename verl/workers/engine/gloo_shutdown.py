"""Shutdown of a process that was in a gloo group: wait until gloo's threads have released their
tensors before the interpreter ends.

After a collective has ended, the thread that ran it releases its tensors, for which it needs the
GIL. A thread that does so while the interpreter is being finalised is made to exit inside C++,
which aborts the process ("terminate called without an active exception"). Destroying the group does
not wait for these threads, because DTensor's caches keep meshes, and these their groups, alive.
"""

from __future__ import annotations

import atexit
import time
from pathlib import Path

THREAD_NAME = "pt_gloo_runloop"
_TASKS = Path("/proc/self/task")
_PAUSE_S = 0.005
_LIMIT_S = 5.0


def wait_at_exit() -> None:
    """Call `wait_for_threads` once when the interpreter exits."""
    atexit.unregister(wait_for_threads)
    atexit.register(wait_for_threads)


def wait_for_threads(tasks: Path = _TASKS, limit_s: float = _LIMIT_S) -> bool:
    """Wait until gloo's threads sleep, in two consecutive checks with the GIL released in between.

    Args:
        tasks: folder of this process's threads (Linux); if it does not exist, return after the two
            checks.
        limit_s: time limit in seconds.

    Returns:
        whether they sleep.
    """
    end = time.monotonic() + limit_s
    quiet = 0
    while time.monotonic() < end:
        time.sleep(_PAUSE_S)
        quiet = quiet + 1 if all(state == "S" for state in _states(tasks)) else 0
        if quiet == 2:
            return True
    return False


def _states(tasks: Path) -> list[str]:
    """Return the state letter of each of gloo's threads."""
    states = []
    for comm in tasks.glob("*/comm"):
        try:
            if comm.read_text().strip() == THREAD_NAME:
                states.append((comm.parent / "stat").read_text().rpartition(")")[2].split()[0])
        except OSError:  # the thread has ended
            continue
    return states
