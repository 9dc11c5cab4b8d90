"""Devices of tests: the CPU, and CUDA GPUs where there are enough."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def needs_gpus(count: int) -> pytest.MarkDecorator:
    """Skips a test where there are fewer CUDA GPUs."""
    return pytest.mark.skipif(torch.cuda.device_count() < count, reason=f"needs {count} CUDA GPU{'s' * (count > 1)}")


def on(gpus: int) -> list[Any]:
    """Values of a parameter `device`: cpu, and cuda where there are so many GPUs."""
    return ["cpu", pytest.param("cuda", marks=needs_gpus(gpus))]
