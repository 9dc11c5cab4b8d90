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
    """The sharded model, with the parameters that the first rank loaded; all ranks call this together.

    Args:
        load: makes the model with its weights; called on the first rank only.
        build: makes the same model without weights; called on the others.
        shard: shards a model in place.
        mesh: one-dimensional mesh of the worker group.

    Raises:
        ModelPathError: the first rank could not load the model; raised on every rank.
    """
    if mesh.size() == 1:
        return shard(load())
    first = mesh.get_local_rank() == 0
    network = _agree(load if first else None, mesh)
    if network is None:
        network = build()
    whole = {name: p.detach() for name, p in network.named_parameters()} if first else {}
    network = shard(network)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            empty = torch.empty(0 if first else parameter.shape, dtype=parameter.dtype, device=mesh.device_type)
            value = whole.pop(name).to(mesh.device_type) if first else empty
            _fill(parameter, value, mesh)
    return network


def _agree(load: Callable[[], Any] | None, mesh: DeviceMesh) -> Any:
    """Load on the first rank, and let the others know what went wrong before they wait for weights."""
    network, failure = None, [""]
    if load is not None:
        try:
            network = load()
        except ModelPathError as error:
            failure = [str(error)]
    dist.broadcast_object_list(failure, group=mesh.get_group(), group_src=0, device=torch.device("cpu"))
    if failure[0]:
        raise ModelPathError(failure[0])
    return network


def _fill(parameter: torch.Tensor, value: torch.Tensor, mesh: DeviceMesh) -> None:
    """Write this rank's part of the first rank's `value` into a parameter."""
    dist.broadcast(value, group=mesh.get_group(), group_src=0)
    part = distribute_tensor(value, mesh, parameter.placements, src_data_rank=None) if isinstance(parameter, DTensor) else value
    local(parameter).copy_(local(part))
