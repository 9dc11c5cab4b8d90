"""A rollout engine whose process dies is started anew, once a step, and the requests that it had are made again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from verl.protocol.generate import EngineGoneError, GenerateRequest, Generation, RolloutClient, RolloutError

logger = logging.getLogger(__name__)


class RestartingClient:
    """`RolloutClient` of an engine that may be replaced while requests wait; use it on one event loop at a time.

    Args:
        client: of the engine as it is.
        restart: replaces the engine by one with the current weights and returns its client; it blocks, and is run on a thread.
        name: of the engine, for the log and errors.
    """

    def __init__(self, client: RolloutClient, restart: Callable[[], RolloutClient], name: str) -> None:
        self._client, self._restart, self._name = client, restart, name
        self._allowed = True
        self._under_way: asyncio.Task[None] | None = None
        self.restarts = 0
        self._requests, self._since, self._busy_s = 0, 0.0, 0.0

    def take_busy_seconds(self) -> float:
        """Seconds since the last call in which at least one request was under way; requests that still are count next time."""
        seconds, self._busy_s = self._busy_s, 0.0
        return seconds

    @contextmanager
    def _busy(self) -> Iterator[None]:
        if not self._requests:
            self._since = time.perf_counter()
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._busy_s += time.perf_counter() - self._since

    def allow(self) -> None:
        """A new step begins: the engine may be started anew once more."""
        self._allowed = True

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Sample `request.n` replies; raises as the engine does, and `EngineGoneError` when it died for the second time in a step."""
        client = self._client
        with self._busy():
            try:
                return await client.generate(request)
            except RolloutError as error:
                # The end of the old engine reaches some of its requests in other words.
                if not isinstance(error, EngineGoneError) and self._client is client and self._under_way is None:
                    raise
                await self._replaced(client, error)
            return await self._client.generate(request)

    def replace(self, cause: EngineGoneError) -> None:
        """Replace an engine that was found dead while no request was under way; blocks.

        Raises `EngineGoneError` when it died for the second time in a step, or could not be started anew.
        """
        self._begin(cause)
        self._client = self._started()
        self.restarts += 1

    async def _replaced(self, client: RolloutClient, cause: RolloutError) -> None:
        """Return when another engine has taken the place of the one behind `client`; who comes first starts it, the others wait."""
        if self._client is client and self._under_way is None:
            self._begin(cause)
            self._under_way = asyncio.create_task(self._replace())
        if self._under_way is not None:
            await asyncio.shield(self._under_way)

    async def _replace(self) -> None:
        try:
            self._client = await asyncio.to_thread(self._started)
            self.restarts += 1
        finally:
            self._under_way = None

    def _begin(self, cause: RolloutError) -> None:
        """Note that the engine is replaced in this step; raises `EngineGoneError` where it has been already."""
        if not self._allowed:
            raise EngineGoneError(f"engine {self._name} died twice in one step, mend the cause and start again: {cause}") from cause
        self._allowed = False
        logger.warning("engine %s is started anew with the current weights: %s", self._name, cause)

    def _started(self) -> RolloutClient:
        try:
            return self._restart()
        except Exception as error:  # whatever kept it from starting, the run ends with the last checkpoint
            raise EngineGoneError(f"engine {self._name} died and could not be started anew: {error}") from error
