"""Padding, folding, unfolding, collating and gathering of batches."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from verl.protocol.data_proto import DataProto, DataProtoItem

logger = logging.getLogger(__name__)


def fold_batch_dim(data: DataProto, new_batch_size: int) -> DataProto:
    """Fold [bsz, ...] into [new_batch_size, bsz / new_batch_size, ...] in every column.

    Raises AssertionError when `new_batch_size` does not divide the batch.
    """
    rows = len(data)
    assert rows % new_batch_size == 0, f"{rows} rows do not fold into {new_batch_size}"
    inner = rows // new_batch_size
    batch = None
    if data.batch is not None:
        batch = data.batch.view(new_batch_size, inner)
        batch.auto_batch_size_(batch_dims=1)
    arrays = {
        key: value.reshape(new_batch_size, inner, *value.shape[1:])
        for key, value in data.non_tensor_batch.items()
    }
    return type(data)(batch=batch, non_tensor_batch=arrays, meta_info=data.meta_info)


def unfold_batch_dim(data: DataProto, batch_dims: int = 2) -> DataProto:
    """Merge the first `batch_dims` dimensions of every column into one."""
    batch = None
    if data.batch is not None:
        tensors = {key: value.flatten(0, batch_dims - 1) for key, value in data.batch.items()}
        batch = TensorDict(tensors, batch_size=next(iter(tensors.values())).shape[:1] if tensors else (0,))
    arrays = {
        key: value.reshape(-1, *value.shape[batch_dims:]) for key, value in data.non_tensor_batch.items()
    }
    return type(data)(batch=batch, non_tensor_batch=arrays, meta_info=data.meta_info)


def collate_fn(x: list[DataProtoItem]) -> DataProto:
    """Stack rows into a batch with the meta_info of the first row."""
    tensors = [item.batch for item in x if item.batch is not None]
    arrays: dict[str, np.ndarray] = {}
    for key in x[0].non_tensor_batch:
        column: np.ndarray = np.empty(len(x), dtype=object)
        for i, item in enumerate(x):
            column[i] = item.non_tensor_batch[key]
        arrays[key] = column
    batch = torch.stack(tensors).contiguous() if tensors else None
    return DataProto(batch=batch, non_tensor_batch=arrays, meta_info=x[0].meta_info)


def allgather_dict_tensors(
    tensors: dict[str, torch.Tensor] | TensorDict, size: int, group: Any, dim: int = 0
) -> dict[str, torch.Tensor] | TensorDict:
    """Concatenate every tensor of all ranks of a process group along `dim`, in rank order; shapes
    must be equal on every rank.

    Args:
        tensors: a dict or a TensorDict; the result has the same type.
        size: number of ranks.
        group: the process group; None is the default one.
        dim: dimension to concatenate along.
    """
    joined: dict[str, torch.Tensor] = {}
    # the order of collectives must be the same on every rank
    for key in sorted(tensors.keys()):
        parts = [torch.empty_like(tensors[key], memory_format=torch.contiguous_format) for _ in range(size)]
        torch.distributed.all_gather(parts, tensors[key].contiguous(), group=group)
        joined[key] = torch.cat(parts, dim=dim)
    if not isinstance(tensors, TensorDict):
        return joined
    shape = list(tensors.batch_size)
    if dim < len(shape):
        shape[dim] *= size
    return TensorDict(joined, batch_size=shape)


def all_gather_data_proto(data: DataProto, process_group: Any) -> None:
    """Replace the batch by the rows of all ranks of a process group, in rank order, in place."""
    parts: list[Any] = [None] * torch.distributed.get_world_size(process_group)
    torch.distributed.all_gather_object(parts, data, group=process_group)
    device = None if data.batch is None else data.batch.device
    merged = DataProto.concat([DataProto(part.batch, part.non_tensor_batch) for part in parts])
    data.batch = merged.batch if device is None or merged.batch is None else merged.batch.to(device)
    data.non_tensor_batch = merged.non_tensor_batch


def pad_dataproto_to_divisor(data: DataProto, size_divisor: int) -> tuple[DataProto, int]:
    """Append rows from the start of the batch, repeatedly if necessary, until `size_divisor`
    divides its length.

    Returns:
        The padded batch (the same object if no row was appended) and the number of rows appended.
    """
    assert isinstance(data, DataProto), f"data must be a DataProto, got {type(data).__name__}"
    if len(data) == 0:
        logger.warning("padding a DataProto with no item, no changed made")
        return data, 0
    pad_size = -len(data) % size_divisor
    if pad_size == 0:
        return data, 0
    return data.select_idxs([i % len(data) for i in range(len(data) + pad_size)]), pad_size


def unpad_dataproto(data: DataProto, pad_size: int) -> DataProto:
    """Drop the last `pad_size` rows."""
    return data if pad_size == 0 else data[:-pad_size]  # type: ignore[return-value]
