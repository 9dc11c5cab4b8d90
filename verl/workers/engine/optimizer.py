"""AdamW with a warm-up and a schedule in closed form."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from verl.trainer.config import OptimConfig
from verl.trainer.config.names import SCHEDULES
from verl.workers.engine.sharding import local


@dataclass(frozen=True)
class Schedule:
    """Learning rate as a function of the optimizer step, so that the step number is its whole
    state.

    Step 0 is the first update: with `w` warm-up steps it runs at `lr / w`, and step `w - 1` at the
    peak. `linear` and `cosine` then decay to `min_lr_ratio * lr` at the last of `total_steps`.

    Raises:
        ValueError: unknown schedule, or one that needs the total number of steps without it.
    """

    config: OptimConfig
    total_steps: int = -1

    def __post_init__(self) -> None:
        if self.config.lr_scheduler_type not in SCHEDULES:
            raise ValueError(
                f"optim.lr_scheduler_type={self.config.lr_scheduler_type!r}: expected one of {SCHEDULES}"
            )

    @property
    def warmup_steps(self) -> int:
        """Number of steps of linear warm-up."""
        steps = self.config.lr_warmup_steps
        return int(steps * self._total() if 0 < steps < 1 else steps)

    def lr(self, step: int) -> float:
        """Return the learning rate of update number `step`, counted from 0."""
        peak = self.config.lr
        warmup = self.warmup_steps
        if step < warmup:
            return peak * (step + 1) / warmup
        if self.config.lr_scheduler_type == "constant":
            return peak
        progress = min(1.0, (step - warmup) / max(1, self._total() - 1 - warmup))
        share = (
            1 - progress
            if self.config.lr_scheduler_type == "linear"
            else 0.5 * (1 + math.cos(math.pi * progress))
        )
        return peak * (self.config.min_lr_ratio + (1 - self.config.min_lr_ratio) * share)

    def _total(self) -> int:
        total = self.config.total_training_steps if self.config.total_training_steps > 0 else self.total_steps
        if total < 1:
            raise ValueError(
                f"optim.lr_scheduler_type={self.config.lr_scheduler_type} with "
                f"lr_warmup_steps={self.config.lr_warmup_steps:g} needs the total steps: "
                "call set_total_training_steps or set total_training_steps"
            )
        return total


def build_optimizer(parameters: Iterable[torch.nn.Parameter], config: OptimConfig) -> torch.optim.AdamW:
    """Return AdamW over the (sharded) parameters that require a gradient. Raises ValueError when
    `betas` is not a pair.
    """
    if len(config.betas) != 2:
        raise ValueError(f"optim.betas={config.betas}: expected two numbers")
    trained = [p for p in parameters if p.requires_grad]
    beta1, beta2 = config.betas
    return torch.optim.AdamW(
        trained,
        lr=config.lr,
        betas=(beta1, beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def init_state(optimizer: torch.optim.Optimizer) -> None:
    """Create missing moments of AdamW as zeros, so that a checkpoint can be loaded into them."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter, requires_grad=False)
                state["exp_avg_sq"] = torch.zeros_like(parameter, requires_grad=False)


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[torch.nn.Parameter], max_norm: float, group: dist.ProcessGroup
) -> float:
    """Scale gradients to a norm of at most `max_norm` over all ranks' shards and return the norm
    before; skip non-finite norms.
    """
    grads = [local(p.grad) for p in parameters if p.grad is not None]
    # A rank may have no part of a small parameter.
    grads = [g for g in grads if g.numel()]
    device = grads[0].device if grads else torch.device("cpu")
    squares = (
        torch.stack([n.double().square() for n in torch._foreach_norm(grads)]).sum()
        if grads
        else torch.zeros((), dtype=torch.double)
    )
    squares = squares.to(device)
    if dist.get_world_size(group) > 1:
        dist.all_reduce(squares, group=group)
    norm = float(squares.sqrt())
    if math.isfinite(norm) and norm > max_norm:
        # As torch's clip_grad_norm_ does.
        torch._foreach_mul_(grads, max_norm / (norm + 1e-6))
    return norm
