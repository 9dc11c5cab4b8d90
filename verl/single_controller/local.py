"""The local backend: one worker in the caller's process, without Ray; for debugging and for
machines without Ray.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from verl.protocol.data_proto import DataProto
from verl.single_controller.worker import Worker, find_free_port
from verl.single_controller.worker_group import (
    DEFAULT_TIMEOUT_S,
    ClassWithInitArgs,
    PendingResults,
    ResourcePool,
    WorkerDiedError,
    WorkerGroup,
)
from verl.utils.loop_thread import LoopThread

logger = logging.getLogger(__name__)

END_TIMEOUT_S = 10.0


class LocalResourcePool(ResourcePool):
    """The pool of this one process. Raises ValueError when more are requested."""

    def __init__(self, process_on_nodes: Sequence[int] = (1,)) -> None:
        super().__init__(list(process_on_nodes))
        if self.world_size != 1:
            raise ValueError(
                "the local controller runs one process per worker group, got "
                f"process_on_nodes={list(process_on_nodes)}; set one GPU on one node, or use the "
                "ray controller"
            )


class LocalPendingResults(PendingResults):
    """A list of `concurrent.futures.Future`, one per call."""

    def __init__(
        self, futures: Iterable[concurrent.futures.Future[Any]], method_name: str, timeout_s: float
    ) -> None:
        super().__init__(futures)
        self.method_name = method_name
        self.timeout_s = timeout_s

    def subset(self, ranks: Sequence[int]) -> LocalPendingResults:
        """Return the calls at these positions."""
        return LocalPendingResults([self[i] for i in ranks], self.method_name, self.timeout_s)

    def get(self, timeout: float | None = None) -> list[Any]:
        """Wait for all calls and return their results. Raise TimeoutError, WorkerDiedError, or the
        worker's error.
        """
        limit = self.timeout_s if timeout is None else timeout
        _finished_futures, unfinished = concurrent.futures.wait(self, timeout=limit)
        if unfinished:
            raise TimeoutError(
                f"waited {limit:g} s for {self.method_name} on the local worker ({len(unfinished)} "
                "calls unfinished)"
            )
        return self._results(self)

    async def wait(self) -> list[Any]:
        """Await the results that `get` returns."""
        futures = [asyncio.wrap_future(future) for future in self]
        _finished_futures, unfinished = await asyncio.wait(futures, timeout=self.timeout_s)
        if unfinished:
            for future in unfinished:
                future.cancel()
            raise TimeoutError(f"waited {self.timeout_s:g} s for {self.method_name} on the local worker")
        return self._results(futures)

    def _results(self, futures: Sequence[concurrent.futures.Future[Any] | asyncio.Future[Any]]) -> list[Any]:
        if any(future.cancelled() for future in futures):
            raise WorkerDiedError(f"the local worker was shut down while it ran {self.method_name}")
        return [future.result() for future in futures]


class LocalWorkerGroup(WorkerGroup):
    """The interface of `RayWorkerGroup` on one worker in this process.

    Calls run immediately in the caller's thread, so a non-blocking call has finished when it
    returns. A worker with an `async def` method gets a thread with an event loop, on which all its
    methods run, as in a Ray actor.

    Args:
        resource_pool: pool of one process.
        class_with_init: the worker class and its arguments.
        worker_env: environment variables to set in this process unless they are already set.
        timeout_s: limit of every wait for a result, in seconds.

    Raises ValueError when the pool holds more than one process, or this process is itself a rank of
    a larger group.
    """

    def __init__(
        self,
        resource_pool: ResourcePool | None = None,
        class_with_init: ClassWithInitArgs | None = None,
        *,
        worker_env: dict[str, str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        **_: Any,
    ) -> None:
        pool = resource_pool or LocalResourcePool()
        super().__init__(pool, timeout_s=timeout_s)
        if class_with_init is None:
            raise ValueError("LocalWorkerGroup needs class_with_init, a ClassWithInitArgs")
        if pool.world_size != 1:
            raise ValueError(
                "the local controller runs one process per worker group, the pool has "
                f"{pool.world_size}; use the ray controller"
            )
        _set_rank_environment(worker_env or {})
        self._loop: LoopThread | None = None
        worker_class = class_with_init.cls
        self._worker: Any = class_with_init()
        if any(inspect.iscoroutinefunction(member) for _, member in inspect.getmembers(worker_class)):
            self._loop = LoopThread(f"{worker_class.__name__} loop")
            # Also for a group that nobody shuts down.
            self._end_loop = weakref.finalize(self, _end_loop, self._loop, f"{worker_class.__name__} loop")
        self._bind_worker_methods(worker_class)

    @property
    def world_size(self) -> int:
        """Always 1."""
        return 1

    @property
    def worker(self) -> Any:
        """The worker object."""
        return self._worker

    def shutdown(self) -> None:
        """End the event loop of the worker, and close it."""
        worker = self._worker
        self._worker = None
        # first: what it still runs fails, and is not served by half a worker
        if self._loop is not None:
            self._loop = None
            self._end_loop()
        if isinstance(worker, Worker):
            worker.close()

    def _submit(
        self, method_name: str, calls: list[tuple[int, tuple[Any, ...], dict[str, Any]]]
    ) -> LocalPendingResults:
        if self._worker is None:
            raise WorkerDiedError(f"cannot call {method_name}: this worker group has been shut down")
        futures = []
        for rank, args, kwargs in calls:
            if rank != 0:
                raise ValueError(f"the local worker group has rank 0 only, got rank {rank}")
            method = getattr(self._worker, method_name)
            copied_args = tuple(_copy_batch(arg) for arg in args)
            copied_kwargs = {key: _copy_batch(value) for key, value in kwargs.items()}
            futures.append(self._run(method, copied_args, copied_kwargs))
        return LocalPendingResults(futures, method_name, self.timeout_s)

    def _run(
        self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> concurrent.futures.Future[Any]:
        if self._loop is not None:

            async def on_loop() -> Any:
                result = method(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result

            return self._loop.submit(on_loop())
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(method(*args, **kwargs))
        except Exception as error:
            # raised where the result is read, as with a worker process
            future.set_exception(error)
        return future


def _end_loop(loop: LoopThread, name: str) -> None:
    """Cancel a worker's tasks, so that none is destroyed while pending, and end its event loop."""
    if not loop.close(end_timeout_s=END_TIMEOUT_S):
        logger.warning("%s did not end within %g s", name, END_TIMEOUT_S)


def _copy_batch(value: Any) -> Any:
    """Return a copy of a batch that shares its tensors, so that columns added by the worker do not
    appear in the caller's batch.
    """
    if not isinstance(value, DataProto):
        return value
    batch = None if value.batch is None else value.batch.clone(recurse=False)
    return type(value)(
        batch=batch, non_tensor_batch=dict(value.non_tensor_batch), meta_info=dict(value.meta_info)
    )


def _set_rank_environment(worker_env: dict[str, str]) -> None:
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} in the environment: the local controller "
            "cannot run under torchrun"
        )
    ours = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
    }
    for key, value in {**ours, **worker_env}.items():
        os.environ.setdefault(key, str(value))
    if "MASTER_PORT" not in os.environ:
        os.environ["MASTER_PORT"] = str(find_free_port("127.0.0.1"))
