"""Move shards and optimizer state between the GPU and host memory; no-ops on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from verl.workers.engine.sharding import free_gathered


def move_parameters(model: Any, device: str) -> None:
    """Move a sharded model's parameters, gradients and buffers."""
    free_gathered(model)
    model.to(device)


@torch.no_grad()
def move_optimizer_state(optimizer: torch.optim.Optimizer, device: str) -> None:
    """Move AdamW's moments and step counters."""
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                state[name] = value.to(device)


@contextmanager
def on_device(model: Any, device: str, offload: bool) -> Iterator[None]:
    """Keep the parameters on `device` inside the block, and in host memory after it if `offload` is
    set.
    """
    if not offload or device == "cpu":
        yield
        return
    move_parameters(model, device)
    try:
        yield
    finally:
        move_parameters(model, "cpu")
        # torch would keep the memory, which an engine on the device needs.
        torch.cuda.empty_cache()
