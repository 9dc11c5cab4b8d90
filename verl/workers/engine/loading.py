"""One rank reads a checkpoint, every rank gets its shard: host memory holds one whole copy of a
model, not one per rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from verl.models.loader import ModelPathError
from verl.workers.engine.sharding import local


def load_sharded(
    load: Callable[[], Any], build: Callable[[], Any], shard: Callable[[Any], Any], mesh: DeviceMesh
) -> Any:
    """Return the sharded model with the parameters and buffers that the first rank loaded; all
    ranks must call this together.

    Args:
        load: makes the model with its weights; called on the first rank only.
        build: makes the same model without weights; called on the others.
        shard: shards a model in place.
        mesh: one-dimensional mesh of the worker group.

    Raises:
        ModelPathError: a rank could not make its model; a rank whose own error is of another class
            raises that instead.
    """
    if mesh.size() == 1:
        return shard(load())
    first = mesh.get_local_rank() == 0
    network = _made_on_all_ranks(load if first else build, mesh)
    # Taken now: sharding replaces the parameters.
    whole = {name: p.detach() for name, p in network.named_parameters()} if first else {}
    network = shard(network)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            empty = torch.empty(
                0 if first else parameter.shape, dtype=parameter.dtype, device=mesh.device_type
            )
            # One whole parameter at a time is on the device.
            value = whole.pop(name).to(mesh.device_type) if first else empty
            _broadcast_parameter(parameter, value, mesh)
        for buffer in network.buffers():
            _broadcast_buffer(buffer, mesh)
    return network


def _made_on_all_ranks(make: Callable[[], Any], mesh: DeviceMesh) -> Any:
    """Return the result of `make` if it succeeds on all ranks, else raise, so that no rank waits
    for weights of a failed one.
    """
    network = None
    raised = None
    failure = ""
    try:
        network = make()
    except Exception as error:
        # any error must be sent to the other ranks; it is raised again below
        raised = error
        failure = f"rank {mesh.get_local_rank()}: {type(error).__name__}: {error}"
        if isinstance(error, ModelPathError):
            failure = str(error)
    failures = [""] * mesh.size()
    dist.all_gather_object(failures, failure, group=mesh.get_group())
    if raised is not None:
        raise raised
    if any(failures):
        raise ModelPathError(next(failure for failure in failures if failure))
    return network


def _broadcast_parameter(parameter: torch.Tensor, value: torch.Tensor, mesh: DeviceMesh) -> None:
    """Broadcast the first rank's `value` and write this rank's part of it into a parameter."""
    dist.broadcast(value, group=mesh.get_group(), group_src=0)
    # Every rank has the whole value, so that no parts are sent.
    part = (
        distribute_tensor(value, mesh, parameter.placements, src_data_rank=None)
        if isinstance(parameter, DTensor)
        else value
    )
    local(parameter).copy_(local(part))


def _broadcast_buffer(buffer: torch.Tensor, mesh: DeviceMesh) -> None:
    """Broadcast the first rank's buffer, which a checkpoint may hold; as bytes, because gloo does
    not support booleans.
    """
    value = buffer.contiguous()
    dist.broadcast(value.reshape(-1).view(torch.uint8), group=mesh.get_group(), group_src=0)
    if value is not buffer:
        buffer.copy_(value)
