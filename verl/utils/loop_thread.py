"""An event loop in a thread of its own: coroutines run there while the starting thread does other
work, and what belongs to the loop, such as connections, outlives the event loops of its users.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any, Generic, TypeVar

from verl.utils.names import listed

T = TypeVar("T")
logger = logging.getLogger(__name__)

# Time limit of cancelled tasks, in seconds.
END_TIMEOUT_S = 5.0
# A loop that has run nothing for so many seconds is reported while a thread waits for it, which
# looks every `LOOK_S` seconds.
BLOCKED_S = 10.0
LOOK_S = 2.0
# Innermost calls that such a report names.
FRAMES = 4
_reads_frames = threading.Lock()


class Running(Generic[T]):
    """A coroutine on the event loop of another thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], look: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._look = look
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False
        self._future = asyncio.run_coroutine_threadsafe(self._run(work), loop)

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._cancelled:
            # A coroutine that never runs is closed, or Python warns of it.
            work.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        return await work

    def result(self) -> T:
        """Wait for the coroutine and return its result, or raise its error; signal handlers run
        meanwhile, and a blocked loop is reported.

        Raises concurrent.futures.CancelledError after `cancel`, and TimeoutError when the loop has
        been blocked for its time limit.
        """
        while not self._future.done():
            try:
                self._future.exception(LOOK_S)
            except concurrent.futures.TimeoutError:
                self._look()
        return self._future.result()

    def cancel(self) -> None:
        """Cancel the coroutine. `result` still waits until it has ended."""
        self._loop.call_soon_threadsafe(self._cancel)

    def when_done(self, call: Callable[[], object]) -> None:
        """Call `call` when the coroutine has ended, in any thread."""
        self._future.add_done_callback(lambda _: call())

    def _cancel(self) -> None:
        self._cancelled = True
        # without one it has not run yet, and ends when it does
        if self._task is not None:
            self._task.cancel()


class LoopThread:
    """An event loop that runs in a daemon thread, which starts with the first coroutine.

    Attributes:
        closed: `close` has begun.

    Args:
        name: of the thread.
        limit_s: seconds, at least `BLOCKED_S`, for which the loop may be blocked while a thread
            waits for it.
        key: that sets this limit, for the message.
    """

    def __init__(self, name: str, limit_s: float = math.inf, key: str = "") -> None:
        self.closed = False
        self._loop = asyncio.new_event_loop()
        self._limit_s = limit_s
        self._key = key
        self._waited_for = set[concurrent.futures.Future[Any]]()
        self._ending: concurrent.futures.Future[bool] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._lock = threading.Lock()
        self._starts = threading.Lock()
        # when a callback was scheduled that has not run
        self._asked_at: float | None = None
        self._reported = False

    def start(self, work: Coroutine[Any, Any, T]) -> Running[T]:
        """Start `work` and return at once; a thread that waits for it reports a loop that is
        blocked.

        Raises RuntimeError after `close`.
        """
        self._start_thread(work)
        return self._start(work)

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start `work` and return its future: cancelling it cancels the work.

        Raises RuntimeError after `close`.
        """
        self._start_thread(work)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run `work` and return its result, or raise its error.

        Raises TimeoutError after `timeout_s` seconds, when the work is cancelled, and RuntimeError
        after `close`.
        """
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def _start_thread(self, work: Coroutine[Any, Any, Any]) -> None:
        with self._starts:
            if self.closed:
                # A coroutine that never runs is closed, or Python warns of it.
                work.close()
                raise RuntimeError(f"the event loop {self._thread.name} is closed")
            if not self._thread.is_alive():
                self._thread.start()

    def _start(self, work: Coroutine[Any, Any, T]) -> Running[T]:
        running = Running(self._loop, work, self._look)
        self._waited_for.add(running._future)
        running._future.add_done_callback(self._waited_for.discard)
        return running

    def call(self, work: Callable[[], T], *, blocked_too: bool = False) -> T:
        """Run `work` on the loop and return its result, or raise its error.

        Args:
            work: a function, which is not interrupted by tasks on the loop.
            blocked_too: run `work` in this thread if a task has blocked the loop for its time
                limit: meanwhile no other changes anything.
        """

        # acquired by the thread that runs the work, once
        begun = threading.Lock()

        async def on_loop() -> T:
            if not begun.acquire(blocking=False):
                raise asyncio.CancelledError
            return work()

        running = self.start(on_loop())
        try:
            return running.result()
        except TimeoutError:
            if not blocked_too:
                raise
            return work() if begun.acquire(blocking=False) else running.result()

    def _look(self) -> None:
        """Report a callback that has not run for `BLOCKED_S` seconds, once; schedule the next one
        after it has run.

        Raises TimeoutError, which names the tasks on the loop, if it has not run for the time
        limit.
        """
        with self._lock, suppress(RuntimeError):  # the loop is closed
            if self._asked_at is None:
                self._asked_at = time.monotonic()
                self._reported = False
                self._loop.call_soon_threadsafe(self._answer)
                return
            blocked_s = time.monotonic() - self._asked_at
            if blocked_s >= max(self._limit_s, BLOCKED_S):
                raise TimeoutError(
                    f"{self._blocked(blocked_s)}; the limit is {self._key}={self._limit_s:g} s. "
                    f"{self._tasks()}"
                )
            if blocked_s >= BLOCKED_S and not self._reported:
                self._reported = True
                logger.warning("%s", self._blocked(blocked_s))

    def _blocked(self, seconds: float) -> str:
        frame = frame_of(self._thread)
        calls = traceback.extract_stack(frame)[-FRAMES:] if frame else []
        where = " > ".join(f"{call.filename}:{call.lineno} {call.name}" for call in calls)
        return (
            f"the event loop {self._thread.name} has been blocked for {seconds:.0f} s, and "
            f"everything on it waits for {where}: an environment or a team that computes must not "
            "set blocking=False, and its async methods must await"
        )

    def _tasks(self) -> str:
        """Return the task that blocks the loop and those that wait, as far as they have names of
        their own.
        """
        current = asyncio.current_task(self._loop)
        name = current.get_name() if current else "no task"
        return f"It runs {name}; waiting: {listed(other for other in self.named() if other != name) or 'no named task'}"

    def named(self) -> list[str]:
        """Return the names of the tasks on the loop that have names of their own, sorted; call it
        in any thread.
        """
        return sorted(
            task.get_name()
            for task in asyncio.all_tasks(self._loop)
            if not task.get_name().startswith("Task-")
        )

    def _answer(self) -> None:
        self._asked_at = None

    def _run(self) -> None:
        while True:
            try:
                return self._loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                logger.warning(
                    "a task on the loop %s raised %s; the loop goes on",
                    self._thread.name,
                    traceback.format_exc(limit=-1),
                )

    def close(
        self,
        cleanup: Callable[[], Coroutine[Any, Any, object]] | None = None,
        end_timeout_s: float | None = None,
    ) -> bool:
        """Cancel all tasks, wait for them, so that no pending task is destroyed, and end the
        thread.

        `Running.result` of work that has not ended then, as where a task blocks the loop, raises
        CancelledError: no thread waits for ever.

        Args:
            cleanup: runs on the loop after all tasks, if the thread has started; its error is
                raised.
            end_timeout_s: limit of the tasks, in seconds; None: `END_TIMEOUT_S`.

        Returns False if a task has not ended within the limit.
        """
        limit_s = END_TIMEOUT_S if end_timeout_s is None else end_timeout_s
        with self._starts:
            self.closed = True
        # The garbage collector may end the owner of a loop in the loop's own thread, which cannot
        # wait for itself.
        if threading.current_thread() is self._thread:
            self._loop.stop()
            return True
        all_ended = True
        try:
            if self._thread.is_alive():
                if self._ending is None:
                    self._ending = asyncio.run_coroutine_threadsafe(_end_tasks(limit_s, cleanup), self._loop)
                    # Also where a task blocks the loop beyond the limit, the loop ends the other tasks
                    # before it stops: what still waits when a loop is closed fails in the garbage
                    # collector, at any later time.
                    self._ending.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
                all_ended = self._ending.result(max(limit_s, 2 * END_TIMEOUT_S))
        except concurrent.futures.TimeoutError:
            # a task blocks the loop; the thread ends with the process
            all_ended = False
        finally:
            self._stop(limit_s)
        return all_ended

    def _stop(self, limit_s: float) -> None:
        if self._thread.is_alive():
            self._thread.join(limit_s)
        if self._thread.is_alive():
            # a cleanup that does not end is left; a loop that is blocked first ends its tasks
            self._loop.call_soon_threadsafe(self._loop.call_later, 2 * limit_s, self._loop.stop)
        for future in list(self._waited_for):
            future.cancel()
        if not self._thread.is_alive():
            self._loop.close()


def frame_of(thread: threading.Thread) -> FrameType | None:
    """Return the innermost frame of a thread, None if it has ended.

    No garbage collection begins meanwhile: it would stop the process for ever in Python before
    3.11.9 (python/cpython#106883).
    """
    with _reads_frames:
        enabled = gc.isenabled()
        try:
            gc.disable()
            return sys._current_frames().get(thread.ident or 0)
        finally:
            if enabled:
                gc.enable()


async def _end_tasks(limit_s: float, cleanup: Callable[[], Coroutine[Any, Any, object]] | None) -> bool:
    """Cancel all other tasks of the loop; return whether they have ended within the limit."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    pending: set[asyncio.Task[Any]] = set()
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=limit_s)
    await asyncio.get_running_loop().shutdown_asyncgens()
    if cleanup is not None:
        await cleanup()
    return not pending
