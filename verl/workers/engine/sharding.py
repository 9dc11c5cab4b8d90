"""Process group, device mesh and FSDP2 sharding on cpu/gloo and cuda/nccl."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from verl.models.loader import persistent_buffers
from verl.workers.engine.gloo_shutdown import wait_at_exit

_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
_TIMEOUT = timedelta(minutes=30)


def init_mesh(device: str, rank: int, world_size: int) -> DeviceMesh:
    """Join the process group of the worker group (creating it if needed) and return a
    one-dimensional mesh.

    A group of more than one rank reads MASTER_ADDR and MASTER_PORT from the environment; at
    127.0.0.1 it listens on loopback only.

    Raises:
        ValueError: unknown device.
        RuntimeError: the process already belongs to a group of another size.
    """
    if device not in _BACKENDS:
        raise ValueError(f"device {device!r}: expected one of {tuple(_BACKENDS)}")
    if device == "cuda":
        # A worker of Ray sees its own GPU alone, whatever its local rank.
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    # Workers of the local controller share the group of their process.
    if not dist.is_initialized():
        dist.init_process_group(
            _BACKENDS[device],
            store=_store(rank, world_size),
            rank=rank,
            world_size=world_size,
            timeout=_TIMEOUT,
        )
        wait_at_exit()
    if dist.get_world_size() != world_size:
        raise RuntimeError(
            f"this process is in a group of {dist.get_world_size()} ranks, the worker group has {world_size}"
        )
    return init_device_mesh(device, (world_size,), mesh_dim_names=("dp",))


def _store(rank: int, world_size: int) -> dist.Store | None:
    """Return the rendezvous store of the ranks; None for torch's own, which listens on every
    interface without a password.
    """
    # One rank has nobody to meet: it opens no port.
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
    # Bound here: torch's own server listens on every interface.
    with socket.create_server(address, backlog=world_size) as server:
        return dist.TCPStore(
            *address,
            world_size,
            is_master=True,
            timeout=_TIMEOUT,
            master_listen_fd=server.detach(),
            use_libuv=True,
        )


def shard_model(model: Any, mesh: DeviceMesh, compute_dtype: torch.dtype, reshard_after_forward: bool) -> Any:
    """Shard a transformers model in place, layer by layer, and return it.

    Parameters keep their dtype (the master weights; adapters may have another than their base);
    compute runs in `compute_dtype`, the head of a value model in fp32 (values of adjacent tokens
    differ by less than the resolution of bf16); gradients are reduced in fp32. With one rank
    nothing is freed after the forward pass, since that would save no memory; where no dtype differs
    either, the parameters stay as they are.
    """
    masters = {parameter.dtype for parameter in model.parameters()}
    if mesh.size() == 1 and masters == {compute_dtype}:
        return model.to(mesh.device_type)
    policy = MixedPrecisionPolicy(
        param_dtype=compute_dtype if masters != {compute_dtype} else None,
        reduce_dtype=torch.float32,
    )
    reshard = reshard_after_forward and mesh.size() > 1
    layer_names = set(getattr(model, "_no_split_modules", None) or ())
    layers = [module for module in model.modules() if type(module).__name__ in layer_names]
    shared = _shared_parameters(layers)
    for layer in layers:
        # A parameter of several layers belongs to the model as a whole; one of FSDP's groups cannot
        # have it.
        if not shared & {id(parameter) for parameter in layer.parameters()}:
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    head = value_head(model)
    if head is not None and compute_dtype != torch.float32:
        fully_shard(
            head,
            mesh=mesh,
            mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32),
        )
    # Its own parameters are the first that the backward pass needs again.
    fully_shard(model, mesh=mesh, reshard_after_forward=False, mp_policy=policy)
    # FSDP does not move buffers (rotary frequencies).
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(mesh.device_type))
    return model


def cast_buffers(model: torch.nn.Module, plain: torch.nn.Module) -> None:
    """Cast the computed buffers of a model, which FSDP does not cast, to the dtypes of the same
    model made in the compute dtype.

    Buffers that belong to a checkpoint keep their values to the bit.

    Args:
        model: with adapters or without.
        plain: without adapters; it may be on the meta device.
    """
    dtypes = {name: buffer.dtype for name, buffer in plain.named_buffers()}
    persistent_names = set(persistent_buffers(model))
    for prefix, module in model.named_modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            full = f"{prefix}.{name}"
            if buffer.is_floating_point() and full not in persistent_names and full in dtypes:
                module._buffers[name] = buffer.to(dtypes[full])


def _shared_parameters(layers: Sequence[torch.nn.Module]) -> set[int]:
    """Return the ids of parameters that several of these layers have."""
    counts = Counter(
        identity for layer in layers for identity in {id(parameter) for parameter in layer.parameters()}
    )
    return {identity for identity, count in counts.items() if count > 1}


def value_head(model: Any) -> torch.nn.Module | None:
    """Return the layer with one output outside the layers of a language model; None if there is
    none, as in a language model.
    """
    inside = f"{getattr(model, 'base_model_prefix', '')}."
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and module.out_features == 1 and not name.startswith(inside):
            return module
    return None


def checkpoint_activations(model: Any) -> None:
    """Recompute the activations of every layer in the backward pass, with all modules in `eval`
    mode.

    transformers recomputes the layers that are in training mode, so each is in it until its own
    forward pass begins. Models that recompute their layers themselves are in it all the time.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    has_layers = any(isinstance(module, GradientCheckpointingLayer) for module in model.modules())
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True
            module.register_forward_pre_hook(lambda module, inputs: _set_training(module, False))
            module.register_forward_hook(
                lambda module, inputs, output: _set_training(module, True), always_call=True
            )
        elif not has_layers and getattr(module, "gradient_checkpointing", False):
            module.training = True


def _set_training(module: torch.nn.Module, training: bool) -> None:
    module.training = training


def free_gathered(model: Any) -> None:
    """Free gathered parameters, so that the next forward pass gathers the shards again."""
    # If anything is sharded, the model as a whole is.
    is_sharded = isinstance(model, FSDPModule)
    if not is_sharded:
        return
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensors(named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor unsharded, one at a time; all ranks must iterate together."""
    for name, parameter in named:
        value = parameter.detach()
        yield name, value.full_tensor() if isinstance(value, DTensor) else value
