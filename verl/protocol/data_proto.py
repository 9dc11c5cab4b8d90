"""`DataProto`: the batch that travels between the trainer, the collector and the workers.

One row per sample in three parts: `batch` (tensors with a common first dimension), `non_tensor_batch` (numpy arrays, mostly of
objects, with the same number of rows) and `meta_info` (values of the whole batch). Names and behaviour follow verl 0.9.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, Union

import numpy as np
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader

from verl.protocol.arrays import (
    as_object_array,
    deep_equal,
    merge_meta_info,
    type_name,
    union_numpy_dict,
    union_tensor_dict,
    union_two_dict,
)
from verl.protocol.config import DataProtoConfig
from verl.protocol.serialization import deserialize_tensordict, load_plain, save_plain, serialize_tensordict
from verl.protocol.tensordicts import from_tensordict, to_tensordict

Index = Union[slice, list, tuple, np.ndarray, torch.Tensor]


@dataclass(eq=False)
class DataProtoItem:
    """One row of a `DataProto`: tensors without the batch dimension, the row's objects, the batch's meta_info."""

    batch: TensorDict | None = None
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class DataProto:
    """A batch of samples.

    Attributes:
        batch: tensors, each [bsz, ...]; None when there are none.
        non_tensor_batch: numpy arrays, each with bsz rows.
        meta_info: what holds for the whole batch.
    """

    batch: TensorDict | None = None
    non_tensor_batch: dict[str, np.ndarray] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.non_tensor_batch = {} if self.non_tensor_batch is None else self.non_tensor_batch
        self.meta_info = {} if self.meta_info is None else self.meta_info
        self.check_consistency()

    # ---- construction

    @classmethod
    def from_single_dict(
        cls, data: dict[str, torch.Tensor | np.ndarray], meta_info: dict[str, Any] | None = None, auto_padding: bool = False
    ) -> Self:
        """Sort tensors and arrays into their parts. Raises ValueError for a value that is neither."""
        tensors: dict[str, torch.Tensor] = {}
        non_tensors: dict[str, Any] = {}
        for key, value in data.items():
            if isinstance(value, torch.Tensor):
                tensors[key] = value
            elif isinstance(value, np.ndarray):
                non_tensors[key] = value
            else:
                raise ValueError(f"Unsupported type in data {type(value)}: `{key}` must be a torch tensor or a numpy array")
        return cls.from_dict(tensors=tensors, non_tensors=non_tensors, meta_info=meta_info, auto_padding=auto_padding)

    @classmethod
    def from_dict(
        cls,
        tensors: dict[str, torch.Tensor] | None = None,
        non_tensors: dict[str, Any] | None = None,
        meta_info: dict[str, Any] | None = None,
        num_batch_dims: int = 1,
        auto_padding: bool = False,
    ) -> Self:
        """Build a batch from columns; sequences among the non-tensors become object arrays.

        Raises AssertionError when columns differ in their number of rows.
        """
        assert num_batch_dims > 0, f"num_batch_dims must be greater than zero, got {num_batch_dims}"
        if non_tensors:
            assert num_batch_dims == 1, f"only num_batch_dims=1 is supported with non_tensors, got {num_batch_dims}"
        batch = None
        if tensors:
            batch_size = next(iter(tensors.values())).shape[:num_batch_dims]
            for key, tensor in tensors.items():
                assert tensor.shape[:num_batch_dims] == batch_size, (
                    f"Not all the tensor in tensors have the same batch size with batch_dims={num_batch_dims}. "
                    f"Got `{key}` of {tuple(tensor.shape)}, expected {tuple(batch_size)} first"
                )
            batch = TensorDict(source=dict(tensors), batch_size=batch_size)
        arrays = {key: as_object_array(value) for key, value in (non_tensors or {}).items()}
        info = dict(meta_info or {})
        if auto_padding:
            info[DataProtoConfig.auto_padding_key] = True
        return cls(batch=batch, non_tensor_batch=arrays, meta_info=info)

    @classmethod
    def from_tensordict(
        cls, tensor_dict: TensorDict | None = None, meta_info: dict[str, Any] | None = None, num_batch_dims: int = 1
    ) -> Self:
        """Build a batch from a TensorDict that may hold non-tensor columns; see `to_tensordict`. None gives no columns."""
        if tensor_dict is None:
            return cls(meta_info=dict(meta_info or {}))
        batch, arrays, info = from_tensordict(tensor_dict, num_batch_dims)
        return cls(batch=batch, non_tensor_batch=arrays, meta_info={**info, **(meta_info or {})})

    @staticmethod
    def concat(data: Sequence[DataProto]) -> DataProto:
        """Stack batches row-wise; `metrics` of the parts become a dict of lists, all other meta_info must agree.

        Raises AssertionError when meta_info conflicts, ValueError when columns differ or nothing is given.
        """
        if not data:
            raise ValueError("DataProto.concat needs at least one batch, got none")
        batches = [part.batch for part in data if part.batch is not None]
        if batches and len(batches) != len(data):
            raise ValueError(f"{len(data) - len(batches)} of {len(data)} batches have no tensors; concat needs them in all or in none")
        names = data[0].non_tensor_batch.keys()
        for part in data[1:]:
            if part.non_tensor_batch.keys() != names:
                raise ValueError(f"non-tensor columns differ: {sorted(names)} and {sorted(part.non_tensor_batch.keys())}")
        arrays = {key: np.concatenate([part.non_tensor_batch[key] for part in data], axis=0) for key in names}
        batch = torch.cat(batches, dim=0) if batches else None
        return type(data[0])(batch=batch, non_tensor_batch=arrays, meta_info=merge_meta_info([part.meta_info for part in data]))

    # ---- comparison

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same columns and meta_info, by value; NaN equals NaN."""
        if not isinstance(other, DataProto):
            return NotImplemented
        mine, theirs = ((None if part.batch is None else dict(part.batch.items()), part.meta_info) for part in (self, other))
        return deep_equal(mine, theirs) and deep_equal(self.non_tensor_batch, other.non_tensor_batch)

    # ---- size, consistency, description

    def __len__(self) -> int:
        if self.batch is not None:
            return int(self.batch.batch_size[0])
        if self.non_tensor_batch:
            return len(next(iter(self.non_tensor_batch.values())))
        return 0

    def check_consistency(self) -> None:
        """Raise AssertionError when columns differ in their number of rows or a non-tensor is no numpy array."""
        if self.batch is not None:
            assert len(self.batch.batch_size) == 1, f"only support num_batch_dims=1, got batch size {tuple(self.batch.batch_size)}"
        rows = len(self)
        for key, value in self.non_tensor_batch.items():
            assert isinstance(value, np.ndarray), (
                f"data in the non_tensor_batch must be a numpy.array with dtype=object, but for key {key!r}, got {type(value)}"
            )
            assert value.ndim > 0 and value.shape[0] == rows, f"key {key} has {value.shape} where {rows} rows are expected"

    def get_data_info(self) -> str:
        """Describe every column on a line: type, shape, dtype and device."""
        lines = ["batch"]
        for key, tensor in self.batch.items() if self.batch is not None else ():
            lines.append(f"  {key}: {tuple(tensor.shape)} ({tensor.dtype}) {tensor.device}")
        lines.append("non_tensor_batch")
        lines += [f"  {key}: ndarray{value.shape} ({value.dtype})" for key, value in self.non_tensor_batch.items()]
        lines.append("meta_info")
        lines += [f"  {key}: {type_name(value)}" for key, value in self.meta_info.items()]
        return "\n".join(lines)

    def print_size(self, prefix: str = "") -> None:
        """Print the memory of the tensors and of the arrays, in GiB."""
        tensors = self.batch.values() if self.batch is not None else ()
        tensor_gib = sum(tensor.element_size() * tensor.numel() for tensor in tensors) / 1024**3
        array_gib = sum(value.nbytes for value in self.non_tensor_batch.values()) / 1024**3
        size = f"Size of tensordict: {tensor_gib} GB, size of non_tensor_batch: {array_gib} GB"
        print(f"{prefix}, {size}" if prefix else size)

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
        raise TypeError(f"Indexing with {type(item)} is not supported; use an int, a slice, a list, an array, a tensor or a bool mask")

    def _with_rows(self, tensor_index: Any, array_index: Any) -> Self:
        return type(self)(
            batch=None if self.batch is None else self.batch[tensor_index],
            non_tensor_batch={key: value[array_index] for key, value in self.non_tensor_batch.items()},
            meta_info=self.meta_info,
        )

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> Self:
        """Return rows start:end:step; tensors are views where the step allows it."""
        index = slice(start, end, step)
        if step is not None and step < 0:
            return self.select_idxs(list(range(*index.indices(len(self)))))
        return self._with_rows(index, index)

    def select_idxs(self, idxs: Sequence[int] | Sequence[bool] | np.ndarray | torch.Tensor) -> Self:
        """Return the rows of an index list or of a boolean mask, copied.

        Raises IndexError for a mask that is not as long as the batch.
        """
        tensor_index = torch.as_tensor(np.asarray(idxs) if isinstance(idxs, (list, tuple)) else idxs)
        if tensor_index.dtype == torch.bool:
            if len(tensor_index) != len(self):
                raise IndexError(f"a mask of {len(tensor_index)} entries does not fit a batch of {len(self)} rows")
            tensor_index = tensor_index.nonzero().flatten()
        elif tensor_index.numel() == 0:
            tensor_index = tensor_index.long()
        index = tensor_index.cpu().long()
        device = self.batch.device if self.batch is not None else None
        return self._with_rows(index if device is None else index.to(device), index.numpy())

    def split(self, split_size: int) -> list[Self]:
        """Cut into parts of `split_size` rows; the last may be shorter."""
        return [self.slice(start, start + split_size) for start in range(0, len(self), split_size)]

    def chunk(self, chunks: int) -> list[Self]:
        """Cut into `chunks` parts of equal size. Raises AssertionError when the rows do not divide, unless padding is enabled."""
        if not self.is_padding_enabled():
            assert len(self) % chunks == 0, f"only support equal chunk. Got size of DataProto {len(self)} and chunk {chunks}."
        size, rest = divmod(len(self), chunks)
        bounds = np.cumsum([0] + [size + (i < rest) for i in range(chunks)]).tolist()
        return [self.slice(start, end) for start, end in itertools.pairwise(bounds)]

    def reorder(self, indices: torch.Tensor) -> None:
        """Put the rows into the given order, in place."""
        ordered = self.select_idxs(indices)
        self.batch, self.non_tensor_batch = ordered.batch, ordered.non_tensor_batch

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> Self:
        """Repeat every row: a a b b when interleaved, a b a b otherwise."""
        rows = np.arange(len(self))
        return self.select_idxs(np.repeat(rows, repeat_times) if interleave else np.tile(rows, repeat_times))

    def sample_level_repeat(self, repeat_times: Sequence[int] | np.ndarray | torch.Tensor) -> Self:
        """Repeat row i `repeat_times[i]` times. Raises AssertionError when there is not one count a row."""
        counts = np.asarray(repeat_times)
        assert counts.ndim == 1 and len(counts) == len(self), f"expected {len(self)} repeat counts, got shape {counts.shape}"
        return self.select_idxs(np.repeat(np.arange(len(self)), counts))

    def unfold_column_chunks(self, n_split: int, split_keys: list[str] | None = None) -> Self:
        """Cut the second dimension of `split_keys` into `n_split` rows each; all other columns repeat.

        A column [bsz, n, ...] becomes [bsz * n_split, n / n_split, ...].
        """
        split = set(split_keys or ())
        whole = self.repeat(n_split, interleave=True)
        for source, target in ((self.batch, whole.batch), (self.non_tensor_batch, whole.non_tensor_batch)):
            for key in split & set(source.keys() if source is not None else ()):
                column = source[key]
                assert column.shape[1] % n_split == 0, f"`{key}` of shape {tuple(column.shape)} does not cut into {n_split} chunks"
                target[key] = column.reshape(column.shape[0] * n_split, column.shape[1] // n_split, *column.shape[2:])
        return whole

    # ---- columns

    def select(
        self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
        deepcopy: bool = False,
    ) -> Self:
        """Return a batch with the named columns only; None keeps a part as it is, shared with this batch unless `deepcopy`."""
        batch = self.batch
        if batch is not None and batch_keys is not None:
            batch = batch.select(*batch_keys)
        arrays, info = self.non_tensor_batch, self.meta_info
        if non_tensor_batch_keys is not None:
            arrays = {key: value for key, value in arrays.items() if key in non_tensor_batch_keys}
        if meta_info_keys is not None:
            info = {key: value for key, value in info.items() if key in meta_info_keys}
        if deepcopy:
            batch = None if batch is None else batch.clone()
            arrays, info = copy.deepcopy(arrays), copy.deepcopy(info)
        return type(self)(batch=batch, non_tensor_batch=arrays, meta_info=info)

    def pop(
        self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
    ) -> Self:
        """Take the named columns out of this batch and return them. Raises AssertionError for a missing one."""
        held: tuple[tuple[Any, Sequence[str]], ...] = (
            (self.batch, batch_keys or ()),
            (self.non_tensor_batch, non_tensor_batch_keys or ()),
            (self.meta_info, meta_info_keys or ()),
        )
        for part, keys in held:
            present = [] if part is None else list(part.keys())
            for key in keys:
                assert key in present, f"cannot pop `{key}`: the batch has {present}"
        tensors, arrays, info = ({key: part.pop(key) for key in keys} for part, keys in held)
        return type(self).from_dict(tensors=tensors, non_tensors=arrays, meta_info=info)

    def rename(self, old_keys: str | list[str] | None = None, new_keys: str | list[str] | None = None) -> Self:
        """Rename tensor columns in place. Raises TypeError for other than text, ValueError when the lists differ in length."""

        def as_list(keys: Any, name: str) -> list[str]:
            if isinstance(keys, (str, list)):
                return [keys] if isinstance(keys, str) else keys
            raise TypeError(f"{name} must be a string or a list, but got {type(keys)}")

        if old_keys is None and new_keys is None:
            return self
        old, new = as_list(old_keys, "old_keys"), as_list(new_keys, "new_keys")
        if len(new) != len(old):
            raise ValueError(f"new_keys and old_keys must have the same length, but got {len(new)} and {len(old)}")
        if self.batch is None:
            raise ValueError(f"cannot rename {old}: the batch has no tensors")
        moved = {name: self.batch.pop(key) for key, name in zip(old, new, strict=True)}  # all out first, so names may swap
        self.batch.update(moved)
        return self

    def union(self, other: DataProto) -> Self:
        """Add the columns and meta_info of another batch of the same rows, in place.

        Raises AssertionError when the number of rows or a common column differs.
        """
        if self.batch is None:
            self.batch = other.batch
        elif other.batch is not None:
            self.batch = union_tensor_dict(self.batch, other.batch)
        self.non_tensor_batch = union_numpy_dict(self.non_tensor_batch, other.non_tensor_batch)
        self.meta_info = union_two_dict(self.meta_info, other.meta_info)
        self.check_consistency()
        return self

    # ---- padding

    def is_padding_enabled(self) -> bool:
        """Whether dispatch may pad this batch to the number of workers."""
        return bool(self.meta_info.get(DataProtoConfig.auto_padding_key, False) or DataProtoConfig.auto_padding)

    def padding(self, padding_size: int, padding_candidate: str = "") -> None:
        """Append `padding_size` copies of the last row (of the first with "first"), in place."""
        if padding_size == 0:
            return
        filler = 0 if padding_candidate == "first" else len(self) - 1
        padded = self.select_idxs([*range(len(self)), *[filler] * padding_size])
        self.batch, self.non_tensor_batch = padded.batch, padded.non_tensor_batch

    # ---- iteration, devices, storage

    def make_iterator(
        self, mini_batch_size: int, epochs: int, seed: int | None = None, dataloader_kwargs: dict[str, Any] | None = None
    ) -> Iterator[DataProto]:
        """Yield mini-batches for some epochs; order and shuffling (`{"shuffle": True}`) are those of torch's DataLoader.

        Raises AssertionError when `mini_batch_size` does not divide the batch.
        """
        assert len(self) % mini_batch_size == 0, f"{len(self)} rows do not divide into mini-batches of {mini_batch_size}"
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        loader = DataLoader(
            dataset=range(len(self)),  # type: ignore[arg-type]
            batch_size=mini_batch_size,
            collate_fn=self.select_idxs,
            generator=generator,
            **(dataloader_kwargs or {}),
        )
        return (part for _ in range(epochs) for part in loader)

    def to(self, device: str | torch.device) -> Self:
        """Move the tensors to a device, in place."""
        if self.batch is not None:
            self.batch = self.batch.to(device)
        return self

    def contiguous(self) -> Self:
        """Make every tensor contiguous, in place."""
        if self.batch is not None:
            self.batch = self.batch.contiguous()
        return self

    def to_tensordict(self) -> TensorDict:
        """Return one TensorDict with the tensors, the non-tensor columns and the meta_info."""
        return to_tensordict(self.batch, self.non_tensor_batch, self.meta_info, len(self))

    def save_to_disk(self, filepath: str | os.PathLike[str]) -> None:
        """Write the batch. Raises TypeError naming the column that holds something other than plain data, arrays or tensors."""
        batch = None if self.batch is None else dict(self.batch.items())
        parts = {"format": 1, "batch": batch, "non_tensor_batch": self.non_tensor_batch, "meta_info": self.meta_info}
        save_plain(parts, filepath, where="DataProto")

    @classmethod
    def load_from_disk(cls, filepath: str | os.PathLike[str]) -> Self:
        """Read a batch of `save_to_disk`, without unpickling objects.

        Raises pickle.UnpicklingError for a file with foreign objects in it, ValueError for one that holds no batch.
        """
        parts = load_plain(filepath)
        if not isinstance(parts, dict) or parts.get("format") != 1:
            raise ValueError(f"{os.fspath(filepath)} holds no DataProto of format 1; write it with DataProto.save_to_disk")
        batch = None
        if parts["batch"] is not None:
            rows = next(iter(parts["batch"].values())).shape[:1] if parts["batch"] else (0,)
            batch = TensorDict(parts["batch"], batch_size=rows)
        return cls(batch=batch, non_tensor_batch=parts["non_tensor_batch"], meta_info=parts["meta_info"])

    def __getstate__(self) -> tuple[Any, dict[str, np.ndarray], dict[str, Any]]:
        return (None if self.batch is None else serialize_tensordict(self.batch), self.non_tensor_batch, self.meta_info)

    def __setstate__(self, state: tuple[Any, dict[str, np.ndarray], dict[str, Any]]) -> None:
        batch, arrays, self.meta_info = state
        self.batch = None if batch is None else deserialize_tensordict(batch)
        self.non_tensor_batch = {key: value if value.flags.writeable else value.copy() for key, value in arrays.items()}
