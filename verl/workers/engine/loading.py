"""One rank reads a checkpoint, every rank gets its shard: host memory holds one whole copy of a model, not one a rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from verl.models.loader import ModelPathError
from verl.workers.engine.sharding import local


def load_sharded(load: Callable[[], Any], build: Callable[[], Any], shard: Callable[[Any], Any], mesh: DeviceMesh) -> Any:
    """The sharded model, with the parameters and buffers that the first rank loaded; all ranks call this together.

    Args:
        load: makes the model with its weights; called on the first rank only.
        build: makes the same model without weights; called on the others.
        shard: shards a model in place.
        mesh: one-dimensional mesh of the worker group.

    Raises:
        ModelPathError: a rank could not make its model; raised on every rank but those that raise an error of another kind themselves.
    """
    if mesh.size() == 1:
        return shard(load())
    first = mesh.get_local_rank() == 0
    network = _agree(load if first else build, mesh)
    whole = {name: p.detach() for name, p in network.named_parameters()} if first else {}
    network = shard(network)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            empty = torch.empty(0 if first else parameter.shape, dtype=parameter.dtype, device=mesh.device_type)
            value = whole.pop(name).to(mesh.device_type) if first else empty
            _fill(parameter, value, mesh)
        for buffer in network.buffers():
            _share(buffer, mesh)
    return network


def _agree(make: Callable[[], Any], mesh: DeviceMesh) -> Any:
    """What `make` returns, when it returns on all ranks: none may wait for weights that do not come."""
    network, raised, failure = None, None, ""
    try:
        network = make()
    except Exception as error:  # whatever it is, the other ranks have to know; it is raised again
        raised, failure = error, f"rank {mesh.get_local_rank()}: {type(error).__name__}: {error}"
        if isinstance(error, ModelPathError):
            failure = str(error)
    failures = [""] * mesh.size()
    dist.all_gather_object(failures, failure, group=mesh.get_group())
    if raised is not None:
        raise raised
    if any(failures):
        raise ModelPathError(next(failure for failure in failures if failure))
    return network


def _fill(parameter: torch.Tensor, value: torch.Tensor, mesh: DeviceMesh) -> None:
    """Write this rank's part of the first rank's `value` into a parameter."""
    dist.broadcast(value, group=mesh.get_group(), group_src=0)
    part = distribute_tensor(value, mesh, parameter.placements, src_data_rank=None) if isinstance(parameter, DTensor) else value
    local(parameter).copy_(local(part))


def _share(buffer: torch.Tensor, mesh: DeviceMesh) -> None:
    """Give every rank the first rank's buffer, which a checkpoint may hold; as bytes, because gloo sends no booleans."""
    value = buffer.contiguous()
    dist.broadcast(value.reshape(-1).view(torch.uint8), group=mesh.get_group(), group_src=0)
    if value is not buffer:
        buffer.copy_(value)
