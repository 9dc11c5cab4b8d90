"""Clients of rollout engines in other processes, through the handle of their worker group.

Requests of one tick of the event loop are sent in one call, and one call at a time polls for
finished replies, so the number of calls grows with the engine's steps and not with the number of
episodes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol
from uuid import uuid4

from verl.protocol.generate import (
    EngineGoneError,
    EngineStuckError,
    GenerateRequest,
    Generation,
    RolloutClient,
    RolloutError,
)
from verl.single_controller.worker_group import WorkerDiedError, WorkerGroup

POLL_S = 20.0
# Maximum difference in open requests between two replicas before an episode moves, and number of
# episodes whose replica is remembered.
MAX_IMBALANCE = 4
MAX_EPISODES = 100_000


class WorkerGroupClient:
    """`RolloutClient` over a worker group of `RolloutWorker`; use it on one event loop at a time.

    Args:
        group: the worker group.
        timeout_s: seconds that a request waits for an engine which samples nothing
            (`rollout.call_timeout_s`).
        rank: of the replica.

    Attributes:
        progress_at: when the engine was last seen to have sampled tokens, by the time of the event
            loop.
    """

    def __init__(self, group: WorkerGroup, timeout_s: float, rank: int = 0) -> None:
        self._group = group
        self._timeout_s = timeout_s
        self._rank = rank
        self._numbers = itertools.count()
        self._session = ""
        self._futures: dict[int, asyncio.Future[list[Generation]]] = {}
        self._outbox: list[tuple[int, GenerateRequest]] = []
        self._poller: asyncio.Task[None] | None = None
        self.progress_at = 0.0
        self._sends: set[asyncio.Task[None]] = set()

    @property
    def load(self) -> int:
        """Number of unfinished requests."""
        return len(self._futures)

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Sample `request.n` replies.

        A request may wait for any time while the engine samples tokens, of this request or of
        others that it serves first.

        Raises `RolloutError` when the engine refuses the request, and its subclasses:
        `EngineStuckError` when the request has waited for the time limit and the engine has sampled
        no token for as long, `EngineGoneError` when its process has ended.
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
            limit = self._timeout_s
            began = loop.time()
            while not future.done():
                left = limit + max(began, self.progress_at) - loop.time()
                if left <= 0:
                    name = request.request_id or "(no id)"
                    raise EngineStuckError(
                        f"waited {limit:g} s for request {name} on the rollout engine, which "
                        "sampled no token meanwhile"
                    )
                await asyncio.wait([future], timeout=left)
            return future.result()
        finally:
            # Without effect on a finished one, so that `cancelled` tells whether the engine still
            # serves it.
            future.cancel()
            if self._futures.pop(number, None) is not None and future.cancelled():
                self._cancel(number)

    def _ensure_poller(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._poller is None or self._poller.done():
            self._session = uuid4().hex
            self._outbox = []
            self._poller = loop.create_task(self._poll(self._session), name="rollout-poll")
            self._poller.add_done_callback(self._on_end)

    def _flush(self) -> None:
        batch = self._outbox
        self._outbox = []
        if batch:
            send = asyncio.get_running_loop().create_task(self._send(self._session, batch))
            self._sends.add(send)
            send.add_done_callback(self._sends.discard)
            send.add_done_callback(self._on_end)

    async def _send(self, session: str, batch: Sequence[tuple[int, GenerateRequest]]) -> None:
        await self._group.call_async("submit", session, list(batch), rank=self._rank)

    async def _poll(self, session: str) -> None:
        try:
            sampled = -1.0
            # Several polls within the limit, or a request would be given up although the engine
            # samples.
            wait_s = min(POLL_S, self._timeout_s / 4)
            while self._futures:
                results = await self._group.call_async("collect", session, wait_s, rank=self._rank)
                before = sampled
                # Results show progress by themselves; without any, the counter of sampled tokens
                # does.
                sampled = (
                    sampled
                    if results
                    else (await self._group.call_async("stats", rank=self._rank))["sampled"]
                )
                if results or sampled != before:
                    self.progress_at = asyncio.get_running_loop().time()
                for result in results:
                    future = self._futures.pop(result.number, None)
                    # Given up meanwhile.
                    if future is None or future.done():
                        continue
                    if result.generations is None:
                        future.set_exception(result.kind(result.error))
                    else:
                        future.set_result(result.generations)
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            # When the requests are cancelled as well, that comes first.
            error = RolloutError("the poll of the rollout engine was cancelled")
            asyncio.get_running_loop().call_soon(_fail, list(self._futures.values()), error)
            raise

    def _cancel(self, number: int) -> None:
        """Cancel a request that is not sent yet, or that the engine may still be serving."""
        if any(number == waiting for waiting, _ in self._outbox):
            self._outbox = [entry for entry in self._outbox if entry[0] != number]
        else:
            # The requests of a process that died have ended with it.
            with suppress(WorkerDiedError):
                self._group.call_async("cancel", self._session, number, rank=self._rank)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Fail all unfinished requests with the error of a call that failed."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            kind = EngineGoneError if isinstance(error, WorkerDiedError) else RolloutError
            _fail(self._futures.values(), kind(f"the rollout engine cannot be reached: {error}"), error)


def _fail(
    futures: Iterable[asyncio.Future[Any]], failure: RolloutError, cause: BaseException | None = None
) -> None:
    """Fail the requests that are not finished: no later call could answer them."""
    for future in futures:
        if not future.done():
            # One error for each: raised in several tasks, a single one would collect all their
            # tracebacks.
            request_error = type(failure)(str(failure))
            request_error.__cause__ = cause
            future.set_exception(request_error)


class Replica(RolloutClient, Protocol):
    """A client that reports its load."""

    @property
    def load(self) -> int:
        """Number of unfinished requests."""
        ...

    @property
    def progress_at(self) -> float:
        """When its engine was last seen to have sampled tokens, by the time of the event loop."""
        ...


class ReplicaClient:
    """`RolloutClient` over equal replicas.

    A request goes to the replica that last served its episode (`request_id` up to the last `/`), so
    that the engine finds the beginning of the prompt in its prefix cache; or, if that replica has
    over `MAX_IMBALANCE` more open requests than another, to the one with the fewest.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._served_by: OrderedDict[str, int] = OrderedDict()

    @property
    def progress_at(self) -> float:
        """The latest of its replicas."""
        return max(replica.progress_at for replica in self._replicas)

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Sample `request.n` replies; raises as the replica does."""
        return await self._replicas[self._choose(request.request_id.rpartition("/")[0])].generate(request)

    def _choose(self, episode: str) -> int:
        least = min(range(len(self._replicas)), key=lambda i: self._replicas[i].load)
        # Taken out to be added as the last again: the one served longest ago is forgotten first.
        previous_index = self._served_by.pop(episode, least)
        replica_index = (
            least
            if self._replicas[previous_index].load > self._replicas[least].load + MAX_IMBALANCE
            else previous_index
        )
        if episode:
            self._served_by[episode] = replica_index
            if len(self._served_by) > MAX_EPISODES:
                self._served_by.popitem(last=False)
        return replica_index


def start_engines(group: WorkerGroup, ranks_per_engine: int) -> None:
    """Load the model in every engine of a worker group of `RolloutWorker`; the first rank of each
    gets the GPUs of its other ranks.
    """
    gpus = group.execute_all_sync("get_cuda_visible_devices") if ranks_per_engine > 1 else []
    group.init_model(gpus)


def replica_client(group: WorkerGroup, timeout_s: float, ranks_per_engine: int = 1) -> RolloutClient:
    """Return the client of a worker group whose engines span `ranks_per_engine` ranks each; the
    first of these has the engine.

    `timeout_s` is that of `WorkerGroupClient`.
    """
    replicas = [
        WorkerGroupClient(group, timeout_s, rank) for rank in range(0, group.world_size, ranks_per_engine)
    ]
    return replicas[0] if len(replicas) == 1 else ReplicaClient(replicas)
