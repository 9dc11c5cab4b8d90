"""A process group of a sender and the receivers of its weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeAlias

import torch
from torch import distributed as dist

from verl.workers.engine.gloo_shutdown import wait_at_exit

# Waits until the first argument returns True, with a description of what is waited for.
Wait: TypeAlias = Callable[[Callable[[], bool], str], None]


class BroadcastGroup:
    """A process group that only broadcasts from rank 0; connects when it is made, which blocks.

    Args:
        made: `generation` (1, 2, ...), `ids` of the receivers in the order of their ranks,
            `backend`, and `store`, where a `TCPStore` is.
        rank: of this process.
        address: of this process, where gloo listens.
    """

    def __init__(self, group_spec: Mapping[str, Any], rank: int, address: str, timeout_s: float) -> None:
        self.generation = group_spec["generation"]
        self.ids = group_spec["ids"]
        self.backend = group_spec["backend"]
        limit = timedelta(seconds=timeout_s)
        host, port = group_spec["store"]
        # of its own: a wait of one group would block the others
        store = dist.TCPStore(host, port, is_master=False, timeout=limit)
        group_store = dist.PrefixStore(f"group/{self.generation}", store)
        if self.backend == "nccl":
            self.device = torch.device("cuda", torch.cuda.current_device())
            nccl = dist.ProcessGroupNCCL.Options()
            # NCCL ends the process at its own limit
            nccl._timeout = 2 * limit
            self._group: Any = dist.ProcessGroupNCCL(group_store, rank, 1 + len(self.ids), nccl)
        else:
            self.device = torch.device("cpu")
            wait_at_exit()
            options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._timeout = limit
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
            self._group = dist.ProcessGroupGloo(group_store, rank, 1 + len(self.ids), options)
        self._start(
            torch.zeros(1, dtype=torch.uint8, device=self.device)
        ).wait()  # NCCL connects with its first collective

    def _start(self, flat: torch.Tensor) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        return self._group.broadcast([flat], options)

    def broadcast(self, flat: torch.Tensor, wait: Wait) -> None:
        """Broadcast bytes from rank 0; raises `RuntimeError` when that fails, or what `wait`
        raises.
        """
        if not flat.numel():
            return
        work = self._start(flat)
        try:
            wait(work.is_completed, "the other processes of the broadcast")
        except RuntimeError:
            if self.backend == "nccl":
                self._group.abort()
            # Gloo cannot be interrupted, and the group's destructor would block on the broadcast,
            # with the GIL.
            threading.Thread(target=_hold, args=(self._group, work), daemon=True).start()
            raise
        work.wait()
        # With NCCL `wait` only orders streams, and the caller reads the bytes at once.
        if self.backend == "nccl":
            torch.cuda.current_stream().synchronize()


def _hold(group: Any, work: Any) -> None:
    """Keep a group until its broadcast has ended."""
    while not work.is_completed():
        time.sleep(0.1)


def connect(
    group_spec: Mapping[str, Any], rank: int, address: str, timeout_s: float, wait: Wait
) -> BroadcastGroup:
    """Make a group on a thread, which is left alone when `wait` raises: a group that connects
    cannot be interrupted.
    """
    future: Future[BroadcastGroup] = Future()
    # The current device is one of a thread.
    device = torch.cuda.current_device() if group_spec["backend"] == "nccl" else None

    def make() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            future.set_result(BroadcastGroup(group_spec, rank, address, timeout_s))
        except Exception as error:  # raised by the caller
            future.set_exception(error)

    threading.Thread(target=make, name="weight group", daemon=True).start()
    wait(future.done, "the other processes to connect")
    return future.result()


class WaitTimeoutError(RuntimeError):
    """A wait has reached its time limit."""


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str, watch: Callable[[], None]) -> None:
    """Wait, calling `watch`, which pauses. Raises what that raises, and `WaitTimeoutError` after
    the time limit.
    """
    end = time.monotonic() + timeout_s
    while not condition():
        watch()
        if time.monotonic() > end:
            raise WaitTimeoutError(f"waited {timeout_s:g} s for {what}")


def gpu(on_gpu: bool) -> str:
    """Return the UUID of this process's GPU, an empty string without one."""
    return (
        str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        if on_gpu and torch.cuda.is_available()
        else ""
    )
