"""The time that a test's own code computes, for bounds on work that must not grow."""

from __future__ import annotations

import gc
import threading
import time

_collections: dict[int, float] = {}  # thread -> its CPU seconds in collections, less the one that has begun


def _note(phase: str, _: dict[str, int]) -> None:
    thread = threading.get_ident()
    sign = -1 if phase == "start" else 1
    _collections[thread] = _collections.get(thread, 0.0) + sign * time.thread_time()


gc.callbacks.append(_note)


def cpu_seconds() -> float:
    """Return the CPU seconds of this thread without those of garbage collections: one that is due takes as
    long as other tests of the process have left objects, up to a second.
    """
    return time.thread_time() - _collections.get(threading.get_ident(), 0.0)
