"""A group of workers that is called like one object."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from verl.single_controller.dispatch import registered_methods

DEFAULT_TIMEOUT_S = 3600.0


class WorkerDiedError(RuntimeError):
    """A worker process has died; the message names the worker, the method it ran and the cause."""


class ArgumentLostError(WorkerDiedError):
    """An argument of a call was lost, because the worker that held it has died."""


class ResourcePool:
    """Number of worker processes on each node.

    Args:
        process_on_nodes: number of processes, one entry per node.
        max_colocate_count: worker groups that may share a device.
    """

    def __init__(self, process_on_nodes: list[int] | None = None, max_colocate_count: int = 10) -> None:
        self._store = list(process_on_nodes or [])
        self.max_colocate_count = max_colocate_count

    @property
    def store(self) -> list[int]:
        """Processes per node."""
        return self._store

    @property
    def world_size(self) -> int:
        """Total number of processes."""
        return sum(self._store)


class ClassWithInitArgs:
    """A worker class and the arguments of its constructor, to be instantiated later in another
    process.
    """

    def __init__(self, cls: Any, *args: Any, **kwargs: Any) -> None:
        self.cls = cls
        self.args = args
        self.kwargs = kwargs

    def __call__(self) -> Any:
        return self.cls(*self.args, **self.kwargs)


class PendingResults(list):
    """The unfinished calls of one method on several workers: a list of the backend's futures.

    Backends subclass it. `ray.get` accepts the list of the Ray backend as well.
    """

    def get(self, timeout: float | None = None) -> list[Any]:
        """Wait for all calls and return their results in rank order.

        Raises TimeoutError after `timeout` seconds (default: the worker group's limit), or a
        worker's error.
        """
        raise NotImplementedError

    async def wait(self) -> list[Any]:
        """Await the results that `get` returns, with the group's limit."""
        raise NotImplementedError

    def subset(self, ranks: Sequence[int]) -> PendingResults:
        """Return the calls at these positions."""
        raise NotImplementedError


class PendingResult:
    """One unfinished call: `get(timeout)` blocks, `await` waits on an event loop."""

    def __init__(self, calls: PendingResults) -> None:
        self.calls = calls

    def get(self, timeout: float | None = None) -> Any:
        """Wait and return the result. Raise TimeoutError, WorkerDiedError or the worker's error."""
        return self.calls.get(timeout)[0]

    def __await__(self) -> Generator[Any, None, Any]:
        results = yield from self.calls.wait().__await__()
        return results[0]


class WorkerGroup:
    """Base of the backends' worker groups.

    A backend implements `world_size`, `_submit` and `shutdown`. Every registered method of the
    worker class becomes a method of the group.

    Args:
        resource_pool: where the workers run.
        timeout_s: limit of every wait for a result, in seconds.
    """

    def __init__(self, resource_pool: ResourcePool | None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.resource_pool = resource_pool
        self.timeout_s = timeout_s

    if TYPE_CHECKING:
        # The registered methods of the worker class, bound when a group is made.
        def __getattr__(self, name: str) -> Callable[..., Any]: ...

    @property
    def world_size(self) -> int:
        """Number of workers."""
        raise NotImplementedError

    def _submit(
        self, method_name: str, calls: list[tuple[int, tuple[Any, ...], dict[str, Any]]]
    ) -> PendingResults:
        """Start `method_name` on the given (rank, args, kwargs) and return without waiting."""
        raise NotImplementedError

    def shutdown(self) -> None:
        """Stop the workers of this group only. Calling it again does nothing."""
        raise NotImplementedError

    def execute_all_async(self, method_name: str, *args: Any, **kwargs: Any) -> PendingResults:
        """Start a method on all workers. If every argument is a list with one entry per worker,
        each worker gets its entry.
        """
        size = self.world_size
        values = [*args, *kwargs.values()]
        calls: list[tuple[int, tuple[Any, ...], dict[str, Any]]]
        if values and all(isinstance(value, list) and len(value) == size for value in values):
            calls = [
                (rank, tuple(arg[rank] for arg in args), {key: value[rank] for key, value in kwargs.items()})
                for rank in range(size)
            ]
        else:
            calls = [(rank, args, kwargs) for rank in range(size)]
        return self._submit(method_name, calls)

    def execute_all_sync(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Run a method on all workers and return the results in rank order."""
        return self.execute_all_async(method_name, *args, **kwargs).get()

    def call_async(self, method_name: str, *args: Any, rank: int = 0, **kwargs: Any) -> PendingResult:
        """Start a method on one worker; its result can be awaited on any event loop."""
        return PendingResult(self._submit(method_name, [(rank, args, kwargs)]))

    def _bind_worker_methods(self, worker_class: type) -> None:
        for name, bind in registered_methods(worker_class).items():
            setattr(self, name, bind(self, name))
