"""Weights through Ray's object store, which sends every bucket to each node once, bypassing the
controller. Works across nodes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from verl.protocol.serialization import deserialize_single_tensor, serialize_single_tensor
from verl.workers.weight_transfer.base import WeightTransfer


class ObjectStore(WeightTransfer):
    """Its handles are references to the tensors; with the local controller, the tensors themselves."""

    def send(self, tensors: Mapping[str, torch.Tensor], receivers: int) -> Any:
        """Put the tensors into the object store of this node; they are lost when this process dies."""
        return put({name: serialize_single_tensor(tensor) for name, tensor in tensors.items()})

    def receive(self, handle: Any) -> dict[str, torch.Tensor]:
        """Return the tensors, in CPU memory of this process."""
        return {name: deserialize_single_tensor(value) for name, value in handle.items()}


def put(value: Any) -> Any:
    """Return a reference to a value, which Ray resolves when it is passed as an argument; without
    Ray the value itself.
    """
    if os.environ.get("WG_BACKEND") != "ray":
        return value
    import ray

    return ray.put(value)
