"""`register`: declares how a worker group calls a worker's method.

    class Policy(Worker):
        @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
        def compute_log_prob(self, data: DataProto) -> DataProto: ...

`group.compute_log_prob(batch)` then splits the batch over the workers and concatenates their
results.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from verl.protocol.data_proto import DataProto

BIND = "_bind_to_group"
"""Attribute of a registered method: a function (worker group, method name) -> method of the group."""

Method = TypeVar("Method", bound=Callable[..., Any])
Dispatched = tuple[Any, dict[str, Any]]


class Dispatch(Enum):
    """Distribution of arguments over the workers, and form of the result."""

    ONE_TO_ALL = "every worker gets the same arguments, the caller a list of the results in rank order"
    DP_COMPUTE_PROTO = "every worker gets an equal part of the rows of each batch, the caller the results concatenated by rows"


def register(dispatch_mode: Dispatch, blocking: bool = True) -> Callable[[Method], Method]:
    """Make a worker's method callable on its worker group.

    Args:
        dispatch_mode: mode of arguments and results.
        blocking: if False, the call returns `PendingResults` at once.
    """

    def decorate(method: Method) -> Method:
        setattr(method, BIND, partial(_bound, dispatch_mode, blocking))
        return method

    return decorate


def registered_methods(worker_class: type) -> dict[str, Callable[[Any, str], Callable[..., Any]]]:
    """Return by name the function that binds each registered method of a class to a worker group."""
    binders = {name: getattr(getattr(worker_class, name, None), BIND, None) for name in dir(worker_class)}
    return {name: bind for name, bind in binders.items() if bind is not None}


def dispatch_one_to_all(worker_group: Any, *args: Any, **kwargs: Any) -> Dispatched:
    """Return each argument as a list with one identical entry per worker."""
    size = worker_group.world_size
    return tuple([arg] * size for arg in args), {key: [value] * size for key, value in kwargs.items()}


def _dispatch_rows(worker_group: Any, *args: Any, **kwargs: Any) -> Dispatched:
    """Return each batch as a list of equal parts. Raise AssertionError for other types, or if the
    rows do not divide.
    """

    def parts(value: Any) -> list[DataProto]:
        assert isinstance(value, DataProto), (
            f"expected a DataProto to split over workers, got {type(value).__name__}"
        )
        return value.chunk(worker_group.world_size)

    return [parts(arg) for arg in args], {key: parts(value) for key, value in kwargs.items()}


def _bound(mode: Dispatch, blocking: bool, worker_group: Any, method_name: str) -> Callable[..., Any]:
    by_rows = mode is Dispatch.DP_COMPUTE_PROTO

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = (_dispatch_rows if by_rows else dispatch_one_to_all)(worker_group, *args, **kwargs)
        pending = worker_group.execute_all_async(method_name, *args, **kwargs)
        if not blocking:
            return pending
        return DataProto.concat(pending.get()) if by_rows else pending.get()

    call.__name__ = method_name
    return call
