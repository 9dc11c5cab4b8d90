"""Ctrl-C and SIGTERM: ask once and the run checkpoints and stops; ask twice and it stops at once."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Interrupted(Exception):
    """The user asked the run to stop, and work was abandoned that a resumed run will repeat."""


class StopRequest:
    """Installs the signal handlers while it is entered, and cancels the event loop's work when one arrives."""

    def __init__(self) -> None:
        self.requested = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt(f"second signal ({signal.Signals(number).name}): stopping without a checkpoint")
        self.requested = True
        logger.warning("%s: finishing what cannot be repeated, then checkpointing; again to stop at once", signal.Signals(number).name)
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def run(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on `loop`; raise `Interrupted` when a signal cancelled it."""
        if self.requested:
            work.close()
            raise Interrupted("stop requested")
        self._loop, self._task = loop, loop.create_task(work)
        try:
            return loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            raise Interrupted("stop requested") from None
        finally:
            self._loop = self._task = None
