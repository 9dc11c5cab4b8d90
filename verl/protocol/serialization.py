"""Serialization of batches between processes: tensors become numpy arrays, which Ray sends without
copying them into the pickle.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

SerializedTensor = tuple[str, tuple[int, ...], Any]


def serialize_single_tensor(obj: torch.Tensor) -> SerializedTensor:
    """Return (dtype, shape, bytes as a uint8 array); the tensor is moved to the CPU."""
    tensor = obj.detach().cpu().contiguous()
    return str(obj.dtype).removeprefix("torch."), tuple(obj.shape), tensor.flatten().view(torch.uint8).numpy()


def deserialize_single_tensor(arr: SerializedTensor) -> torch.Tensor:
    """Return the tensor of `serialize_single_tensor`, in writable memory."""
    dtype, shape, data = arr
    # shared-memory pages are read-only
    buffer = data if data.flags.writeable else data.copy()
    if buffer.size == 0:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.from_numpy(buffer).view(getattr(torch, dtype)).view(shape)


def _serialize_column(tensor: torch.Tensor) -> tuple[str, Any]:
    if not tensor.is_nested:
        return "tensor", serialize_single_tensor(tensor)
    layout = "jagged" if tensor.layout == torch.jagged else "strided"
    return layout, [serialize_single_tensor(part) for part in tensor.unbind()]


def _deserialize_column(encoded: tuple[str, Any]) -> torch.Tensor:
    kind, data = encoded
    if kind == "tensor":
        return deserialize_single_tensor(data)
    parts = [deserialize_single_tensor(part) for part in data]
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged if kind == "jagged" else torch.strided)


def serialize_tensordict(batch: TensorDict) -> tuple[tuple[int, ...], str | None, dict[str, tuple[str, Any]]]:
    """Return (batch size, device, columns) of numpy buffers; nested tensors keep their layout."""
    device = None if batch.device is None else str(batch.device)
    return tuple(batch.batch_size), device, {key: _serialize_column(value) for key, value in batch.items()}


def deserialize_tensordict(arr: tuple[tuple[int, ...], str | None, dict[str, tuple[str, Any]]]) -> TensorDict:
    """Return the TensorDict of `serialize_tensordict`, in CPU memory, because the receiving process
    may lack the device.
    """
    batch_size, device, columns = arr
    tensors = {key: _deserialize_column(value) for key, value in columns.items()}
    return TensorDict(tensors, batch_size=batch_size, device=None if device is None else "cpu")
