"""verl's functions that distribute the arguments of one call over the workers and collect the
results.

A dispatch function maps (worker_group, *args, **kwargs) to the same arguments as lists with one
entry per worker; a collect function maps (worker_group, results in rank order) to the result of the
call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

from tensordict import TensorDict

from verl.compat.future import BatchData
from verl.compat.padding import PADDING_SIZE_KEY
from verl.protocol.data_proto import DataProto
from verl.single_controller.dispatch import Dispatched
from verl.single_controller.worker_group import PendingResults


def _chunk(value: Any, chunks: int) -> list[Any]:
    batch = BatchData(value)
    assert batch.is_chunkable(), (
        "expected a DataProto, DataProtoFuture or TensorDict to split over workers, got "
        f"{type(value).__name__}"
    )
    return list(batch.chunk(chunks))


def split_arguments(chunks: int, *args: Any, **kwargs: Any) -> Dispatched:
    """Split every argument into `chunks` equal parts by rows."""
    return [_chunk(arg, chunks) for arg in args], {
        key: _chunk(value, chunks) for key, value in kwargs.items()
    }


def split_arguments_with_auto_padding(chunks: int, *args: Any, **kwargs: Any) -> Dispatched:
    """Pad batches with padding enabled, then split as `split_arguments`; the number of padding rows
    is added under the padding key.

    Raises AssertionError when the batches to pad differ in length.
    """
    length: int | None = None
    padding = 0

    def prepared(value: Any) -> Any:
        nonlocal length, padding
        if not (isinstance(value, DataProto) and value.is_padding_enabled()):
            return value
        assert length is None or length == len(value), (
            f"expecting all arg share same length of {length}, but got {len(value)}"
        )
        length = len(value)
        padding = -len(value) % chunks
        padded = value.select()  # the caller's batch is not padded
        padded.padding(padding)
        return padded

    split_args, split_kwargs = split_arguments(
        chunks, *[prepared(arg) for arg in args], **{key: prepared(value) for key, value in kwargs.items()}
    )
    if length is not None:
        split_kwargs[PADDING_SIZE_KEY] = padding
    return split_args, split_kwargs


def dispatch_all_to_all(worker_group: Any, *args: Any, **kwargs: Any) -> Dispatched:
    """Return the arguments unchanged: lists with one entry per worker are distributed, all other
    values go to every worker.
    """
    return args, kwargs


def collect_all_to_all(worker_group: Any, output: Any) -> Any:
    """Return the list of results unchanged."""
    return output


def dispatch_dp_compute(worker_group: Any, *args: Any, **kwargs: Any) -> Dispatched:
    """Check that every argument is a list with one entry per worker. Raise AssertionError
    otherwise.
    """
    for name, value in [*enumerate(args), *kwargs.items()]:
        fits = isinstance(value, (tuple, list)) and len(value) == worker_group.world_size
        assert fits, (
            f"argument {name} must be a list of {worker_group.world_size} entries, one per worker, "
            f"got {type(value).__name__}"
        )
    return [list(arg) for arg in args], {key: list(value) for key, value in kwargs.items()}


def collect_dp_compute(worker_group: Any, output: Any) -> Any:
    """Return the results, one per worker."""
    assert len(output) == worker_group.world_size, (
        f"expected {worker_group.world_size} results, got {len(output)}"
    )
    return output


def dispatch_dp_compute_data_proto(worker_group: Any, *args: Any, **kwargs: Any) -> Dispatched:
    """Split every batch evenly over the workers, after padding where padding is enabled."""
    return split_arguments_with_auto_padding(worker_group.world_size, *args, **kwargs)


def dispatch_dp_compute_data_proto_with_func(worker_group: Any, *args: Any, **kwargs: Any) -> Dispatched:
    """Dispatch as `dispatch_dp_compute_data_proto`, except for the first argument, a function that
    every worker receives.
    """
    assert args and isinstance(args[0], FunctionType), (
        f"the first argument must be a function, got {type(args[0] if args else None)}"
    )
    split_args, split_kwargs = split_arguments_with_auto_padding(worker_group.world_size, *args[1:], **kwargs)
    return [[args[0]] * worker_group.world_size, *split_args], split_kwargs


def join_results(output: Any) -> Any:
    """Concatenate results by rows; of pending results return a future. Raise AssertionError for
    other types of results.
    """
    for part in () if isinstance(output, PendingResults) else output:
        assert isinstance(part, (DataProto, TensorDict)), (
            f"expecting a DataProto or TensorDict from a worker, but got {type(part)}"
        )
    return BatchData(output).concat()


def collect_dp_compute_data_proto(worker_group: Any, output: Any) -> Any:
    """Concatenate the workers' batches in rank order."""
    return join_results(collect_dp_compute(worker_group, output))


def dummy_direct_rollout_call(worker_group: Any, *args: Any, **kwargs: Any) -> Dispatched:
    """Raise NotImplementedError: methods of DIRECT_ROLLOUT_METHOD are called on the actor itself."""
    raise NotImplementedError("Direct rollout call is forbidden.")


def dispatch_nd_compute(
    dp_rank_mapping: list[int], dp_size: int, worker_group: Any, *args: Any, **kwargs: Any
) -> Dispatched:
    """Distribute lists of `dp_size` parts so that workers with the same data-parallel rank get the
    same part.
    """

    def spread(value: Any) -> list[Any]:
        assert isinstance(value, (tuple, list)) and len(value) == dp_size, (
            f"expected a list of {dp_size} parts, got {type(value).__name__}"
        )
        return [value[dp_rank] for dp_rank in dp_rank_mapping]

    return [spread(arg) for arg in args], {key: spread(value) for key, value in kwargs.items()}


def collect_nd_compute(collect_mask: list[bool], worker_group: Any, output: Any) -> Any:
    """Keep the results of the workers that collect for their data-parallel rank."""
    ranks = [rank for rank, collects in enumerate(collect_mask) if collects]
    return output.subset(ranks) if isinstance(output, PendingResults) else [output[rank] for rank in ranks]


def dispatch_nd_compute_dataproto(
    dp_rank_mapping: list[int], dp_size: int, worker_group: Any, *args: Any, **kwargs: Any
) -> Dispatched:
    """Split batches into `dp_size` parts and distribute them to the workers by data-parallel rank."""
    split_args, split_kwargs = split_arguments_with_auto_padding(dp_size, *args, **kwargs)
    padding = split_kwargs.pop(PADDING_SIZE_KEY, None)
    all_args, all_kwargs = dispatch_nd_compute(
        dp_rank_mapping, dp_size, worker_group, *split_args, **split_kwargs
    )
    if padding is not None:
        all_kwargs[PADDING_SIZE_KEY] = padding
    return all_args, all_kwargs


def collect_nd_compute_dataproto(collect_mask: list[bool], worker_group: Any, output: Any) -> Any:
    """Concatenate the batches of the workers that collect."""
    return join_results(collect_nd_compute(collect_mask, worker_group, output))


def dispatch_lazy_compute_data_proto(
    mesh_name: str, worker_group: Any, *args: Any, **kwargs: Any
) -> Dispatched:
    """Distribute over a mesh that the workers have registered with
    `_register_dispatch_collect_info`.
    """
    mapping = _of_mesh(worker_group, "_query_dispatch_info", mesh_name)
    return dispatch_nd_compute_dataproto(mapping, max(mapping) + 1, worker_group, *args, **kwargs)


def collect_lazy_compute_data_proto(mesh_name: str, worker_group: Any, output: Any) -> Any:
    """Concatenate the batches of the workers that collect in a mesh."""
    return collect_nd_compute_dataproto(
        _of_mesh(worker_group, "_query_collect_info", mesh_name), worker_group, output
    )


def make_nd_compute_dataproto_dispatch_fn(mesh_name: str) -> dict[str, Callable[..., Any]]:
    """Return the dispatch mode of a named device mesh, for `register(dispatch_mode=...)`."""
    return {
        "dispatch_fn": partial(dispatch_lazy_compute_data_proto, mesh_name),
        "collect_fn": partial(collect_lazy_compute_data_proto, mesh_name),
    }


def _of_mesh(worker_group: Any, query: str, mesh_name: str) -> list[Any]:
    """Return the registered value of every worker for a mesh, queried once per group."""
    mesh_results = vars(worker_group).setdefault("_of_meshes", {})
    if (query, mesh_name) not in mesh_results:
        mesh_results[query, mesh_name] = worker_group.execute_all_sync(query, mesh_name)
    return list(mesh_results[query, mesh_name])
