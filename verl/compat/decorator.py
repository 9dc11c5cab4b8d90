"""verl's `register`: user-defined dispatch modes, calls of rank 0 only, arguments that are still
being computed, padding.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from functools import partial, wraps
from operator import methodcaller
from typing import Any, ClassVar, TypeVar

from verl.compat.dispatch import (
    collect_all_to_all,
    collect_dp_compute,
    collect_dp_compute_data_proto,
    collect_lazy_compute_data_proto,
    collect_nd_compute,
    collect_nd_compute_dataproto,
    dispatch_all_to_all,
    dispatch_dp_compute,
    dispatch_dp_compute_data_proto,
    dispatch_dp_compute_data_proto_with_func,
    dispatch_lazy_compute_data_proto,
    dispatch_nd_compute,
    dispatch_nd_compute_dataproto,
    dummy_direct_rollout_call,
    make_nd_compute_dataproto_dispatch_fn,
)
from verl.compat.future import DataProtoFuture
from verl.compat.padding import PADDING_SIZE_KEY
from verl.protocol.data_proto import DataProto
from verl.single_controller.dispatch import BIND, dispatch_one_to_all
from verl.single_controller.worker_group import PendingResult

__all__ = [
    "DISPATCH_MODE_FN_REGISTRY", "MAGIC_ATTR", "Dispatch", "Execute", "collect_all_to_all",
    "collect_dp_compute",
    "collect_dp_compute_data_proto", "collect_lazy_compute_data_proto", "collect_nd_compute",
    "collect_nd_compute_dataproto",
    "dispatch_all_to_all", "dispatch_dp_compute", "dispatch_dp_compute_data_proto",
    "dispatch_dp_compute_data_proto_with_func",
    "dispatch_lazy_compute_data_proto", "dispatch_nd_compute", "dispatch_nd_compute_dataproto",
    "dispatch_one_to_all",
    "dummy_direct_rollout_call", "get_predefined_dispatch_fn", "get_predefined_execute_fn",
    "make_nd_compute_dataproto_dispatch_fn",
    "register", "register_dispatch_mode", "update_dispatch_mode",
]  # fmt: skip

MAGIC_ATTR = "attrs_3141562937"
"""Name of the attribute that `register` sets on a method; unusual, so that no method has it by chance."""

Method = TypeVar("Method", bound=Callable[..., Any])


class _DynamicEnumMeta(type):
    _registry: dict[str, Any]

    def __iter__(cls) -> Iterator[Any]:
        return iter(list(cls._registry.values()))

    def __contains__(cls, item: Any) -> bool:
        return item in cls._registry if isinstance(item, str) else item in cls._registry.values()

    def __getitem__(cls, name: str) -> Any:
        return cls._registry[name]

    def __getattr__(cls, name: str) -> Any:
        raise AttributeError(
            f"{cls.__name__} has no member {name!r}; its members are "
            f"{sorted(cls.__dict__.get('_registry', {}))}"
        )

    def names(cls) -> list[str]:
        """Return the names of the members, in order of registration."""
        return list(cls._registry)

    def values(cls) -> list[Any]:
        """Return the members, in order of registration."""
        return list(cls._registry.values())

    @property
    def __members__(cls) -> dict[str, Any]:
        return dict(cls._registry)


class DynamicEnum(metaclass=_DynamicEnumMeta):
    """Base of an enumeration whose members are added with `register`; a subclass sets its own
    `_registry = {}`.
    """

    _registry: ClassVar[dict[str, Any]] = {}

    def __init__(self, name: str, value: int) -> None:
        self.name = name
        self.value = value

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {self.value}>"

    def __reduce__(self) -> tuple[Any, tuple[type, str]]:
        # one object per member in every process
        return _member, (type(self), self.name)

    @classmethod
    def register(cls, name: str) -> Any:
        """Add and return a member. Raise ValueError when the name is taken."""
        key = name.upper()
        if key in cls._registry:
            raise ValueError(f"{key} is already a member of {cls.__name__}")
        member = cls._registry[key] = cls(key, len(cls._registry))
        setattr(cls, key, member)
        return member

    @classmethod
    def from_name(cls, name: str) -> Any:
        """Return the member with that name, ignoring case, or None."""
        return cls._registry.get(name.upper())

    @classmethod
    def remove(cls, name: str) -> Any:
        """Remove a member and return it."""
        member = cls._registry.pop(name.upper())
        delattr(cls, member.name)
        return member


def _member(enum: type[DynamicEnum], name: str) -> DynamicEnum:
    return enum._registry[name] if name in enum._registry else enum.register(name)


class Dispatch(DynamicEnum):
    """Distribution of arguments over workers."""

    _registry: ClassVar[dict[str, Any]] = {}


class Execute(DynamicEnum):
    """Workers that run: all, or rank 0."""

    _registry: ClassVar[dict[str, Any]] = {}


for _name in (
    "RANK_ZERO",
    "ONE_TO_ALL",
    "ALL_TO_ALL",
    "DP_COMPUTE",
    "DP_COMPUTE_PROTO",
    "DP_COMPUTE_PROTO_WITH_FUNC",
    "DP_COMPUTE_METRIC",
    "DIRECT_ROLLOUT_METHOD",
):
    Dispatch.register(_name)
for _name in ("ALL", "RANK_ZERO"):
    Execute.register(_name)

DISPATCH_MODE_FN_REGISTRY: dict[Any, dict[str, Callable[..., Any]]] = {
    Dispatch.ONE_TO_ALL: {"dispatch_fn": dispatch_one_to_all, "collect_fn": collect_all_to_all},
    Dispatch.ALL_TO_ALL: {"dispatch_fn": dispatch_all_to_all, "collect_fn": collect_all_to_all},
    Dispatch.RANK_ZERO: {"dispatch_fn": dispatch_all_to_all, "collect_fn": collect_all_to_all},
    Dispatch.DP_COMPUTE: {"dispatch_fn": dispatch_dp_compute, "collect_fn": collect_dp_compute},
    Dispatch.DP_COMPUTE_PROTO: {
        "dispatch_fn": dispatch_dp_compute_data_proto,
        "collect_fn": collect_dp_compute_data_proto,
    },
    Dispatch.DP_COMPUTE_PROTO_WITH_FUNC: {
        "dispatch_fn": dispatch_dp_compute_data_proto_with_func,
        "collect_fn": collect_dp_compute_data_proto,
    },
    Dispatch.DP_COMPUTE_METRIC: {
        "dispatch_fn": dispatch_dp_compute_data_proto,
        "collect_fn": collect_dp_compute,
    },
    Dispatch.DIRECT_ROLLOUT_METHOD: {
        "dispatch_fn": dummy_direct_rollout_call,
        "collect_fn": dummy_direct_rollout_call,
    },
}


def get_predefined_dispatch_fn(dispatch_mode: Any) -> dict[str, Callable[..., Any]]:
    """Return the dispatch and collect function of a mode. Raise KeyError for a mode without them."""
    return DISPATCH_MODE_FN_REGISTRY[dispatch_mode]


def get_predefined_execute_fn(execute_mode: Any) -> dict[str, str]:
    """Return the name of the worker group's method that runs calls of this mode."""
    return {"execute_fn_name": "execute_rank_zero" if execute_mode is Execute.RANK_ZERO else "execute_all"}


def register_dispatch_mode(
    dispatch_mode_name: str, dispatch_fn: Callable[..., Any], collect_fn: Callable[..., Any]
) -> None:
    """Add a dispatch mode as `Dispatch.<NAME>`. Raise ValueError when it exists."""
    mode = Dispatch.register(dispatch_mode_name)
    DISPATCH_MODE_FN_REGISTRY[mode] = {"dispatch_fn": dispatch_fn, "collect_fn": collect_fn}


def update_dispatch_mode(
    dispatch_mode: Any, dispatch_fn: Callable[..., Any], collect_fn: Callable[..., Any]
) -> None:
    """Replace the functions of a mode. Raise AssertionError for an unknown mode."""
    _check_dispatch_mode(dispatch_mode)
    assert dispatch_mode in DISPATCH_MODE_FN_REGISTRY, f"dispatch_mode {dispatch_mode} not found"
    DISPATCH_MODE_FN_REGISTRY[dispatch_mode] = {"dispatch_fn": dispatch_fn, "collect_fn": collect_fn}


def _check_dispatch_mode(dispatch_mode: Any) -> None:
    assert isinstance(dispatch_mode, (Dispatch, dict)), (
        f"dispatch_mode must be a Dispatch or a dict, got {dispatch_mode!r}"
    )
    if isinstance(dispatch_mode, dict):
        for key in ("dispatch_fn", "collect_fn"):
            assert key in dispatch_mode, (
                f"a dispatch_mode dict needs the key {key}, got {sorted(dispatch_mode)}"
            )


def _check_execute_mode(execute_mode: Any) -> None:
    assert isinstance(execute_mode, Execute), f"execute_mode must be an Execute, got {execute_mode!r}"


def _materialize(value: Any) -> Any:
    return value.get() if isinstance(value, DataProtoFuture) else value


def register(
    dispatch_mode: Any = Dispatch.ALL_TO_ALL,
    execute_mode: Any = Execute.ALL,
    blocking: bool = True,
    materialize_futures: bool = True,
) -> Callable[[Method], Method]:
    """Make a worker's method callable on its worker group.

    Args:
        dispatch_mode: a `Dispatch`, or a dict with `dispatch_fn` and `collect_fn`.
        execute_mode: `Execute.ALL` or `Execute.RANK_ZERO`.
        blocking: if False, the call returns at once an object with `get(timeout)`.
        materialize_futures: the worker waits for `DataProtoFuture` arguments before the method
            runs.

    Raises AssertionError for other modes.
    """
    _check_dispatch_mode(dispatch_mode)
    _check_execute_mode(execute_mode)

    def decorate(function: Method) -> Method:
        @wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            if materialize_futures:
                args = tuple(_materialize(arg) for arg in args)
                kwargs = {key: _materialize(value) for key, value in kwargs.items()}
            return function(*args, **kwargs)

        @wraps(function)
        async def async_inner(*args: Any, **kwargs: Any) -> Any:
            if materialize_futures and any(
                isinstance(value, DataProtoFuture) for value in (*args, *kwargs.values())
            ):
                args = tuple([await asyncio.to_thread(_materialize, arg) for arg in args])
                kwargs = {key: await asyncio.to_thread(_materialize, value) for key, value in kwargs.items()}
            return await function(*args, **kwargs)

        wrapper = async_inner if inspect.iscoroutinefunction(function) else inner
        setattr(
            wrapper,
            MAGIC_ATTR,
            {"dispatch_mode": dispatch_mode, "execute_mode": execute_mode, "blocking": blocking},
        )
        setattr(wrapper, BIND, partial(_bound, dispatch_mode, execute_mode, blocking))
        return wrapper  # type: ignore[return-value]

    return decorate


def mode_functions(mode: Any) -> dict[str, Callable[..., Any]]:
    """Return the dispatch and collect function of a mode, or of a dict of both."""
    return get_predefined_dispatch_fn(mode) if isinstance(mode, Dispatch) else mode


def _bound(
    mode: Any, execute_mode: Any, blocking: bool, worker_group: Any, method_name: str
) -> Callable[..., Any]:
    functions = mode_functions(mode)
    on_all = execute_mode is not Execute.RANK_ZERO and mode is not Dispatch.RANK_ZERO
    # A call of rank 0 only gets its arguments unchanged instead of one copy per worker.
    dispatch_fn = (
        functions["dispatch_fn"] if on_all or mode is not Dispatch.ONE_TO_ALL else dispatch_all_to_all
    )

    def on_rank_zero(name: str, *args: Any, **kwargs: Any) -> PendingResult:
        return PendingResult(worker_group._submit(name, [(0, args, kwargs)]))

    execute_fn = worker_group.execute_all_async if on_all else on_rank_zero
    return bound_method(
        worker_group,
        method_name,
        dispatch_fn,
        functions["collect_fn"],
        execute_fn,
        methodcaller("get") if blocking else None,
    )


def bound_method(
    group: Any,
    method_name: str,
    dispatch_fn: Callable[..., Any],
    collect_fn: Callable[..., Any],
    execute_fn: Callable[..., Any],
    wait: Callable[[Any], Any] | None,
) -> Callable[..., Any]:
    """Return a method of the group that dispatches arguments, calls the workers, waits if `wait` is
    given, and collects the results.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = dispatch_fn(group, *args, **kwargs)
        padding = kwargs.pop(PADDING_SIZE_KEY, 0)
        output = execute_fn(method_name, *args, **kwargs)
        if wait is not None:
            output = wait(output)
        return _without_padding(collect_fn(group, output), padding)

    call.__name__ = method_name
    return call


class _DropTail:
    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, data: Any) -> Any:
        return data[: len(data) - self.count]


def _without_padding(output: Any, padding: int) -> Any:
    """Drop the rows appended by dispatch, immediately or when the result arrives."""
    if padding == 0:
        return output
    if isinstance(output, DataProtoFuture):
        return output.then(_DropTail(padding))
    return output[:-padding] if isinstance(output, DataProto) else output
