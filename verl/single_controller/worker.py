"""The base class of workers."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
from collections.abc import Sequence

# Where a port without a range is looked for: the kernel gives none of these by itself, and workers of
# Ray (10002 to 19999) and services of Kubernetes (from 30000) have others.
_PORTS = range(20_000, 30_000)
_draw = random.SystemRandom()


def find_free_port(host: str = "", port_range: Sequence[int] | None = None) -> int:
    """Return a TCP port that is currently free on this machine; with a range `[begin, end)`, its
    first free one.

    Until the port is used, another process could be given it as the next free one; without a range
    it is therefore one that no process gets without asking for it, if there is one.

    Raises RuntimeError when the range has none.
    """
    ports = (*_draw.sample(_PORTS, 100), 0) if port_range is None else range(*port_range)
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            try:
                listener.bind((host, port))
            except OSError:
                if port_range is None and not port:
                    raise
                continue
            return int(listener.getsockname()[1])
    raise RuntimeError(f"no free port in the range {port_range}; give a wider one")


class Worker:
    """One rank of a worker group.

    The controller sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT
    before a worker starts, so `torch.distributed.init_process_group` works without arguments.
    LOCAL_RANK is the index of this worker's device among those visible to it: with Ray and GPUs
    every process sees one device, and LOCAL_RANK is 0. Outside a controller a worker is rank 0 of
    1.
    """

    def __init__(self) -> None:
        self._rank = int(os.environ.get("RANK", "0"))
        self._world_size = int(os.environ.get("WORLD_SIZE", "1"))
        if os.environ.get("WG_BACKEND") == "ray":
            _end_on_sigterm()

    @property
    def rank(self) -> int:
        """Position in the worker group, from 0."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of workers in the group."""
        return self._world_size

    def get_cuda_visible_devices(self) -> str:
        """Return CUDA_VISIBLE_DEVICES of this process, or "not set"."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", "not set")

    def close(self) -> None:
        """End processes that the worker has started. Called by the local worker group; a Ray
        actor's process is killed instead.
        """


def _end_on_sigterm() -> None:
    """Let SIGTERM end this process at once, as `ray.kill` does.

    Ray sends several when a run ends, and its handler raises SystemExit, which prints a traceback
    to the driver where a later one meets an exit in progress. The system's `signal` also works
    outside the main thread, in which an actor with coroutines is not created.
    """
    ctypes.CDLL(None).signal(int(signal.SIGTERM), None)  # SIG_DFL
