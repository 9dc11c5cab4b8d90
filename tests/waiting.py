"""Waiting for what a test is about: a condition, what an event loop has to do, a signal that is handled.

A time that is slept stands for nothing: on a busy machine another thread, process or task has not come as far
by then. The limits here are for what never comes.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from verl.utils.loop_thread import frame_of

if TYPE_CHECKING:  # processes of runs import this as well
    import pytest

T = TypeVar("T")
# Seconds after which what a test waits for will not come.
LIMIT_S = 60.0
# Seconds of a turn of an event loop without a time of its own.
TURN_S = 1e-6
# Turns of an event loop in which all that is ready has been done, and what follows from it.
TURNS = 50


def wait_until(condition: Callable[[], T], within_s: float = LIMIT_S) -> T:
    """Return the value of a condition as soon as it is true.

    Raises AssertionError when it is not after so many seconds.
    """
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{value!r} after {within_s:g} s"
        time.sleep(0.01)
    return value


async def until(condition: Callable[[], T], within_s: float = LIMIT_S) -> T:
    """As `wait_until`, for a coroutine: the event loop goes on meanwhile."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{value!r} after {within_s:g} s"
        await asyncio.sleep(0.001)
    return value


async def settle() -> None:
    """Let all tasks of the event loop go on until each waits for a time, a thread or a connection."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


def replace(path: Path, content: str | bytes, beside: Path) -> None:
    """Write a file so that who looks at it sees all of it or nothing.

    Args:
        path: of the file.
        content: of it.
        beside: a folder on the same file system at which nobody looks.
    """
    whole = beside / f"{path.name}.new"
    whole.write_bytes(content.encode() if isinstance(content, str) else content)
    whole.replace(path)


def _to_this_process(number: int) -> None:
    os.kill(os.getpid(), number)


def send_signal(number: int, send: Callable[[int], None] = _to_this_process) -> None:
    """Send this process a signal that a run handles (`StopRequest`), and return once it has been handled.

    Sent by another thread than the main one, a signal is handled when the main thread comes to it: what the
    run has in progress could be over by then.
    """
    handled = threading.Event()
    log = logging.getLogger("verl.trainer.ppo.interrupt")

    def tell(_: logging.LogRecord) -> bool:
        handled.set()
        return True

    log.addFilter(tell)
    try:
        send(number)
        assert handled.wait(LIMIT_S), "no run handles the signal"
    finally:
        log.removeFilter(tell)
    if threading.current_thread() is not threading.main_thread():
        wait_until(lambda: not _handles_a_signal(threading.main_thread()))


def _handles_a_signal(thread: threading.Thread) -> bool:
    """Whether a thread is in `StopRequest._handle`."""
    frame = frame_of(thread)
    while frame is not None:
        if frame.f_code.co_qualname == "StopRequest._handle":
            return True
        frame = frame.f_back
    return False


class _NoWait(selectors.DefaultSelector):
    """Does not wait for the time of an event loop to pass: the time is moved on."""

    seconds = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """Return what is ready; with nothing ready, let `timeout` seconds be over.

        A turn of the loop takes the least time: what is left of a limit would never become less.
        """
        ready = super().select(0 if timeout is not None else None)
        self.seconds += TURN_S + (timeout if timeout and not ready else 0.0)
        return ready


class _TimelessLoop(asyncio.SelectorEventLoop):
    """An event loop with a time of its own."""

    def __init__(self) -> None:
        self._own = _NoWait()
        super().__init__(self._own)

    def time(self) -> float:
        """Return its time, which only waiting moves on."""
        return 1000.0 + self._own.seconds


def timeless(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Let an async test run on an event loop whose time passes only while all tasks wait for it, at once:
    limits of any length take no time, and what computes is never late.

    For tasks alone: threads, processes and sockets get no time to answer.
    """

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=_TimelessLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


def on_loop_time(patch: pytest.MonkeyPatch, *modules: str) -> None:
    """Let `time` of modules be that of the running event loop, in a `timeless` test."""
    now = lambda: asyncio.get_running_loop().time()  # noqa: E731
    for module in modules:
        patch.setattr(f"{module}.time", SimpleNamespace(monotonic=now, time=now))
