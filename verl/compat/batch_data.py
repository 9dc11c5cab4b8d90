"""One way to cut and join whatever travels by rows: batches, TensorDicts, and what workers still compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict import TensorDict

from verl.compat.future import DataProtoFuture, concat_parts
from verl.compat.tensordicts import chunk_tensordict
from verl.protocol.data_proto import DataProto
from verl.single_controller.worker_group import PendingResults


class BatchData:
    """A value to cut (`chunk`), or a list of values to join (`concat`); both return what was put in, not a `BatchData`.

    Args:
        data: a DataProto, DataProtoFuture or TensorDict to cut; DataProtos, TensorDicts or a backend's futures to join.
    """

    def __init__(self, data: Any) -> None:
        self._data = data

    def is_chunkable(self) -> bool:
        """Whether `chunk` can cut it."""
        return isinstance(self._data, (DataProto, DataProtoFuture, TensorDict))

    def is_concatable(self) -> bool:
        """Whether `concat` can join it, by its first entry."""
        listed = isinstance(self._data, (list, tuple)) and len(self._data) > 0
        return listed and (isinstance(self._data[0], (DataProto, TensorDict)) or _unfinished(self._data))

    def chunk(self, chunks: int) -> Sequence[Any]:
        """Cut into `chunks` parts by rows. Raises AssertionError when the rows do not divide."""
        parts: Sequence[Any] = (
            chunk_tensordict(self._data, chunks) if isinstance(self._data, TensorDict) else self._data.chunk(chunks=chunks)
        )
        return parts

    def concat(self) -> Any:
        """Join by rows; of futures a `DataProtoFuture`. Raises ValueError for an empty list, TypeError for parts that differ in type."""
        if not self._data:
            raise ValueError("BatchData.concat needs at least one part, got none")
        return DataProtoFuture.concat(self._data) if _unfinished(self._data) else concat_parts(self._data)


def _unfinished(parts: Sequence[Any]) -> bool:
    if isinstance(parts, PendingResults) or isinstance(parts[0], (DataProto, TensorDict)):
        return isinstance(parts, PendingResults)
    import ray

    return isinstance(parts[0], ray.ObjectRef)
