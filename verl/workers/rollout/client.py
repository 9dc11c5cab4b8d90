"""A rollout engine that lives elsewhere, seen through the handle of its worker group.

Requests of one tick of the event loop go over in one call, and one call at a time waits for whatever is done, so the number of
calls follows the engine's steps and not the number of episodes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol
from uuid import uuid4

from verl.protocol.generate import EngineGoneError, GenerateRequest, Generation, RolloutClient, RolloutError
from verl.single_controller.worker_group import WorkerDiedError, WorkerGroup

POLL_S = 20.0
# Open requests that a replica may have more than another before an episode leaves it, and episodes whose replica is remembered.
SLACK = 4
REMEMBERED = 100_000


class WorkerGroupClient:
    """`RolloutClient` over a worker group of `RolloutWorker`; use it on one event loop at a time.

    Args:
        group: the worker group.
        timeout_s: limit of one request, in seconds.
        rank: the replica that serves.
    """

    def __init__(self, group: WorkerGroup, timeout_s: float, rank: int = 0) -> None:
        self._group, self._timeout_s, self._rank = group, timeout_s, rank
        self._numbers = itertools.count()
        self._session = ""
        self._futures: dict[int, asyncio.Future[list[Generation]]] = {}
        self._outbox: list[tuple[int, GenerateRequest]] = []
        self._poller: asyncio.Task[None] | None = None
        self._sends: set[asyncio.Task[None]] = set()

    @property
    def load(self) -> int:
        """Requests that wait for an answer."""
        return len(self._futures)

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Sample `request.n` replies.

        Raises `RolloutError` when the engine refuses the request or gives no answer within the time limit, `EngineGoneError` when its
        process is gone.
        """
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        future: asyncio.Future[list[Generation]] = loop.create_future()
        self._futures[number] = future
        self._ensure_poller(loop)
        if not self._outbox:
            loop.call_soon(self._flush)
        self._outbox.append((number, request))
        try:
            return await asyncio.wait_for(future, self._timeout_s)
        except TimeoutError as error:
            name = request.request_id or "(no id)"
            raise RolloutError(f"waited {self._timeout_s:g} s for request {name} on the rollout engine") from error
        finally:
            if self._futures.pop(number, None) is not None and future.cancelled():
                self._cancel(number)

    def _ensure_poller(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._poller is None or self._poller.done():
            self._session, self._outbox = uuid4().hex, []
            self._poller = loop.create_task(self._poll(self._session), name="rollout-poll")
            self._poller.add_done_callback(self._on_end)

    def _flush(self) -> None:
        batch, self._outbox = self._outbox, []
        if batch:
            send = asyncio.get_running_loop().create_task(self._send(self._session, batch))
            self._sends.add(send)
            send.add_done_callback(self._sends.discard)
            send.add_done_callback(self._on_end)

    async def _send(self, session: str, batch: Sequence[tuple[int, GenerateRequest]]) -> None:
        await self._group.call_async("submit", session, list(batch), rank=self._rank)

    async def _poll(self, session: str) -> None:
        while self._futures:
            for served in await self._group.call_async("collect", session, POLL_S, rank=self._rank):
                future = self._futures.pop(served.number, None)
                if future is None or future.done():
                    continue
                if served.generations is None:
                    future.set_exception((EngineGoneError if served.gone else RolloutError)(served.error))
                else:
                    future.set_result(served.generations)
            await asyncio.sleep(0)

    def _cancel(self, number: int) -> None:
        """Give up a request that the engine may still be serving; nobody waits for the answer."""
        if any(number == waiting for waiting, _ in self._outbox):
            self._outbox = [entry for entry in self._outbox if entry[0] != number]
        else:
            self._group.call_async("cancel", self._session, number, rank=self._rank)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Tell everyone who waits when a call could not be made; no later call could answer them."""
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        kind = EngineGoneError if isinstance(error, WorkerDiedError) else RolloutError
        for future in self._futures.values():
            if not future.done():
                failure = kind(f"the rollout engine cannot be reached: {error}")
                failure.__cause__ = error
                future.set_exception(failure)


class Replica(RolloutClient, Protocol):
    """A client that says how many of its requests wait for an answer."""

    @property
    def load(self) -> int:
        """Requests that wait for an answer."""
        ...


class ReplicaClient:
    """`RolloutClient` over equal replicas.

    A request goes where its episode (what stands before the last `/` of `request_id`) was served last, so that the engine finds the
    beginning of the prompt in its prefix cache; or, when that one has over `SLACK` more open requests than another, to the one with
    the fewest.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._served_by: OrderedDict[str, int] = OrderedDict()

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Sample `request.n` replies; raises as the replica does."""
        return await self._replicas[self._choose(request.request_id.rpartition("/")[0])].generate(request)

    def _choose(self, episode: str) -> int:
        idlest = min(range(len(self._replicas)), key=lambda i: self._replicas[i].load)
        known = self._served_by.pop(episode, idlest)
        chosen = idlest if self._replicas[known].load > self._replicas[idlest].load + SLACK else known
        if episode:
            self._served_by[episode] = chosen
            if len(self._served_by) > REMEMBERED:
                self._served_by.popitem(last=False)
        return chosen


def start_engines(group: WorkerGroup, ranks_per_engine: int) -> None:
    """Load the model in every engine of a worker group of `RolloutWorker`; the first rank of each learns which GPUs the others hold."""
    gpus = group.execute_all_sync("get_cuda_visible_devices") if ranks_per_engine > 1 else []
    group.init_model(gpus)


def replica_client(group: WorkerGroup, timeout_s: float, ranks_per_engine: int = 1) -> RolloutClient:
    """The client of a worker group with an engine on every so many ranks, which the first of them has."""
    replicas = [WorkerGroupClient(group, timeout_s, rank) for rank in range(0, group.world_size, ranks_per_engine)]
    return replicas[0] if len(replicas) == 1 else ReplicaClient(replicas)
