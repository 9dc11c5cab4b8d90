"""Parameters that are trained together, a whole model or one adapter: optimizer, schedule and
number of steps.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import torch
import torch.distributed as dist

from verl.trainer.config import OptimConfig
from verl.workers.engine.optimizer import Schedule, build_optimizer, clip_gradients, init_state

logger = logging.getLogger(__name__)


class Trainable:
    """The parameters of one optimizer.

    Attributes:
        parameters: sharded, by name; nothing else changes in a step.
        optimizer: AdamW over them.
        schedule: their learning rate.
        steps: number of optimizer steps so far.

    Args:
        parameters: see above.
        optim: config of the optimizer and the schedule.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], optim: OptimConfig) -> None:
        self.parameters = dict(parameters)
        self.schedule = Schedule(optim)
        self.optimizer = build_optimizer(self.parameters.values(), optim)
        self.steps = 0
        init_state(self.optimizer)

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        return self.schedule.lr(self.steps)

    def step(self, grad_clip: float, group: dist.ProcessGroup) -> tuple[float, bool]:
        """Clip, update and advance the schedule; a non-finite gradient changes no parameter.

        Returns:
            the gradient norm before clipping and whether the parameters were updated.
        """
        norm = clip_gradients(self.parameters.values(), grad_clip, group)
        finite = math.isfinite(norm)
        if finite:
            for param_group in self.optimizer.param_groups:
                param_group["lr"] = self.lr
            self.optimizer.step()
        else:
            logger.warning("gradient norm is %s at optimizer step %d: the step is skipped", norm, self.steps)
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return norm, finite

    def set_total_steps(self, total_steps: int) -> None:
        """Set the total number of optimizer steps of the schedule. Raises ValueError when it is not
        positive.
        """
        if total_steps < 1:
            raise ValueError(f"total training steps {total_steps}: expected at least 1")
        self.schedule = Schedule(self.schedule.config, total_steps)
