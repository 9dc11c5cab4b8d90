"""Threads for blocking environments that never keep the process from ending."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

logger = logging.getLogger(__name__)


class DaemonExecutor(Executor):
    """A thread pool of daemon threads, started on demand.

    The pool of the standard library joins its threads when Python exits, so one environment that hangs would hang the run. Where the
    system gives fewer threads than `max_workers`, jobs wait for those that there are.
    """

    def __init__(self, max_workers: int) -> None:
        self._max_workers = max_workers
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `fn` in a thread."""
        future: Future[Any] = Future()
        self._jobs.put((future, fn, args, kwargs))
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._max_workers:
            self._start_thread()
        return future

    def _start_thread(self) -> None:
        """Raises RuntimeError when the system gives not even one."""
        thread = threading.Thread(target=self._work, name=f"env-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._threads:
                raise
            self._max_workers = len(self._threads)
            logger.warning("%s; going on with %d threads", error, self._max_workers)
        else:
            self._threads.append(thread)

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Tell the threads to end after the jobs at hand; `wait` is not honoured, a hung environment would never come back."""
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, fn, args, kwargs = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:  # whatever it is belongs to who waits for the future
                    future.set_exception(error)
            self._idle.release()
