"""Restarts a rollout engine whose process dies, once per step, and repeats its unfinished requests."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from verl.protocol.generate import EngineGoneError, GenerateRequest, Generation, RolloutClient, RolloutError
from verl.utils.names import listed

logger = logging.getLogger(__name__)


def _ignore(start: float, end: float) -> None:
    """Ignore a busy time."""


class RestartingClient:
    """`RolloutClient` of an engine that may be replaced while requests wait; use it on one event
    loop at a time.

    Args:
        client: of the current engine.
        restart: replaces the engine by one with the current weights and returns its client; it
            blocks, and is run on a thread.
        name: of the engine, for the log and errors.
        on_busy: called with start and end, in seconds since the epoch, of every time in which a
            request was in flight.
        limit_s: seconds that `drain` waits for an engine that samples no token.
    """

    def __init__(
        self,
        client: RolloutClient,
        restart: Callable[[], RolloutClient],
        name: str,
        on_busy: Callable[[float, float], None] = _ignore,
        limit_s: float = math.inf,
    ) -> None:
        self._client = client
        self._restart = restart
        self._name = name
        self._on_busy = on_busy
        self._limit_s = limit_s
        self._allowed = True
        self._lock = threading.Lock()
        self._count_lock = threading.Lock()
        self._restarting: asyncio.Task[None] | None = None
        self.restarts = 0
        self._requests = 0
        self._since = 0.0
        self._busy_s = 0.0
        self._began = 0.0
        self._answered = 0.0
        self._drained = set[str | None]()
        self._in_flight = dict[int, GenerateRequest]()
        # set for a moment when a request may go on
        self._numbers = itertools.count()
        self._changed = asyncio.Event()

    def take_busy_seconds(self) -> float:
        """Return the seconds since the last call with at least one request in flight."""
        with self._count_lock:
            now = time.perf_counter()
            seconds = self._busy_s
            if self._requests:
                seconds += now - self._since
                began = self._began
                self._began = time.time()
                self._on_busy(began, self._began)
            self._busy_s = 0.0
            self._since = now
            return seconds

    @property
    def waiting_since(self) -> float | None:
        """When requests in flight began to wait for the next answer of the engine, in seconds since
        the epoch; None without requests.
        """
        with self._count_lock:
            return self._answered if self._requests else None

    async def drain(self, adapter: str | None = None) -> None:
        """Let new requests of an adapter (None: all requests) wait until `release`, and return when
        none of them is in flight.

        Raises TimeoutError, which names those in flight, when for `limit_s` none has ended and the
        engine has sampled no token.
        """
        self._drained.add(adapter)
        clock = asyncio.get_running_loop().time
        client = self._client
        since = clock()
        while left := self._open(adapter):
            # A new engine has the whole time limit.
            if self._restarting or self._client is not client:
                client = self._client
                since = clock()
            since = max(since, getattr(client, "progress_at", since))
            if clock() >= since + self._limit_s:
                raise TimeoutError(
                    f"new weights of engine {self._name} wait for the replies to {listed(left)}, "
                    f"but it has sampled no token for {self._limit_s:g} s, twice "
                    "rollout.call_timeout_s"
                )
            # Whether time is up is decided above: the engine may have sampled meanwhile.
            with suppress(TimeoutError):
                async with asyncio.timeout_at(since + self._limit_s if self._limit_s < math.inf else None):
                    await self._changed.wait()
                    since = clock()

    def _open(self, adapter: str | None = None) -> list[str]:
        """Return the ids of requests in flight of an adapter (None: all)."""
        return [
            request.request_id
            for request in list(self._in_flight.values())
            if adapter in (None, request.adapter)
        ]

    def release(self, adapter: str | None = None) -> None:
        """Serve requests again after `drain` of the same adapter; call it on the event loop."""
        self._drained.discard(adapter)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed.clear()

    @contextmanager
    def _busy(self, request: GenerateRequest) -> Iterator[None]:
        self._in_flight[number := next(self._numbers)] = request
        # `take_busy_seconds` is called on another thread.
        with self._count_lock:
            if not self._requests:
                self._since = time.perf_counter()
                self._began = time.time()
                self._answered = self._began
            self._requests += 1
        try:
            yield
        finally:
            del self._in_flight[number]
            self._notify()
            with self._count_lock:
                self._requests -= 1
                self._answered = time.time()
                if not self._requests:
                    self._busy_s += time.perf_counter() - self._since
                    self._on_busy(self._began, time.time())

    def allow(self) -> None:
        """Allow one restart in the step that begins."""
        self._allowed = True

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Sample `request.n` replies; raises as the engine does, and `EngineGoneError` when it died
        for the second time in a step.
        """
        while not self._drained.isdisjoint((None, request.adapter)):
            await self._changed.wait()
        with self._busy(request):
            while True:
                client = self._client
                try:
                    return await client.generate(request)
                except RolloutError as error:
                    # Some requests to an engine that died fail with another RolloutError.
                    if (
                        not isinstance(error, EngineGoneError)
                        and self._client is client
                        and self._restarting is None
                    ):
                        raise
                    await self._wait_for_restart(client, error)

    @property
    def serving(self) -> RolloutClient:
        """Client of the current engine."""
        return self._client

    def replace(self, client: RolloutClient, cause: RolloutError) -> None:
        """Replace the engine behind `client`, which was found dead, unless that has been done;
        blocks, also while another thread does it.

        Raises `EngineGoneError` when an engine died for the second time in a step, or could not be
        restarted.
        """
        with self._lock:
            if self._client is client:
                self._use_restart(cause)
                self._client = self._started()
                self.restarts += 1

    async def _wait_for_restart(self, client: RolloutClient, cause: RolloutError) -> None:
        """Return when the engine behind `client` is replaced; the first caller starts the
        replacement, the others wait.
        """
        if self._client is client and self._restarting is None:
            self._restarting = asyncio.create_task(self._replace(client, cause))
        if self._restarting is not None:
            # A request that is cancelled must not end the restart for which others wait.
            await asyncio.shield(self._restarting)

    async def _replace(self, client: RolloutClient, cause: RolloutError) -> None:
        try:
            await asyncio.to_thread(self.replace, client, cause)
        finally:
            self._restarting = None

    def _use_restart(self, cause: RolloutError) -> None:
        """Use the one restart of this step; raises `EngineGoneError` if it was used already."""
        if not self._allowed:
            why = f"engine {self._name} died twice in one step; fix the cause, then restart the run: {cause}"
            raise EngineGoneError(why + self._waiting) from cause
        self._allowed = False
        logger.warning("engine %s is restarted with the current weights: %s", self._name, cause)

    def _started(self) -> RolloutClient:
        try:
            return self._restart()
        except Exception as error:
            # whatever the error, the run ends with the last checkpoint
            raise EngineGoneError(
                f"engine {self._name} died and could not be restarted: {error}{self._waiting}"
            ) from error

    @property
    def _waiting(self) -> str:
        """End of a message that names the requests that wait for a dead engine."""
        left = listed(filter(None, self._open()))
        return f"; requests that wait for it: {left}" if left else ""
