"""A group of workers that is called like one object."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from verl.protocol.config import PADDING_SIZE_KEY
from verl.protocol.data_proto import DataProto
from verl.protocol.future import DataProtoFuture, PendingResults
from verl.single_controller.base.decorator import MAGIC_ATTR, Dispatch, get_predefined_dispatch_fn, get_predefined_execute_fn
from verl.single_controller.base.dispatch import dispatch_all_to_all

DEFAULT_TIMEOUT_S = 3600.0


class WorkerDiedError(RuntimeError):
    """A worker process is gone; the message names the worker, the method it ran and the cause."""


class ArgumentLostError(WorkerDiedError):
    """What a worker was to receive is gone, with the worker that had it."""


class ResourcePool:
    """How many worker processes run on each node.

    Args:
        process_on_nodes: number of processes, one entry a node.
        max_colocate_count: worker groups that may share a device.
        n_gpus_per_node: devices of a node.
    """

    def __init__(self, process_on_nodes: list[int] | None = None, max_colocate_count: int = 10, n_gpus_per_node: int = 8) -> None:
        self._store = list(process_on_nodes or [])
        self.max_colocate_count = max_colocate_count
        self.n_gpus_per_node = n_gpus_per_node

    def add_node(self, process_count: int) -> None:
        """Append a node with this many processes."""
        self._store.append(process_count)

    def __call__(self) -> list[int]:
        """Processes per node, as `store`."""
        return self._store

    @property
    def store(self) -> list[int]:
        """Processes per node."""
        return self._store

    @property
    def world_size(self) -> int:
        """Processes in all."""
        return sum(self._store)

    def local_world_size_list(self) -> list[int]:
        """For every rank, the number of processes on its node."""
        return [size for size in self._store for _ in range(size)]

    def local_rank_list(self) -> list[int]:
        """For every rank, its position on its node."""
        return [rank for size in self._store for rank in range(size)]


class ClassWithInitArgs:
    """A worker class and what its constructor receives, to be built later and elsewhere."""

    def __init__(self, cls: Any, *args: Any, **kwargs: Any) -> None:
        self.cls = cls
        self.args = args
        self.kwargs = kwargs
        self.fused_worker_used = False

    def __call__(self) -> Any:
        return self.cls(*self.args, **self.kwargs)


class PendingResult:
    """One unfinished call: `get(timeout)` waits for it, `await` waits on an event loop."""

    def __init__(self, calls: PendingResults) -> None:
        self.calls = calls

    def get(self, timeout: float | None = None) -> Any:
        """Wait and return. Raises TimeoutError, WorkerDiedError or what the worker raised."""
        return self.calls.get(timeout)[0]

    def __await__(self) -> Generator[Any, None, Any]:
        results = yield from self.calls.wait().__await__()
        return results[0]


class WorkerGroup:
    """Base of the backends' worker groups.

    A backend implements `_submit` and `shutdown`. Every registered method of the worker class becomes a method of the group.

    Args:
        resource_pool: where the workers run.
        timeout_s: limit of every wait for a result, in seconds.
    """

    def __init__(self, resource_pool: ResourcePool | None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.resource_pool = resource_pool
        self.timeout_s = timeout_s
        self._dispatch_info: dict[str, list[int]] = {}
        self._collect_info: dict[str, list[bool]] = {}

    if TYPE_CHECKING:
        # The registered methods of the worker class, bound when a group is made.
        def __getattr__(self, name: str) -> Callable[..., Any]: ...

    # ---- what a backend provides

    @property
    def world_size(self) -> int:
        """Number of workers."""
        raise NotImplementedError

    def _submit(self, method_name: str, calls: list[tuple[int, tuple[Any, ...], dict[str, Any]]]) -> PendingResults:
        """Start `method_name` on the given (rank, args, kwargs) and return without waiting."""
        raise NotImplementedError

    def shutdown(self) -> None:
        """Stop the workers of this group, and nothing else. Calling it again does nothing."""
        raise NotImplementedError

    # ---- calling

    def execute_all_async(self, method_name: str, *args: Any, **kwargs: Any) -> PendingResults:
        """Start a method on all workers. If every argument is a list with an entry a worker, each worker gets its entry."""
        size = self.world_size
        values = [*args, *kwargs.values()]
        calls: list[tuple[int, tuple[Any, ...], dict[str, Any]]]
        if values and all(isinstance(value, list) and len(value) == size for value in values):
            calls = [(rank, tuple(arg[rank] for arg in args), {key: value[rank] for key, value in kwargs.items()}) for rank in range(size)]
        else:
            calls = [(rank, args, kwargs) for rank in range(size)]
        return self._submit(method_name, calls)

    def execute_all_sync(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Run a method on all workers and return the results in rank order."""
        return self.execute_all_async(method_name, *args, **kwargs).get()

    def execute_rank_zero_async(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Start a method on rank 0 and return the backend's future."""
        return self._submit(method_name, [(0, args, kwargs)])[0]

    def execute_rank_zero_sync(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Run a method on rank 0."""
        return self._submit(method_name, [(0, args, kwargs)]).get()[0]

    def execute_all(self, method_name: str, *args: Any, **kwargs: Any) -> PendingResults:
        """Alias of `execute_all_async`."""
        return self.execute_all_async(method_name, *args, **kwargs)

    def execute_rank_zero(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Alias of `execute_rank_zero_async`."""
        return self.execute_rank_zero_async(method_name, *args, **kwargs)

    def call_async(self, method_name: str, *args: Any, rank: int = 0, **kwargs: Any) -> Awaitable[Any]:
        """Start a method on one worker; what is returned can be awaited on any event loop."""
        return PendingResult(self._submit(method_name, [(rank, args, kwargs)]))

    # ---- meshes

    def dispatch_info(self, mesh_name: str) -> list[int]:
        """Return the data-parallel rank of every worker in a mesh, asked once."""
        if mesh_name not in self._dispatch_info:
            self._dispatch_info[mesh_name] = self.execute_all_sync("_query_dispatch_info", mesh_name)
        return self._dispatch_info[mesh_name]

    def collect_info(self, mesh_name: str) -> list[bool]:
        """Return which workers' results count in a mesh, asked once."""
        if mesh_name not in self._collect_info:
            self._collect_info[mesh_name] = self.execute_all_sync("_query_collect_info", mesh_name)
        return self._collect_info[mesh_name]

    # ---- binding

    def _bind_worker_methods(self, worker_class: type) -> None:
        for name, attributes in registered_methods(worker_class).items():
            setattr(self, name, self._bound(name, attributes))

    def _bound(self, method_name: str, attributes: dict[str, Any]) -> Callable[..., Any]:
        mode = attributes["dispatch_mode"]
        functions = _dispatch_functions(mode)
        on_all = (
            get_predefined_execute_fn(attributes["execute_mode"])["execute_fn_name"] == "execute_all" and mode is not Dispatch.RANK_ZERO
        )
        # Rank 0 alone takes what is meant for everyone as it is.
        dispatch_fn = functions["dispatch_fn"] if on_all or mode is not Dispatch.ONE_TO_ALL else dispatch_all_to_all
        execute_fn = self.execute_all_async if on_all else self._start_on_rank_zero
        wait = methodcaller("get") if attributes["blocking"] else None
        return bound_method(self, method_name, dispatch_fn, functions["collect_fn"], execute_fn, wait)

    def _start_on_rank_zero(self, method_name: str, *args: Any, **kwargs: Any) -> PendingResult:
        return PendingResult(self._submit(method_name, [(0, args, kwargs)]))

    def _bind_worker_method(self, user_defined_cls: type, func_generator: Callable[..., Callable[..., Any]]) -> list[str]:
        """Bind the registered methods of a class by a `func_generator` such as verl's groups have; returns their names."""
        for name, attributes in registered_methods(user_defined_cls).items():
            functions = _dispatch_functions(attributes["dispatch_mode"])
            execute_fn = getattr(self, get_predefined_execute_fn(attributes["execute_mode"])["execute_fn_name"])
            parts = {"dispatch_fn": functions["dispatch_fn"], "collect_fn": functions["collect_fn"], "execute_fn": execute_fn}
            setattr(self, name, func_generator(self, name, **parts, blocking=attributes["blocking"]))
        return list(registered_methods(user_defined_cls))


def bound_method(
    group: WorkerGroup,
    method_name: str,
    dispatch_fn: Callable[..., Any],
    collect_fn: Callable[..., Any],
    execute_fn: Callable[..., Any],
    wait: Callable[[Any], Any] | None,
) -> Callable[..., Any]:
    """Return a method of the group: its arguments dispatched, the workers called, waited for if `wait` is given, the results collected."""

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = dispatch_fn(group, *args, **kwargs)
        padding = kwargs.pop(PADDING_SIZE_KEY, 0)
        output = execute_fn(method_name, *args, **kwargs)
        if wait is not None:
            output = wait(output)
        return without_padding(collect_fn(group, output), padding)

    call.__name__ = method_name
    return call


def _dispatch_functions(mode: Any) -> dict[str, Callable[..., Any]]:
    return get_predefined_dispatch_fn(mode) if isinstance(mode, Dispatch) else mode


class _DropTail:
    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, data: Any) -> Any:
        return data[: len(data) - self.count]


def without_padding(output: Any, padding: int) -> Any:
    """Drop the rows that dispatch appended, now or when the result arrives."""
    if padding == 0:
        return output
    if isinstance(output, DataProtoFuture):
        return output.then(_DropTail(padding))
    return output[:-padding] if isinstance(output, DataProto) else output


def registered_methods(worker_class: type) -> dict[str, dict[str, Any]]:
    """Return the methods of a class that `register` decorates, with what it noted."""
    found = {name: getattr(getattr(worker_class, name, None), MAGIC_ATTR, None) for name in dir(worker_class)}
    return {name: attributes for name, attributes in found.items() if attributes is not None}
