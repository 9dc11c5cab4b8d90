"""Daemon threads for blocking environments, which do not delay the exit of the process."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from agent_system.main_thread import forget_alarm, support_main_thread_calls

if TYPE_CHECKING:
    from agent_system.thread_watch import ThreadWatch

logger = logging.getLogger(__name__)


class _Call(Future[Any]):
    """A call; one that is cancelled while it runs is abandoned, since no thread can be stopped."""

    def __init__(self, on_abandoned: Callable[[], None]) -> None:
        super().__init__()
        self._on_abandoned = on_abandoned
        self._lock = threading.Lock()
        self._abandoned = False

    def cancel(self) -> bool:
        """As `Future.cancel`."""
        cancelled = super().cancel()
        with self._lock:
            newly = self.running() and not self._abandoned
            self._abandoned |= newly
        if newly:
            self._on_abandoned()
        return cancelled

    @property
    def abandoned(self) -> bool:
        """Whether it was abandoned; ask when it has ended."""
        with self._lock:
            return self._abandoned


class DaemonExecutor(Executor):
    """A thread pool of daemon threads, started on demand.

    The pool of the standard library joins its threads when Python exits, so one environment that
    hangs would hang the run. If the system allows fewer threads than `max_workers`, jobs wait for
    the existing ones. A call that is cancelled while it runs has its thread replaced: environments
    that hang would otherwise take all threads of a long run. Alarms work in the threads, and
    everywhere else in the process (`support_main_thread_calls`).
    """

    def __init__(self, max_workers: int) -> None:
        support_main_thread_calls()
        self._max_workers = max_workers
        self._jobs: queue.SimpleQueue[
            tuple[_Call, Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None
        ] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `fn` in a thread."""
        future = _Call(self._replace_thread)
        self._jobs.put((future, fn, args, kwargs))
        # Every release stands for an idle thread, which takes the job.
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._max_workers:
            self._start_thread()
        return future

    def _start_thread(self) -> None:
        """Start one more thread. Raise RuntimeError when the system allows none at all."""
        thread = threading.Thread(target=self._work, name=f"env-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._threads:
                raise
            self._max_workers = len(self._threads)
            logger.warning("%s; continuing with %d threads", error, self._max_workers)
        else:
            self._threads.append(thread)

    def _replace_thread(self) -> None:
        # the thread of the abandoned call ends with it
        self._max_workers += 1
        if not self._jobs.empty():
            self._start_thread()

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """End the threads after the queued jobs. `wait` is ignored, because a hung environment
        would block for ever.
        """
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, fn, args, kwargs = job
            if future.set_running_or_notify_cancel():
                try:
                    try:
                        result = fn(*args, **kwargs)
                    finally:
                        forget_alarm()
                    future.set_result(result)
                except BaseException as error:
                    # the waiter on the future handles it
                    future.set_exception(error)
            # `_replace_thread` has made room for another thread.
            if future.abandoned:
                return
            self._idle.release()
        self._jobs.put(None)  # for the next thread


@cache
def _watch() -> ThreadWatch:
    from agent_system.thread_watch import ThreadWatch  # a run without functions of users needs none

    return ThreadWatch()


async def watched(awaitable: Awaitable[Any]) -> Any:
    """Return the result of what a function of the user has returned."""
    return await _watch().result(awaitable)


def run_plain(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Return `function(...)`. Raise RuntimeError for StopIteration, of which no waiter of a future
    hears.
    """
    try:
        return _watch().call(partial(function, *args, **named), function)
    except StopIteration as error:
        raise RuntimeError(f"{getattr(function, '__qualname__', function)} raised StopIteration") from error
