"""An event loop in a thread of its own, so that coroutines run while the starting thread does other work."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")
logger = logging.getLogger(__name__)

# Time limit of cancelled tasks, in seconds.
END_TIMEOUT_S = 5.0


class Running(Generic[T]):
    """A coroutine on the event loop of another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False
        self._future = asyncio.run_coroutine_threadsafe(self._run(work), loop)

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._cancelled:
            work.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        return await work

    def result(self) -> T:
        """Wait for the coroutine and return its result, or raise its error; signal handlers run meanwhile.

        Raises concurrent.futures.CancelledError after `cancel`.
        """
        return self._future.result()

    def cancel(self) -> None:
        """Cancel the coroutine. `result` still waits until it has ended."""
        self._loop.call_soon_threadsafe(self._cancel)

    def when_done(self, call: Callable[[], object]) -> None:
        """Call `call` when the coroutine has ended, in any thread."""
        self._future.add_done_callback(lambda _: call())

    def _cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:  # else the task has not run yet, and ends when it does
            self._task.cancel()


class LoopThread:
    """An event loop that runs in a daemon thread, which starts with the first coroutine."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._waited_for = set[concurrent.futures.Future[Any]]()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, work: Coroutine[Any, Any, T]) -> Running[T]:
        """Start `work` and return at once."""
        if not self._thread.is_alive():
            self._thread.start()
        running = Running(self._loop, work)
        self._waited_for.add(running._future)
        running._future.add_done_callback(self._waited_for.discard)
        return running

    def _run(self) -> None:
        while True:
            try:
                return self._loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                logger.warning("a task on the loop %s raised %s; the loop goes on", self._thread.name, traceback.format_exc(limit=-1))

    def close(self) -> None:
        """Cancel all tasks, wait for them, so that no pending task is destroyed, and end the thread.

        `Running.result` of work that has not ended then, as where a task blocks the loop, raises CancelledError: no thread waits for ever.
        """
        if self._thread.is_alive():
            with suppress(concurrent.futures.TimeoutError):  # a task blocks the loop; the thread ends with the process
                self.start(_cancel_all())._future.result(2 * END_TIMEOUT_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(END_TIMEOUT_S)
        for future in list(self._waited_for):
            future.cancel()
        if not self._thread.is_alive():
            self._loop.close()


async def _cancel_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=END_TIMEOUT_S)
    await asyncio.get_running_loop().shutdown_asyncgens()
