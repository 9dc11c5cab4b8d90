"""Forks of one episode's environment: each is closed exactly once, also when calls are cancelled."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from agent_system.env_caller import EnvHandle

logger = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 30.0


class Forks:
    """The forks of an episode that are open, being made or being closed."""

    def __init__(self) -> None:
        self._open: set[EnvHandle] = set()
        self._making: set[asyncio.Task[EnvHandle]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()
        self._ended = False

    async def make(self, origin: EnvHandle) -> EnvHandle:
        """Return a fork of `origin`. If the caller is cancelled, the fork is still made and closed
        with the others.
        """
        # environments need not support concurrent copies
        await self._one_at_a_time.acquire()
        making = _keep(self._making, asyncio.create_task(self._make(origin)))
        making.add_done_callback(lambda _: self._one_at_a_time.release())
        return await asyncio.shield(making)

    def adopt(self, fork: EnvHandle, before: EnvHandle) -> EnvHandle:
        """Return `fork` as the environment of the episode; the environment `before` it will be
        closed.
        """
        self._open.remove(fork)
        self._open.add(before)
        return fork

    async def prune(self) -> None:
        """Close all forks but the environment of the episode, concurrently; failures to close are
        logged.
        """
        self._close_all()
        if self._closing:
            await asyncio.wait(self._closing)

    async def end(self, env: EnvHandle) -> None:
        """Close the environment of the episode as well, and forks that are still being made as soon
        as they exist.

        Raises the error of `env.close`.
        """
        self._ended = True
        self._close_all()
        closing = (
            _keep(self._closing, asyncio.create_task(env.close(CLOSE_TIMEOUT_S))) if env.has_close else None
        )
        if self._making:
            _, late = await asyncio.wait(self._making, timeout=CLOSE_TIMEOUT_S)
            if late:
                logger.warning("%s.fork() did not return within %g s; abandoned", env.name, CLOSE_TIMEOUT_S)
        await self.prune()
        if closing is not None:
            closing.result()

    async def _make(self, origin: EnvHandle) -> EnvHandle:
        fork = await origin.fork()
        self._open.add(fork)
        # Made after the end: nobody else would close it.
        if self._ended:
            self._close_all()
        return fork

    def _close_all(self) -> None:
        while self._open:
            env = self._open.pop()
            if env.has_close:
                _keep(self._closing, asyncio.create_task(_close(env)))


async def _close(env: EnvHandle) -> None:
    try:
        await env.close(CLOSE_TIMEOUT_S)
    except Exception as error:
        # a fork that cannot be closed does not affect the episode
        logger.warning("%s.close() failed on a fork: %s: %s", env.name, type(error).__name__, error)


def _keep(tasks: set[asyncio.Task[Any]], task: asyncio.Task[Any]) -> asyncio.Task[Any]:
    """Keep a reference to a task until it is done."""
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
