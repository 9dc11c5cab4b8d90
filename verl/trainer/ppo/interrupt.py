"""Ctrl-C and SIGTERM: the first signal makes the run save a checkpoint and stop, the second stops
it immediately.

A run stopped by a signal exits with status 128 + the signal's number, as in a shell: 130 for
Ctrl-C, 143 for SIGTERM, so that a script or a scheduler can tell it from a finished run.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from verl.utils.loop_thread import LoopThread, Running

logger = logging.getLogger(__name__)
T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """A signal stopped the run; a resumed run repeats the abandoned work."""


class StoppedAtOnce(KeyboardInterrupt):
    """A signal arrived when there was nothing to save, or for the second time."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"{signal.Signals(number).name} {why}")
        self.number = number


@contextmanager
def stopping_at_once() -> Iterator[None]:
    """Raise `StoppedAtOnce` on Ctrl-C and SIGTERM inside the context, so that `finally` blocks run.

    Enter it after `ray.init`, whose own SIGTERM handler would skip every `finally`.
    """
    previous: dict[int, Any] = {}

    def handle(number: int, _frame: FrameType | None) -> None:
        raise StoppedAtOnce(number, "before the first step or after the last: nothing to checkpoint")

    # Python lets the main thread alone set handlers.
    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class StopRequest:
    """Context manager that installs signal handlers and cancels the work that `run` waits for when
    a signal arrives.

    `number` is the received signal, None before.

    Args:
        saves: whether the run writes a checkpoint when it stops; an evaluation has none to write.
    """

    def __init__(self, saves: bool = True) -> None:
        self.number: int | None = None
        self._saves = saves
        self._running: Running[Any] | None = None
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal was received."""
        return self.number is not None

    def __enter__(self) -> StopRequest:
        # Python lets the main thread alone set handlers.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise StoppedAtOnce(
                number,
                "for the second time" + (": stopped without saving a checkpoint" if self._saves else ""),
            )
        self.number = number
        # an evaluation leaves the checkpoint as it is
        doing = (
            "finishing what cannot be repeated, then checkpointing" if self._saves else "ending the episodes"
        )
        logger.warning("%s: %s; repeat to stop at once", signal.Signals(number).name, doing)
        if (running := self._running) is not None:
            running.cancel()

    def run(self, loop: LoopThread, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on `loop` and wait for it; raise `Interrupted` if a signal came before, or
        cancelled it.
        """
        # work that needs not wait would end before it is cancelled
        if self.requested:
            work.close()
            raise Interrupted("stop requested")
        self._running = running = loop.start(work)
        if self.requested:  # since then
            running.cancel()
        try:
            return running.result()
        except CancelledError:
            raise Interrupted("stop requested") from None
        finally:
            self._running = None
