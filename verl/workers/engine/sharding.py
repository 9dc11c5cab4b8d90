"""Process group, device mesh and FSDP2 sharding on cpu/gloo and cuda/nccl."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from verl.workers.engine.gloo_shutdown import wait_at_exit

_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
_TIMEOUT = timedelta(minutes=30)


def init_mesh(device: str, rank: int, world_size: int) -> DeviceMesh:
    """Join the process group of the worker group (creating it if needed) and return a one-dimensional mesh.

    A group of more than one rank reads MASTER_ADDR and MASTER_PORT from the environment; at 127.0.0.1 it listens on loopback only.

    Raises:
        ValueError: unknown device.
        RuntimeError: the process already belongs to a group of another size.
    """
    if device not in _BACKENDS:
        raise ValueError(f"device {device!r}: expected one of {tuple(_BACKENDS)}")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if not dist.is_initialized():
        dist.init_process_group(_BACKENDS[device], store=_store(rank, world_size), rank=rank, world_size=world_size, timeout=_TIMEOUT)
        wait_at_exit()
    if dist.get_world_size() != world_size:
        raise RuntimeError(f"this process is in a group of {dist.get_world_size()} ranks, the worker group has {world_size}")
    return init_device_mesh(device, (world_size,), mesh_dim_names=("dp",))


def _store(rank: int, world_size: int) -> dist.Store | None:
    """Return the rendezvous store of the ranks; None for torch's own, which listens on every interface without a password."""
    if world_size == 1:
        return dist.HashStore()
    if os.environ.get("MASTER_ADDR") != "127.0.0.1":
        return None
    # By default Gloo and NCCL listen on the address of the host's name.
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo")
    address = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
    if rank:
        return dist.TCPStore(*address, world_size, is_master=False, timeout=_TIMEOUT)
    with socket.create_server(address, backlog=world_size) as server:
        return dist.TCPStore(*address, world_size, is_master=True, timeout=_TIMEOUT, master_listen_fd=server.detach(), use_libuv=True)


def shard_model(model: Any, mesh: DeviceMesh, compute_dtype: torch.dtype, reshard_after_forward: bool) -> Any:
    """Shard a transformers model in place, layer by layer, and return it.

    Parameters keep their dtype (the master weights; adapters may have another than their base); compute runs in `compute_dtype`, the
    head of a value model in fp32 (values of adjacent tokens differ by less than the resolution of bf16); gradients are reduced in fp32.
    With one rank nothing is freed after the forward pass, since that would save no memory.
    """
    masters = {parameter.dtype for parameter in model.parameters()}
    policy = MixedPrecisionPolicy(
        param_dtype=compute_dtype if masters != {compute_dtype} else None,
        reduce_dtype=torch.float32,
    )
    reshard = reshard_after_forward and mesh.size() > 1
    layer_names = set(getattr(model, "_no_split_modules", None) or ())
    for name, module in model.named_modules():
        of_adapter = ".lora_A." in name or ".lora_B." in name
        if type(module).__name__ in layer_names:
            fully_shard(module, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
        elif isinstance(module, torch.nn.Linear) and module.out_features == 1 and compute_dtype != torch.float32 and not of_adapter:
            fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32))
    fully_shard(model, mesh=mesh, reshard_after_forward=False, mp_policy=policy)
    # FSDP does not move buffers (rotary frequencies).
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(mesh.device_type))
    return model


def free_gathered(model: Any) -> None:
    """Free gathered parameters, so that the next forward pass gathers the shards again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensors(named: Iterable[tuple[str, torch.nn.Parameter]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every parameter unsharded, one at a time; all ranks must iterate together."""
    for name, parameter in named:
        value = parameter.detach()
        yield name, value.full_tensor() if isinstance(value, DTensor) else value
