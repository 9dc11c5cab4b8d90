"""Peak memory of this process."""

from __future__ import annotations

import resource

import torch


def peak_memory(device: str) -> dict[str, float]:
    """Return the peak memory so far in GiB: `perf/cpu_memory_used_gb`, and on a GPU `perf/max_memory_allocated_gb`."""
    found = {"perf/cpu_memory_used_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
    if device == "cuda":
        found["perf/max_memory_allocated_gb"] = torch.cuda.max_memory_allocated() / 2**30
    return found
