"""Methods of verl's `DataProto` that the trainer does not use: splitting, building, iterating,
saving.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader

from verl.compat.plain_files import load_plain, save_plain
from verl.compat.tensordicts import from_tensordict, to_tensordict
from verl.protocol.arrays import type_name


class VerlBatch:
    """The methods by name; `DataProto` looks them up here and calls them with itself as `self`."""

    if TYPE_CHECKING:
        batch: TensorDict | None
        non_tensor_batch: dict[str, np.ndarray]
        meta_info: dict[str, Any]

        def __init__(
            self,
            batch: TensorDict | None = None,
            non_tensor_batch: dict[str, np.ndarray] | None = None,
            meta_info: dict[str, Any] | None = None,
        ) -> None: ...
        def __len__(self) -> int: ...
        def slice(
            self, start: int | None = None, end: int | None = None, step: int | None = None
        ) -> Self: ...
        def select_idxs(self, idxs: Any) -> Self: ...
        @classmethod
        def from_dict(
            cls,
            tensors: dict[str, torch.Tensor] | None = None,
            non_tensors: dict[str, Any] | None = None,
            meta_info: dict[str, Any] | None = None,
            num_batch_dims: int = 1,
            auto_padding: bool = False,
        ) -> Self: ...

    @classmethod
    def from_single_dict(
        cls,
        data: dict[str, torch.Tensor | np.ndarray],
        meta_info: dict[str, Any] | None = None,
        auto_padding: bool = False,
    ) -> Self:
        """Return a batch of the given tensors and arrays. Raise ValueError for a value of another
        type.
        """
        tensors: dict[str, torch.Tensor] = {}
        non_tensors: dict[str, Any] = {}
        for key, value in data.items():
            if isinstance(value, torch.Tensor):
                tensors[key] = value
            elif isinstance(value, np.ndarray):
                non_tensors[key] = value
            else:
                raise ValueError(
                    f"Unsupported type in data {type(value)}: `{key}` must be a torch tensor or a numpy array"
                )
        return cls.from_dict(
            tensors=tensors, non_tensors=non_tensors, meta_info=meta_info, auto_padding=auto_padding
        )

    @classmethod
    def from_tensordict(
        cls,
        tensor_dict: TensorDict | None = None,
        meta_info: dict[str, Any] | None = None,
        num_batch_dims: int = 1,
    ) -> Self:
        """Return a batch from a TensorDict, which may have non-tensor columns; see `to_tensordict`.
        None gives no columns.
        """
        if tensor_dict is None:
            return cls(meta_info=dict(meta_info or {}))
        batch, arrays, info = from_tensordict(tensor_dict, num_batch_dims)
        return cls(batch=batch, non_tensor_batch=arrays, meta_info={**info, **(meta_info or {})})

    def get_data_info(self) -> str:
        """Return one line per column: type, shape, dtype and device."""
        lines = ["batch"]
        for key, tensor in self.batch.items() if self.batch is not None else ():
            lines.append(f"  {key}: {tuple(tensor.shape)} ({tensor.dtype}) {tensor.device}")
        lines.append("non_tensor_batch")
        lines += [
            f"  {key}: ndarray{value.shape} ({value.dtype})" for key, value in self.non_tensor_batch.items()
        ]
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

    def split(self, split_size: int) -> list[Self]:
        """Split into parts of `split_size` rows; the last may be shorter."""
        return [self.slice(start, start + split_size) for start in range(0, len(self), split_size)]

    def reorder(self, indices: torch.Tensor) -> None:
        """Put the rows into the given order, in place."""
        ordered = self.select_idxs(indices)
        self.batch = ordered.batch
        self.non_tensor_batch = ordered.non_tensor_batch

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> Self:
        """Repeat every row: a a b b when interleaved, a b a b otherwise."""
        rows = np.arange(len(self))
        return self.select_idxs(np.repeat(rows, repeat_times) if interleave else np.tile(rows, repeat_times))

    def sample_level_repeat(self, repeat_times: Sequence[int] | np.ndarray | torch.Tensor) -> Self:
        """Repeat row i `repeat_times[i]` times. Raise AssertionError unless there is one count per
        row.
        """
        counts = np.asarray(repeat_times)
        assert counts.ndim == 1 and len(counts) == len(self), (
            f"expected {len(self)} repeat counts, got shape {counts.shape}"
        )
        return self.select_idxs(np.repeat(np.arange(len(self)), counts))

    def unfold_column_chunks(self, n_split: int, split_keys: list[str] | None = None) -> Self:
        """Split the second dimension of `split_keys` into `n_split` rows; all other columns are
        repeated.

        A column [bsz, n, ...] becomes [bsz * n_split, n / n_split, ...].
        """
        split = set(split_keys or ())
        whole = self.repeat(n_split, interleave=True)
        columns: list[tuple[Any, Any]] = [
            (self.batch, whole.batch),
            (self.non_tensor_batch, whole.non_tensor_batch),
        ]
        for source, target in columns:
            for key in split & set(source.keys() if source is not None else ()):
                column = source[key]
                assert column.shape[1] % n_split == 0, (
                    f"`{key}` of shape {tuple(column.shape)} cannot be split into {n_split} chunks"
                )
                target[key] = column.reshape(
                    column.shape[0] * n_split, column.shape[1] // n_split, *column.shape[2:]
                )
        return whole

    def pop(
        self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
    ) -> Self:
        """Remove the named columns from this batch and return them as a batch. Raise AssertionError
        for a missing one.
        """
        parts_and_keys: tuple[tuple[Any, Sequence[str]], ...] = (
            (self.batch, batch_keys or ()),
            (self.non_tensor_batch, non_tensor_batch_keys or ()),
            (self.meta_info, meta_info_keys or ()),
        )
        for part, keys in parts_and_keys:
            present = [] if part is None else list(part.keys())
            for key in keys:
                assert key in present, f"cannot pop `{key}`: the batch has {present}"
        tensors, arrays, info = ({key: part.pop(key) for key in keys} for part, keys in parts_and_keys)
        return type(self).from_dict(tensors=tensors, non_tensors=arrays, meta_info=info)

    def rename(
        self, old_keys: str | list[str] | None = None, new_keys: str | list[str] | None = None
    ) -> Self:
        """Rename tensor columns in place. Raise TypeError for keys that are not text, ValueError
        when the lists differ in length.
        """

        def as_list(keys: Any, name: str) -> list[str]:
            if isinstance(keys, (str, list)):
                return [keys] if isinstance(keys, str) else keys
            raise TypeError(f"{name} must be a string or a list, but got {type(keys)}")

        if old_keys is None and new_keys is None:
            return self
        old = as_list(old_keys, "old_keys")
        new = as_list(new_keys, "new_keys")
        if len(new) != len(old):
            raise ValueError(
                f"new_keys and old_keys must have the same length, but got {len(new)} and {len(old)}"
            )
        if self.batch is None:
            raise ValueError(f"cannot rename {old}: the batch has no tensors")
        # all removed first, so that names can be swapped
        moved = {name: self.batch.pop(key) for key, name in zip(old, new, strict=True)}
        self.batch.update(moved)
        return self

    def padding(self, padding_size: int, padding_candidate: str = "") -> None:
        """Append `padding_size` copies of the last row (with "first", of the first row), in place."""
        if padding_size == 0:
            return
        filler = 0 if padding_candidate == "first" else len(self) - 1
        padded = self.select_idxs([*range(len(self)), *[filler] * padding_size])
        self.batch = padded.batch
        self.non_tensor_batch = padded.non_tensor_batch

    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int,
        seed: int | None = None,
        dataloader_kwargs: dict[str, Any] | None = None,
    ) -> Iterator[Self]:
        """Return an iterator over the mini-batches of `epochs` epochs, in the order of torch's
        DataLoader (`{"shuffle": True}` shuffles).

        Raises AssertionError when `mini_batch_size` does not divide the batch.
        """
        assert len(self) % mini_batch_size == 0, (
            f"{len(self)} rows do not divide into mini-batches of {mini_batch_size}"
        )
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        loader = DataLoader(
            dataset=range(len(self)),  # type: ignore[arg-type]
            batch_size=mini_batch_size,
            collate_fn=self.select_idxs,
            generator=generator,
            **(dataloader_kwargs or {}),
        )
        return (part for _ in range(epochs) for part in loader)

    def contiguous(self) -> Self:
        """Make every tensor contiguous, in place."""
        if self.batch is not None:
            self.batch = self.batch.contiguous()
        return self

    def to_tensordict(self) -> TensorDict:
        """Return one TensorDict with the tensors, the non-tensor columns and the meta_info."""
        return to_tensordict(self.batch, self.non_tensor_batch, self.meta_info, len(self))

    def save_to_disk(self, filepath: str | os.PathLike[str]) -> None:
        """Write the batch to a file. Raise TypeError naming a column with values other than plain
        data, arrays or tensors.
        """
        batch = None if self.batch is None else dict(self.batch.items())
        parts = {
            "format": 1,
            "batch": batch,
            "non_tensor_batch": self.non_tensor_batch,
            "meta_info": self.meta_info,
        }
        save_plain(parts, filepath, where="DataProto")

    @classmethod
    def load_from_disk(cls, filepath: str | os.PathLike[str]) -> Self:
        """Return a batch written by `save_to_disk`, without unpickling objects.

        Raises pickle.UnpicklingError for a file that contains other objects, ValueError for one
        without a batch.
        """
        parts = load_plain(filepath)
        if not isinstance(parts, dict) or parts.get("format") != 1:
            raise ValueError(
                f"{os.fspath(filepath)} holds no DataProto of format 1; write it with DataProto.save_to_disk"
            )
        batch = None
        if parts["batch"] is not None:
            rows = next(iter(parts["batch"].values())).shape[:1] if parts["batch"] else (0,)
            batch = TensorDict(parts["batch"], batch_size=rows)
        return cls(batch=batch, non_tensor_batch=parts["non_tensor_batch"], meta_info=parts["meta_info"])
