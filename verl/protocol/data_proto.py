"""`DataProto`: the batch exchanged by the trainer, the collector and the workers.

One row per sample in three parts: `batch` (tensors with a common first dimension),
`non_tensor_batch` (numpy arrays, mostly of objects, with the same number of rows) and `meta_info`
(values for the whole batch). Names and behaviour follow verl 0.9.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self, Union

import numpy as np
import torch
from tensordict import TensorDict

from verl.protocol.arrays import (
    as_object_array,
    deep_equal,
    merge_meta_info,
    union_numpy_dict,
    union_tensor_dict,
    union_two_dict,
)
from verl.protocol.padding import DataProtoConfig
from verl.protocol.serialization import deserialize_tensordict, serialize_tensordict

Index = Union[slice, list, tuple, np.ndarray, torch.Tensor]


class _VerlMethod:
    """A method of verl's `DataProto` that the trainer does not use, from `verl.compat.batch`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: DataProto | None, owner: type) -> Any:
        # Imported at the first use: a run that uses no name of verl's loads nothing of
        # `verl.compat`.
        from verl.compat.batch import VerlBatch

        return vars(VerlBatch)[self._name].__get__(instance, owner)


@dataclass(eq=False)
class DataProtoItem:
    """One row of a `DataProto`: tensors without the batch dimension, the row's objects, the batch's
    meta_info.
    """

    batch: TensorDict | None = None
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class DataProto:
    """A batch of samples.

    Attributes:
        batch: tensors, each [bsz, ...]; None when there are none.
        non_tensor_batch: numpy arrays, each with bsz rows.
        meta_info: values for the whole batch.
    """

    batch: TensorDict = None  # type: ignore[assignment]  # a batch of arrays alone, as verl has it
    non_tensor_batch: dict[str, np.ndarray] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.non_tensor_batch = {} if self.non_tensor_batch is None else self.non_tensor_batch
        self.meta_info = {} if self.meta_info is None else self.meta_info
        self.check_consistency()

    # ---- construction

    @classmethod
    def from_dict(
        cls,
        tensors: dict[str, torch.Tensor] | None = None,
        non_tensors: dict[str, Any] | None = None,
        meta_info: dict[str, Any] | None = None,
        num_batch_dims: int = 1,
        auto_padding: bool = False,
    ) -> Self:
        """Return a batch of the given columns; sequences among the non-tensors become object
        arrays.

        Raises AssertionError when columns differ in their number of rows.
        """
        assert num_batch_dims > 0, f"num_batch_dims must be greater than zero, got {num_batch_dims}"
        if non_tensors:
            assert num_batch_dims == 1, (
                f"only num_batch_dims=1 is supported with non_tensors, got {num_batch_dims}"
            )
        batch = None
        if tensors:
            batch_size = next(iter(tensors.values())).shape[:num_batch_dims]
            for key, tensor in tensors.items():
                assert tensor.shape[:num_batch_dims] == batch_size, (
                    "Not all the tensor in tensors have the same batch size with "
                    f"batch_dims={num_batch_dims}. Got `{key}` of {tuple(tensor.shape)}, expected "
                    f"{tuple(batch_size)} first"
                )
            batch = TensorDict(source=dict(tensors), batch_size=batch_size)
        arrays = {key: as_object_array(value) for key, value in (non_tensors or {}).items()}
        info = dict(meta_info or {})
        if auto_padding:
            info[DataProtoConfig.auto_padding_key] = True
        return cls(batch=batch, non_tensor_batch=arrays, meta_info=info)

    @staticmethod
    def concat(data: Sequence[DataProto]) -> DataProto:
        """Concatenate batches row-wise; `metrics` of the parts become a dict of lists, all other
        meta_info must agree.

        Raises AssertionError when meta_info conflicts, ValueError when columns differ or `data` is
        empty.
        """
        if not data:
            raise ValueError("DataProto.concat needs at least one batch, got none")
        batches = [part.batch for part in data if part.batch is not None]
        if batches and len(batches) != len(data):
            raise ValueError(
                f"{len(data) - len(batches)} of {len(data)} batches have no tensors; concat needs "
                "them in all or in none"
            )
        names = data[0].non_tensor_batch.keys()
        for part in data[1:]:
            if part.non_tensor_batch.keys() != names:
                raise ValueError(
                    f"non-tensor columns differ: {sorted(names)} and {sorted(part.non_tensor_batch.keys())}"
                )
        arrays = {key: np.concatenate([part.non_tensor_batch[key] for part in data], axis=0) for key in names}
        batch = torch.cat(batches, dim=0) if batches else None
        return type(data[0])(
            batch=batch, non_tensor_batch=arrays, meta_info=merge_meta_info([part.meta_info for part in data])
        )

    def __eq__(self, other: object) -> bool:
        """Return whether both have equal columns and meta_info, by value; NaN equals NaN."""
        if not isinstance(other, DataProto):
            return NotImplemented
        mine, theirs = (
            (None if part.batch is None else dict(part.batch.items()), part.meta_info)
            for part in (self, other)
        )
        return deep_equal(mine, theirs) and deep_equal(self.non_tensor_batch, other.non_tensor_batch)

    # ---- size and consistency

    def __len__(self) -> int:
        if self.batch is not None:
            return int(self.batch.batch_size[0])
        if self.non_tensor_batch:
            return len(next(iter(self.non_tensor_batch.values())))
        return 0

    def check_consistency(self) -> None:
        """Raise AssertionError when columns differ in their number of rows or a non-tensor is not a
        numpy array.
        """
        if self.batch is not None:
            assert len(self.batch.batch_size) == 1, (
                f"only support num_batch_dims=1, got batch size {tuple(self.batch.batch_size)}"
            )
        rows = len(self)
        for key, value in self.non_tensor_batch.items():
            assert isinstance(value, np.ndarray), (
                "data in the non_tensor_batch must be a numpy.array with dtype=object, but for "
                f"key {key!r}, got {type(value)}"
            )
            assert value.ndim > 0 and value.shape[0] == rows, (
                f"key {key} has {value.shape} where {rows} rows are expected"
            )

    # ---- rows

    def __getitem__(self, item: int | Index) -> DataProto | DataProtoItem:
        if isinstance(item, slice):
            return self.slice(item.start, item.stop, item.step)
        if isinstance(item, (list, np.ndarray, torch.Tensor)):
            return self.select_idxs(item)
        if isinstance(item, (int, np.integer)):
            return DataProtoItem(
                batch=None if self.batch is None else self.batch[int(item)],
                non_tensor_batch={key: value[item] for key, value in self.non_tensor_batch.items()},
                meta_info=self.meta_info,
            )
        raise TypeError(
            f"Indexing with {type(item)} is not supported; use an int, a slice, a list, an array, "
            "a tensor or a bool mask"
        )

    def _with_rows(self, tensor_index: Any, array_index: Any) -> Self:
        return type(self)(
            batch=None if self.batch is None else self.batch[tensor_index],
            non_tensor_batch={key: value[array_index] for key, value in self.non_tensor_batch.items()},
            meta_info=self.meta_info,
        )

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> Self:
        """Return rows start:end:step; tensors are views where the step allows it."""
        index = slice(start, end, step)
        # Tensors have no views with negative steps.
        if step is not None and step < 0:
            return self.select_idxs(list(range(*index.indices(len(self)))))
        return self._with_rows(index, index)

    def select_idxs(self, idxs: Sequence[int] | Sequence[bool] | np.ndarray | torch.Tensor) -> Self:
        """Return a copy of the rows selected by an index list or a boolean mask.

        Raises IndexError for a mask whose length differs from the batch's.
        """
        tensor_index = torch.as_tensor(np.asarray(idxs) if isinstance(idxs, (list, tuple)) else idxs)
        if tensor_index.dtype == torch.bool:
            if len(tensor_index) != len(self):
                raise IndexError(
                    f"a mask of {len(tensor_index)} entries does not fit a batch of {len(self)} rows"
                )
            tensor_index = tensor_index.nonzero().flatten()
        elif tensor_index.numel() == 0:
            # An empty list becomes floats, which are no indices.
            tensor_index = tensor_index.long()
        index = tensor_index.cpu().long()
        device = self.batch.device if self.batch is not None else None
        return self._with_rows(index if device is None else index.to(device), index.numpy())

    def is_padding_enabled(self) -> bool:
        """Return whether the number of rows need not be a multiple of the number of parts."""
        return bool(
            self.meta_info.get(DataProtoConfig.auto_padding_key, False) or DataProtoConfig.auto_padding
        )

    def chunk(self, chunks: int) -> list[Self]:
        """Split into `chunks` parts of equal size. Raise AssertionError when the rows do not
        divide, unless padding is enabled.
        """
        if not self.is_padding_enabled():
            assert len(self) % chunks == 0, (
                f"only support equal chunk. Got size of DataProto {len(self)} and chunk {chunks}."
            )
        size, rest = divmod(len(self), chunks)
        bounds = np.cumsum([0] + [size + (i < rest) for i in range(chunks)]).tolist()
        return [self.slice(start, end) for start, end in itertools.pairwise(bounds)]

    # ---- columns

    def select(
        self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
        deepcopy: bool = False,
    ) -> Self:
        """Return a batch with the named columns only; None keeps a whole part, which is shared with
        this batch unless `deepcopy`.
        """
        batch = self.batch
        if batch is not None and batch_keys is not None:
            batch = batch.select(*batch_keys)
        arrays = self.non_tensor_batch
        info = self.meta_info
        if non_tensor_batch_keys is not None:
            arrays = {key: value for key, value in arrays.items() if key in non_tensor_batch_keys}
        if meta_info_keys is not None:
            info = {key: value for key, value in info.items() if key in meta_info_keys}
        if deepcopy:
            batch = None if batch is None else batch.clone()
            arrays = copy.deepcopy(arrays)
            info = copy.deepcopy(info)
        return type(self)(batch=batch, non_tensor_batch=arrays, meta_info=info)

    def union(self, other: DataProto) -> Self:
        """Add the columns and meta_info of another batch with the same rows, in place.

        Raises AssertionError when the number of rows or a common column or meta_info value differs.
        """
        if self.batch is None:
            self.batch = other.batch
        elif other.batch is not None:
            self.batch = union_tensor_dict(self.batch, other.batch)
        self.non_tensor_batch = union_numpy_dict(self.non_tensor_batch, other.non_tensor_batch)
        self.meta_info = union_two_dict(self.meta_info, other.meta_info)
        self.check_consistency()
        return self

    # ---- devices and processes

    def to(self, device: str | torch.device) -> Self:
        """Move the tensors to a device, in place."""
        if self.batch is not None:
            self.batch = self.batch.to(device)
        return self

    def __getstate__(self) -> tuple[Any, dict[str, np.ndarray], dict[str, Any]]:
        return (
            None if self.batch is None else serialize_tensordict(self.batch),
            self.non_tensor_batch,
            self.meta_info,
        )

    def __setstate__(self, state: tuple[Any, dict[str, np.ndarray], dict[str, Any]]) -> None:
        batch, arrays, self.meta_info = state
        self.batch = None if batch is None else deserialize_tensordict(batch)
        self.non_tensor_batch = {
            key: value if value.flags.writeable else value.copy() for key, value in arrays.items()
        }

    # ---- methods of verl's that the trainer does not use

    from_single_dict = _VerlMethod()
    from_tensordict = _VerlMethod()
    get_data_info = _VerlMethod()
    print_size = _VerlMethod()
    split = _VerlMethod()
    reorder = _VerlMethod()
    repeat = _VerlMethod()
    sample_level_repeat = _VerlMethod()
    unfold_column_chunks = _VerlMethod()
    pop = _VerlMethod()
    rename = _VerlMethod()
    padding = _VerlMethod()
    make_iterator = _VerlMethod()
    contiguous = _VerlMethod()
    to_tensordict = _VerlMethod()
    save_to_disk = _VerlMethod()
    load_from_disk = _VerlMethod()
