"""Muon: updates are orthogonalized momentum matrices (Jordan et al. 2024)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

# Quintic polynomial with the steepest slope at 0 that keeps all singular values near 1 (Jordan et
# al. 2024).
QUINTIC = (3.4445, -4.7750, 2.0315)


class Muon(torch.optim.Optimizer):
    """Muon for matrices: `torch.optim.Muon` with the iteration in float32 on a CPU, where emulated
    bf16 may be forty times slower.

    Args:
        params: matrices `[rows, columns]`.
        lr: learning rate; multiplied by `sqrt(rows / columns)` for a matrix with more rows than
            columns.
        weight_decay: decoupled weight decay.
        momentum: Nesterov momentum.
        ns_steps: number of Newton-Schulz iterations.

    Raises:
        ValueError: a parameter is not a matrix.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 0.02,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
        ns_steps: int = 5,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "ns_steps": ns_steps}
        )
        shapes = [tuple(p.shape) for group in self.param_groups for p in group["params"] if p.ndim != 2]
        if shapes:
            raise ValueError(
                f"Muon takes matrices, found parameters of shape {shapes[:3]}; give these to AdamW"
            )

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update every matrix that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            same_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    same_shape[parameter.shape].append(parameter)
            for shape, parameters in same_shape.items():
                updates = orthogonal(
                    torch.stack([self._momentum(p, group["momentum"]) for p in parameters]), group["ns_steps"]
                )
                rate = group["lr"] * math.sqrt(max(1.0, shape[0] / shape[1]))
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update.to(parameter.dtype), alpha=-rate)
        return loss

    def _momentum(self, parameter: nn.Parameter, momentum: float) -> torch.Tensor:
        gradient = parameter.grad
        state = self.state[parameter]
        assert gradient is not None
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(gradient)
        state["momentum"].lerp_(gradient, 1 - momentum)
        return gradient.lerp(state["momentum"], momentum)


def orthogonal(matrices: torch.Tensor, steps: int) -> torch.Tensor:
    """Return `matrices` `[n, rows, columns]` with singular values near 1, after `steps`
    Newton-Schulz iterations.
    """
    a, b, c = QUINTIC
    x = matrices.bfloat16() if matrices.device.type == "cuda" else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
