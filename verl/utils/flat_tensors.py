"""The bytes of a bucket's tensors in one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

_ALIGNMENT = 16


def layout_of(tensors: Mapping[str, torch.Tensor]) -> tuple[list[list[Any]], int]:
    """Return name, dtype, shape and first byte of each tensor, and the number of bytes of all."""
    layout: list[list[Any]] = []
    size = 0
    for name, tensor in tensors.items():
        layout.append([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), size])
        size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    return layout, size


def device_of(tensors: Mapping[str, torch.Tensor]) -> torch.device:
    """Return the device of the tensors, the CPU if there are none."""
    return next((tensor.device for tensor in tensors.values()), torch.device("cpu"))


def pack(tensors: Mapping[str, torch.Tensor], flat: torch.Tensor, layout: Sequence[Sequence[Any]]) -> None:
    """Copy tensors into `flat`, which is uint8, at the places of their layout."""
    for name, view in unpack(flat, layout).items():
        view.copy_(tensors[name].detach())


def unpack(flat: torch.Tensor, layout: Sequence[Sequence[Any]]) -> dict[str, torch.Tensor]:
    """Return the tensors of a layout as views of `flat`."""
    tensors = {}
    for name, dtype_name, shape, start in layout:
        dtype = getattr(torch, dtype_name)
        count = torch.Size(shape).numel()
        tensors[name] = flat[start : start + count * dtype.itemsize].view(dtype).view(shape)
    return tensors
