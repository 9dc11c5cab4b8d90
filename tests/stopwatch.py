"""Seconds that a machine really gave: on one that is shared, everything stands still now and then, which says nothing of our code."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

TICK_S = 0.01
# A thread that sleeps for a tick wakes up this late at most on a machine that is only busy.
LATE_S = 0.05


class Stopwatch:
    """Measures its block by the clock, without the times in which a sleeping thread was not woken up.

    Attributes:
        seconds: of the block, stalls taken off; so far, inside it.
        stalled: seconds in which nothing was run.
    """

    def __enter__(self) -> Self:
        self.stalled, self._over = 0.0, threading.Event()
        self._began, self._ended = time.monotonic(), None
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._watching.join()
        self._ended = time.monotonic()

    @property
    def seconds(self) -> float:
        return (self._ended or time.monotonic()) - self._began - self.stalled

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._over.wait(TICK_S):
            now = time.monotonic()
            if now - before > TICK_S + LATE_S:
                self.stalled += now - before - TICK_S
            before = now
