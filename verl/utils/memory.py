"""Memory of this process: its peak, and what it gives back."""

from __future__ import annotations

import ctypes
import resource

import torch


def peak_memory(device: str) -> dict[str, float]:
    """Return the peak memory so far in GiB: `perf/cpu_memory_used_gb`, and on a GPU
    `perf/max_memory_allocated_gb`.
    """
    peaks = {"perf/cpu_memory_used_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
    if device == "cuda":
        peaks["perf/max_memory_allocated_gb"] = torch.cuda.max_memory_allocated() / 2**30
    return peaks


# Option of glibc's mallopt, and the size from which a block is mapped alone, so that it is given
# back when it is freed.
_M_MMAP_THRESHOLD = -3
_MAPPED_BYTES = 2**20


def give_back_freed_blocks() -> None:
    """Let freed blocks of 1 MiB or more go back to the system at once, where the C library is
    glibc.

    By default it keeps blocks of up to 32 MiB in a heap, which the tensors of a training pass, of
    many sizes, cut into pieces: the process then holds up to twice what lives at a time. New pages
    cost time, so it pays for large models alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
