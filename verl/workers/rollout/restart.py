"""Restarts a rollout engine whose process dies, once per step, and repeats its unfinished requests."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from verl.protocol.generate import EngineGoneError, GenerateRequest, Generation, RolloutClient, RolloutError

logger = logging.getLogger(__name__)


def _ignore(start: float, end: float) -> None:
    """Ignore a busy time."""


class RestartingClient:
    """`RolloutClient` of an engine that may be replaced while requests wait; use it on one event loop at a time.

    Args:
        client: of the current engine.
        restart: replaces the engine by one with the current weights and returns its client; it blocks, and is run on a thread.
        name: of the engine, for the log and errors.
        on_busy: called with start and end, in seconds since the epoch, of every time in which a request was in flight.
    """

    def __init__(
        self, client: RolloutClient, restart: Callable[[], RolloutClient], name: str, on_busy: Callable[[float, float], None] = _ignore
    ) -> None:
        self._client, self._restart, self._name, self._on_busy = client, restart, name, on_busy
        self._allowed = True
        self._lock, self._count_lock = threading.Lock(), threading.Lock()
        self._restarting: asyncio.Task[None] | None = None
        self.restarts = 0
        self._requests, self._since, self._busy_s = 0, 0.0, 0.0
        self._began = 0.0
        self._drained = set[str | None]()
        self._in_flight, self._changed = Counter[str | None](), asyncio.Event()  # requests by adapter; set for a moment when one may go on

    def take_busy_seconds(self) -> float:
        """Return the seconds since the last call with at least one request in flight."""
        with self._count_lock:
            now, seconds = time.perf_counter(), self._busy_s
            if self._requests:
                seconds += now - self._since
                began, self._began = self._began, time.time()
                self._on_busy(began, self._began)
            self._busy_s, self._since = 0.0, now
            return seconds

    async def drain(self, adapter: str | None = None) -> None:
        """Let new requests of an adapter (None: all requests) wait until `release`, and return when none of them is in flight."""
        self._drained.add(adapter)
        while self._in_flight.total() if adapter is None else self._in_flight[adapter]:
            await self._changed.wait()

    def release(self, adapter: str | None = None) -> None:
        """Serve requests again after `drain` of the same adapter; call it on the event loop."""
        self._drained.discard(adapter)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed.clear()

    @contextmanager
    def _busy(self, adapter: str | None) -> Iterator[None]:
        self._in_flight[adapter] += 1
        with self._count_lock:
            if not self._requests:
                self._since, self._began = time.perf_counter(), time.time()
            self._requests += 1
        try:
            yield
        finally:
            self._in_flight[adapter] -= 1
            self._notify()
            with self._count_lock:
                self._requests -= 1
                if not self._requests:
                    self._busy_s += time.perf_counter() - self._since
                    self._on_busy(self._began, time.time())

    def allow(self) -> None:
        """Allow one restart in the step that begins."""
        self._allowed = True

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Sample `request.n` replies; raises as the engine does, and `EngineGoneError` when it died for the second time in a step."""
        while not self._drained.isdisjoint((None, request.adapter)):
            await self._changed.wait()
        with self._busy(request.adapter):
            while True:
                client = self._client
                try:
                    return await client.generate(request)
                except RolloutError as error:
                    # Some requests to an engine that died fail with another RolloutError.
                    if not isinstance(error, EngineGoneError) and self._client is client and self._restarting is None:
                        raise
                    await self._wait_for_restart(client, error)

    @property
    def serving(self) -> RolloutClient:
        """Client of the current engine."""
        return self._client

    def replace(self, client: RolloutClient, cause: RolloutError) -> None:
        """Replace the engine behind `client`, which was found dead, unless that has been done; blocks, also while another thread does it.

        Raises `EngineGoneError` when an engine died for the second time in a step, or could not be restarted.
        """
        with self._lock:
            if self._client is client:
                self._use_restart(cause)
                self._client = self._started()
                self.restarts += 1

    async def _wait_for_restart(self, client: RolloutClient, cause: RolloutError) -> None:
        """Return when the engine behind `client` is replaced; the first caller starts the replacement, the others wait."""
        if self._client is client and self._restarting is None:
            self._restarting = asyncio.create_task(self._replace(client, cause))
        if self._restarting is not None:
            await asyncio.shield(self._restarting)

    async def _replace(self, client: RolloutClient, cause: RolloutError) -> None:
        try:
            await asyncio.to_thread(self.replace, client, cause)
        finally:
            self._restarting = None

    def _use_restart(self, cause: RolloutError) -> None:
        """Use the one restart of this step; raises `EngineGoneError` if it was used already."""
        if not self._allowed:
            raise EngineGoneError(f"engine {self._name} died twice in one step; fix the cause, then restart the run: {cause}") from cause
        self._allowed = False
        logger.warning("engine %s is restarted with the current weights: %s", self._name, cause)

    def _started(self) -> RolloutClient:
        try:
            return self._restart()
        except Exception as error:  # whatever the error, the run ends with the last checkpoint
            raise EngineGoneError(f"engine {self._name} died and could not be restarted: {error}") from error
