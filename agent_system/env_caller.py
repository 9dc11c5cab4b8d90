"""Calls of an environment's methods, plain or async, without blocking the event loop and never from
two threads at once.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Protocol

from agent_system.environment import BaseEnv, Observation, Outcome
from agent_system.errors import AgentSystemError
from agent_system.threads import run_plain, watched

logger = logging.getLogger(__name__)


class EnvHandle(Protocol):
    """One environment with awaitable methods, in this process or in another.

    Attributes:
        name: name of its class.
        has_act, has_observe, has_score, has_render: whether its class defines the method.
        has_close: `close` has to be called.
    """

    name: str
    has_act: bool
    has_observe: bool
    has_score: bool
    has_render: bool
    has_close: bool

    async def outcome(self, method: str, *args: Any) -> Outcome:
        """Call `method` and check that it returns an `Outcome`."""
        ...

    async def observation(self, method: str, *args: Any) -> Observation:
        """Call `method` and check that it returns an `Observation`."""
        ...

    async def render(self) -> Any:
        """Return the state for readers, unchecked."""
        ...

    async def fork(self) -> EnvHandle:
        """Return the environment's fork. Raise AgentSystemError when `fork` does not return another
        environment.
        """
        ...

    async def close(self, limit: float) -> None:
        """Close the environment; abandon it with a warning after `limit` seconds."""
        ...


class EnvCaller:
    """An environment of this process, as an `EnvHandle`; `env` is the environment itself."""

    def __init__(self, env: BaseEnv, threads: Executor) -> None:
        self.env = env
        self.name = type(env).__name__
        self.has_act = env.overrides("act")
        self.has_observe = env.overrides("observe")
        self.has_score = env.overrides("score")
        self.has_render = env.overrides("render")
        self.has_close = env.overrides("close")
        self._threads = threads
        self._in_use = asyncio.Lock()

    async def outcome(self, method: str, *args: Any) -> Outcome:
        """Call `method` and check that it returns an `Outcome`."""
        return self._checked(method, await self.call(method, *args), Outcome)

    async def observation(self, method: str, *args: Any) -> Observation:
        """Call `method` and check that it returns an `Observation`."""
        return self._checked(method, await self.call(method, *args), Observation)

    async def render(self) -> Any:
        """Return the state for readers, unchecked."""
        return await self.call("render")

    async def fork(self) -> EnvCaller:
        """Return a caller of the environment's fork. Raise AgentSystemError when `fork` does not
        return another environment.
        """
        env = self._checked("fork", await self.call("fork"), BaseEnv)
        if env is self.env:
            raise AgentSystemError(
                f"{self.name}.fork() returned the environment itself; return an independent copy"
            )
        return EnvCaller(env, self._threads)

    async def call(self, method: str, *args: Any) -> Any:
        """Await an async method; run a plain one in a thread, or directly with `blocking = False`."""
        bound = getattr(self.env, method)
        if not self.env.blocking or inspect.iscoroutinefunction(bound):
            result = bound(*args)
        else:
            result = await self._in_thread(bound, *args)
        return await watched(result) if inspect.isawaitable(result) else result

    async def _in_thread(self, bound: Callable[..., Any], *args: Any) -> Any:
        """Run a method in a thread; if the caller is cancelled, the environment stays locked until
        the thread returns.
        """
        await self._in_use.acquire()
        loop = asyncio.get_running_loop()
        future = self._threads.submit(run_plain, bound, *args)

        def release(_: object) -> None:
            # the loop may have been closed meanwhile
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._in_use.release)

        future.add_done_callback(release)
        return await asyncio.wrap_future(future)

    async def close(self, limit: float) -> None:
        """Close the environment once no thread uses it; abandon it with a warning after `limit`
        seconds.
        """
        if not self.has_close:
            return
        try:
            async with asyncio.timeout(limit) as clock:
                async with self._in_use:
                    pass
                await self.call("close")
        except TimeoutError:
            # The environment's own TimeoutError.
            if not clock.expired():
                raise
            logger.warning("%s.close() did not return within %g s; abandoned", self.name, limit)

    def _checked(self, method: str, value: Any, expected: type) -> Any:
        if not isinstance(value, expected):
            raise AgentSystemError(
                f"{self.name}.{method}() must return {expected.__name__}, found {type(value).__name__}"
            )
        return value
