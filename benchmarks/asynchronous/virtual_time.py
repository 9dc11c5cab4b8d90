"""An event loop whose clock jumps to the next timer, so that coroutines simulate hours in seconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Clock(selectors.DefaultSelector):
    """A selector that, instead of waiting, moves its clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("every coroutine of the simulation waits for another one, and none for a time")
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop without files and threads; `time` is simulated seconds."""

    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def simulate(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in simulated time. Raises RuntimeError when it waits for something that never
    happens.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
