"""Functions of users that handle an error of the kind "works in the main thread only": their first
calls are traced.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
import threading
import types
from collections.abc import Awaitable, Callable, Generator, Sequence
from types import FrameType
from typing import Any

from agent_system.main_thread import in_main_thread

logger = logging.getLogger(__name__)

# The first calls of a function are watched for errors that come from its thread.
WATCHED_CALLS = 20
_NEEDS_MAIN_THREAD = re.compile(r"main[ _]thread|no current event loop in thread", re.IGNORECASE)


class ThreadWatch:
    """Warns, once a function, of errors of the kind "works in the main thread only" that a function
    handles itself.

    The function goes on then, perhaps with a wrong result. Its first calls are traced; one that
    raises needs no warning.
    """

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()

    def call(self, call: Callable[[], Any], function: Callable[..., Any]) -> Any:
        """Return `call()`, a call of `function`."""
        if not self._begins(function):
            return call()
        errors: list[BaseException] = []
        sys.settrace(_tracer(errors))
        try:
            result = call()
        finally:
            sys.settrace(None)
        self._warn(function, errors)
        return result

    async def result(self, awaitable: Awaitable[Any]) -> Any:
        """Return the result of what an `async def` has returned; other tasks of the loop are not
        watched.
        """
        if not inspect.iscoroutine(awaitable) or not self._begins(awaitable):
            return await awaitable
        errors: list[BaseException] = []
        result = await _traced(awaitable.__await__(), _tracer(errors))
        self._warn(awaitable, errors)
        return result

    def _begins(self, function: Callable[..., Any] | Awaitable[Any]) -> bool:
        """Count a call of a function, and return whether it is watched."""
        name = _full_name(function)
        with self._lock:
            calls = self._calls[name] = self._calls.get(name, 0) + 1
        return calls <= WATCHED_CALLS and sys.gettrace() is None and not in_main_thread()

    def _warn(self, function: Callable[..., Any] | Awaitable[Any], errors: Sequence[BaseException]) -> None:
        """Warn of errors that a function has handled, and watch it no longer."""
        if not errors:
            return
        name = _full_name(function)
        with self._lock:
            self._calls[name] = WATCHED_CALLS
        logger.warning(
            "%s handled an error of its thread, %s: %s. It runs in a thread of the run, where only "
            "a process's main thread can do this; if its results depend on it, let it do this in a "
            "process of its own",
            name, type(errors[0]).__name__, " ".join(str(errors[0]).split())[:300],
        )  # fmt: skip


def _full_name(function: Callable[..., Any] | Awaitable[Any]) -> str:
    qualname = getattr(function, "__qualname__", type(function).__name__)
    return f"{getattr(function, '__module__', '')}.{qualname}".removeprefix(".")


def _tracer(errors: list[BaseException]) -> Callable[[FrameType, str, Any], Any]:
    """Return a trace function that collects the errors that come from the thread."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_lines = False
        if event == "exception" and _NEEDS_MAIN_THREAD.search(str(argument[1])):
            errors.append(argument[1])
        return trace

    return trace


@types.coroutine
def _traced(
    steps: Generator[Any, Any, Any], trace: Callable[[FrameType, str, Any], Any]
) -> Generator[Any, Any, Any]:
    """Run a coroutine, with a trace function while it runs and not while it waits."""
    reply: Any = None
    error: BaseException | None = None
    while True:
        sys.settrace(trace)
        try:
            waits_for = steps.send(reply) if error is None else steps.throw(error)
        except StopIteration as end:
            return end.value
        finally:
            sys.settrace(None)
        reply = error = None
        try:
            reply = yield waits_for
        except BaseException as raised:
            # cancelled: the coroutine handles it
            error = raised
