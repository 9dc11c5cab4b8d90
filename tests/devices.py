"""Devices of tests: the CPU, and CUDA GPUs where there are enough; and keys of runs there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

GPU = {"trainer.device": "cuda", "trainer.num_threads": 0, "actor_rollout_ref.rollout.num_threads": 0}
FP32 = {"actor_rollout_ref.actor.fsdp_config.dtype": "fp32", "actor_rollout_ref.rollout.dtype": "fp32"}


def needs_gpus(count: int) -> pytest.MarkDecorator:
    """Skips a test where there are fewer CUDA GPUs."""
    return pytest.mark.skipif(
        torch.cuda.device_count() < count, reason=f"needs {count} CUDA GPU{'s' * (count > 1)}"
    )


def on(gpus: int) -> list[Any]:
    """Values of a parameter `device`: cpu, and cuda where there are so many GPUs."""
    return ["cpu", pytest.param("cuda", marks=needs_gpus(gpus))]
