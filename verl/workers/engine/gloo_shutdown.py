"""The end of a process that was in a gloo group: gloo's threads let go of tensors while there still is an interpreter.

After a collective has ended, the thread that ran it drops its tensors, for which it needs the interpreter's lock. A thread that comes to
it only when the interpreter is being torn down is made to exit inside C++, which aborts the process ("terminate called without an active
exception"). Destroying the group does not wait for these threads, because DTensor's caches keep meshes, and these their groups, alive.
"""

from __future__ import annotations

import atexit
import time
from pathlib import Path

THREAD_NAME = "pt_gloo_runloop"
_TASKS = Path("/proc/self/task")
_PAUSE_S, _LIMIT_S = 0.005, 5.0


def settle_at_exit() -> None:
    """Call `settle` when the interpreter ends, once."""
    atexit.unregister(settle)
    atexit.register(settle)


def settle(tasks: Path = _TASKS, limit_s: float = _LIMIT_S) -> bool:
    """Wait until gloo's threads sleep: seen so twice in a row, with the interpreter's lock free in between.

    Args:
        tasks: folder of this process's threads (Linux); without it one pause is all.
        limit_s: give up after so many seconds.

    Returns:
        whether they sleep.
    """
    end, quiet = time.monotonic() + limit_s, 0
    while time.monotonic() < end:
        time.sleep(_PAUSE_S)
        quiet = quiet + 1 if all(state == "S" for state in _states(tasks)) else 0
        if quiet == 2:
            return True
    return False


def _states(tasks: Path) -> list[str]:
    """State letter of each of gloo's threads."""
    states = []
    for comm in tasks.glob("*/comm"):
        try:
            if comm.read_text().strip() == THREAD_NAME:
                states.append((comm.parent / "stat").read_text().rpartition(")")[2].split()[0])
        except OSError:  # the thread has ended
            continue
    return states
