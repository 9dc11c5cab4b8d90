"""Results that workers are still computing, and splitting and concatenation of all types of
batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensordict import TensorDict

from verl.compat.tensordicts import chunk_tensordict, concat_tensordict
from verl.protocol.data_proto import DataProto
from verl.single_controller.worker_group import PendingResults


class DataProtoFuture:
    """A `DataProto` (or TensorDict) that workers are still computing.

    It can be passed to another worker group, whose workers then wait for it, and split with
    `chunk`.

    Args:
        collect_fn: concatenates the parts, usually `DataProto.concat`.
        futures: one per part: `PendingResults`, or a list of Ray object references.
        dispatch_fn: applied to the concatenated batch.
    """

    def __init__(
        self,
        collect_fn: Callable[[list[Any]], Any],
        futures: list[Any],
        dispatch_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        self.collect_fn = collect_fn
        self.futures = futures
        self.dispatch_fn = dispatch_fn

    @staticmethod
    def concat(data: list[Any]) -> DataProtoFuture:
        """Return a future of the row-wise concatenation of futures."""
        return DataProtoFuture(collect_fn=concat_parts, futures=data)

    def then(self, function: Callable[[Any], Any]) -> DataProtoFuture:
        """Return a future of `function` applied to this future's result."""
        first = self.dispatch_fn
        return DataProtoFuture(
            self.collect_fn, self.futures, function if first is None else _Chain(first, function)
        )

    def chunk(self, chunks: int) -> list[DataProtoFuture]:
        """Return `chunks` futures of equal parts, without waiting."""
        return [self.then(_Chunk(i, chunks)) for i in range(chunks)]

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the parts and return them concatenated. Raise TimeoutError after `timeout`
        seconds, or a worker's error.
        """
        if isinstance(self.futures, PendingResults):
            parts = self.futures.get(timeout)
        else:
            import ray

            parts = ray.get(list(self.futures), timeout=timeout)
        for part in parts:
            assert isinstance(part, (DataProto, TensorDict)), (
                f"expected DataProto or TensorDict from a worker, got {type(part)}"
            )
        joined = self.collect_fn(parts)
        return joined if self.dispatch_fn is None else self.dispatch_fn(joined)


def concat_parts(parts: Sequence[Any]) -> Any:
    """Concatenate DataProtos or TensorDicts by rows. Raise TypeError when the parts differ in type."""
    if len({type(part) for part in parts}) != 1:
        raise TypeError(f"workers returned different types: {[type(part).__name__ for part in parts]}")
    return concat_tensordict(parts) if isinstance(parts[0], TensorDict) else DataProto.concat(parts)


class _Chain:
    def __init__(self, first: Callable[[Any], Any], second: Callable[[Any], Any]) -> None:
        self.first = first
        self.second = second

    def __call__(self, data: Any) -> Any:
        return self.second(self.first(data))


class _Chunk:
    """Picks one chunk; a class, because futures are sent to workers and a closure would be
    serialized with its frame.
    """

    def __init__(self, index: int, chunks: int) -> None:
        self.index = index
        self.chunks = chunks

    def __call__(self, data: Any) -> Any:
        return data.chunk(chunks=self.chunks)[self.index]


class BatchData:
    """A value to split (`chunk`), or a list of values to concatenate (`concat`); both return values
    of the given type.

    Args:
        data: a DataProto, DataProtoFuture or TensorDict to split; DataProtos, TensorDicts or a
            backend's futures to concatenate.
    """

    def __init__(self, data: Any) -> None:
        self._data = data

    def is_chunkable(self) -> bool:
        """Return whether `chunk` can split the value."""
        return isinstance(self._data, (DataProto, DataProtoFuture, TensorDict))

    def is_concatable(self) -> bool:
        """Return whether `concat` can concatenate the list, judged by its first entry."""
        listed = isinstance(self._data, (list, tuple)) and len(self._data) > 0
        return listed and (isinstance(self._data[0], (DataProto, TensorDict)) or _unfinished(self._data))

    def chunk(self, chunks: int) -> Sequence[Any]:
        """Split into `chunks` parts by rows. Raise AssertionError when the rows do not divide."""
        parts: Sequence[Any] = (
            chunk_tensordict(self._data, chunks)
            if isinstance(self._data, TensorDict)
            else self._data.chunk(chunks=chunks)
        )
        return parts

    def concat(self) -> Any:
        """Concatenate by rows; of futures return a `DataProtoFuture`. Raise ValueError for an empty
        list, TypeError for mixed types.
        """
        if not self._data:
            raise ValueError("BatchData.concat needs at least one part, got none")
        return DataProtoFuture.concat(self._data) if _unfinished(self._data) else concat_parts(self._data)


def _unfinished(parts: Sequence[Any]) -> bool:
    if isinstance(parts, PendingResults) or isinstance(parts[0], (DataProto, TensorDict)):
        return isinstance(parts, PendingResults)
    import ray

    return isinstance(parts[0], ray.ObjectRef)
