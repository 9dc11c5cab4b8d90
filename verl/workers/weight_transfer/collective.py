"""Weights by broadcast of `torch.distributed`: NCCL where every process has a GPU of its own, otherwise gloo. Works across nodes.

The sender is rank 0 of a process group apart from torch's default group; receivers are the other ranks. Before an update, every receiver
announces itself in the sender's store, so one that was restarted takes part in the next update. A new group is formed when the receivers
are not those of the group before, and only then.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from verl.protocol.generate import EngineGoneError, RolloutError
from verl.workers.engine.gloo_shutdown import wait_at_exit
from verl.workers.weight_transfer.base import WeightTransfer

logger = logging.getLogger(__name__)

TIMEOUT_S = 300.0
_ALIGNMENT = 16
_PAUSE_S = 0.001
_ERROR_CHECK_S = 0.1


class Collective(WeightTransfer):
    """Its handles name the sender's store, the update and the bucket, and have the names, dtypes and shapes of the tensors.

    Args:
        timeout_s: limit of every wait, in seconds.
    """

    direct = on_device = True

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._sender: _Sender | None = None
        self._receiver: _Receiver | None = None

    def send(self, tensors: Mapping[str, torch.Tensor], receivers: int) -> dict[str, Any]:
        """Queue the bucket for the thread that broadcasts; the first one after all before were released begins an update."""
        self._sender = self._sender or _Sender(self.timeout_s)
        return self._sender.send(tensors, receivers)

    def receive(self, handle: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Take part in the broadcast and return the tensors: on the GPU with NCCL, otherwise in CPU memory.

        Raises:
            EngineGoneError: a process died or did not come in time; the engine has to be restarted.
            RolloutError: the buckets are not received in the order of sending.
        """
        if self._receiver is None or self._receiver.store_address != handle["store"]:
            self._receiver = _Receiver(handle["store"], self.timeout_s)
        return self._receiver.receive(handle)

    def release(self, handle: dict[str, Any]) -> None:
        """Free the bucket; releasing one that was not broadcast ends the update."""
        if self._sender is not None:
            self._sender.release(handle)


class _Group:
    """A process group that only broadcasts from rank 0.

    Args:
        store: of the sender.
        made: `generation` (1, 2, ...), `ids` of the receivers in the order of their ranks, and `backend`.
        rank: of this process.
        address: of this process, where gloo listens.
    """

    def __init__(self, store: dist.Store, made: Mapping[str, Any], rank: int, address: str, timeout_s: float) -> None:
        self.generation, self.ids, self.backend = made["generation"], made["ids"], made["backend"]
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.backend == "nccl" else torch.device("cpu")
        own = dist.PrefixStore(f"group/{self.generation}", store)
        if self.backend == "nccl":
            nccl = dist.ProcessGroupNCCL.Options()
            nccl._timeout = timedelta(seconds=2 * timeout_s)  # NCCL ends the process at its own limit
            self._group: Any = dist.ProcessGroupNCCL(own, rank, 1 + len(self.ids), nccl)
        else:
            wait_at_exit()
            options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._timeout = timedelta(seconds=timeout_s)
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
            self._group = dist.ProcessGroupGloo(own, rank, 1 + len(self.ids), options)
        self._timeout_s = timeout_s

    def broadcast(self, flat: torch.Tensor, failure: Callable[[], str]) -> None:
        """Broadcast bytes from rank 0 and wait. Raises `RuntimeError` when it fails, or as `_wait_until` does."""
        if not flat.numel():
            return
        options = dist.BroadcastOptions()
        options.rootRank = 0
        work = self._group.broadcast([flat], options)
        try:
            _wait_until(work.is_completed, self._timeout_s, "the other processes of the broadcast", failure)
        except RuntimeError:
            # The group's destructor would block on the broadcast, with the GIL.
            threading.Thread(target=_hold, args=(self._group, work), daemon=True).start()
            raise
        work.wait()
        if self.backend == "nccl":
            torch.cuda.current_stream().synchronize()


def _hold(group: Any, work: Any) -> None:
    """Keep a group until its broadcast has ended: gloo cannot be interrupted."""
    while not work.is_completed():
        time.sleep(_ERROR_CHECK_S)


def _wait_until(done: Callable[[], bool], timeout_s: float, what: str, failure: Callable[[], str]) -> None:
    """Wait; raises `RuntimeError` with `failure()` once that is not empty, and after the time limit."""
    start = checked = time.monotonic()
    while not done():
        now = time.monotonic()
        if now - checked > _ERROR_CHECK_S:
            checked = now
            if reason := failure():
                raise RuntimeError(reason)
        if now - start > timeout_s:
            raise RuntimeError(f"waited {timeout_s:g} s for {what}")
        time.sleep(_PAUSE_S)


@dataclass
class _Update:
    """An update of the sender: buckets that wait for the broadcast, and those that were sent and not released."""

    number: int
    receivers: int
    on_gpu: bool
    waiting: queue.SimpleQueue[torch.Tensor | None] = field(default_factory=queue.SimpleQueue)
    sent: int = 0
    broadcast: int = 0
    open: set[int] = field(default_factory=set)
    ended: bool = False


class _Sender:
    """Rank 0; one thread for each update broadcasts its buckets."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._address = os.environ.get("MASTER_ADDR", "127.0.0.1")
        with socket.create_server((self._address, 0)) as server:
            port, limit = server.getsockname()[1], timedelta(seconds=timeout_s)
            self._store = dist.TCPStore(
                self._address, port, is_master=True, timeout=limit, wait_for_workers=False, master_listen_fd=server.detach()
            )
        self._key = [self._address, port]
        self._update: _Update | None = None
        self._group: _Group | None = None
        self._names: dict[str, str] = {}
        self._updates = self._generation = 0

    def send(self, tensors: Mapping[str, torch.Tensor], receivers: int) -> dict[str, Any]:
        flat, layout = pack(tensors)
        update = self._update
        if update is None:
            self._updates += 1
            update = self._update = _Update(self._updates, receivers, flat.is_cuda)
            threading.Thread(target=self._broadcast_all, args=(update,), name="weight broadcast", daemon=True).start()
        if receivers != update.receivers:
            raise ValueError(f"a bucket for {receivers} receivers in a weight update for {update.receivers}")
        bucket, update.sent = update.sent, update.sent + 1
        update.open.add(bucket)
        update.waiting.put(flat)
        place = {"store": self._key, "update": update.number, "bucket": bucket, "receivers": receivers, "on_gpu": update.on_gpu}
        return place | {"layout": layout, "n_bytes": flat.numel()}

    def release(self, handle: Mapping[str, Any]) -> None:
        update = self._update
        if update is None or handle["update"] != update.number:
            return
        update.open.discard(handle["bucket"])
        if not update.open:
            update.ended = update.broadcast < update.sent
            update.waiting.put(None)
            self._update = None

    def _broadcast_all(self, update: _Update) -> None:
        def failure() -> str:
            return f"weight update {update.number} was given up" if update.ended else ""

        try:
            group = self._group_for(update, failure)
            while (flat := update.waiting.get()) is not None:
                group.broadcast(flat.to(group.device), failure)
                update.broadcast += 1
        except RuntimeError as error:
            self._group = None
            behind = self._behind(update)
            why = f"{error}; receivers that are behind: {', '.join(behind)}" if behind else str(error)
            self._store.set(f"{update.number}/error", f"the sender gave up: {why}")
            if not update.ended:
                logger.warning("weight update %d by broadcast failed: %s", update.number, why)

    def _group_for(self, update: _Update, failure: Callable[[], str]) -> _Group:
        """Wait for all receivers and return their group, a new one unless it is the same as before."""
        keys = [f"{update.number}/member/{index}" for index in range(update.receivers)]
        self._names = {}
        what = f"{update.receivers} receivers of weights"
        _wait_until(lambda: self._store.check(keys), self._timeout_s, what, failure)
        members = [json.loads(self._store.get(key)) for key in keys]
        self._names = {str(index): member["name"] for index, member in enumerate(members)}
        ids, gpus = sorted(member["id"] for member in members), [_gpu(update.on_gpu), *(member["gpu"] for member in members)]
        backend = "nccl" if all(gpus) and len(set(gpus)) == len(gpus) else "gloo"
        old, self._group = self._group, None
        same = old is not None and old.ids == ids and old.backend == backend
        if not (same and old is not None and all(member["held"] == old.generation for member in members)):
            self._generation += 1
            old = None
        made = {"generation": self._generation, "ids": ids, "backend": backend}
        self._store.set(f"{update.number}/group", json.dumps(made))
        self._group = old or _Group(self._store, made, 0, self._address, self._timeout_s)
        self._forget(update.number - 1)
        return self._group

    def _behind(self, update: _Update) -> list[str]:
        """Return the names of the receivers that have received fewer buckets than others, or than were broadcast."""
        if not self._names:
            found = sum(self._store.check([f"{update.number}/member/{index}"]) for index in range(update.receivers))
            return [f"{update.receivers - found} of {update.receivers}, which never came"] if found < update.receivers else []
        got = {}
        for index, name in self._names.items():
            key = f"{update.number}/got/{index}"
            got[name] = int(self._store.get(key)) if self._store.check([key]) else 0
        return [name for name, count in got.items() if count <= update.broadcast]

    def _forget(self, number: int) -> None:
        for index in range(len(self._names) if number > 0 else 0):
            self._store.delete_key(f"{number}/member/{index}")
            self._store.delete_key(f"{number}/got/{index}")
        if number > 0:
            self._store.delete_key(f"{number}/joined")
            self._store.delete_key(f"{number}/group")


class _Receiver:
    """A process that receives from one sender."""

    def __init__(self, store_address: Sequence[Any], timeout_s: float) -> None:
        self.store_address, self._timeout_s, self._id = store_address, timeout_s, uuid.uuid4().hex
        self._sender = "{}:{}".format(*store_address)
        host, port = store_address
        try:
            with socket.create_connection((host, port), timeout=timeout_s) as probe:
                self._address = probe.getsockname()[0]
            self._store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_s))
        except (OSError, RuntimeError) as error:
            raise EngineGoneError(f"the sender of the weights at {self._sender} does not answer: {error}") from error
        self._group: _Group | None = None
        self._update = self._next = self._index = 0

    def receive(self, handle: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        update, bucket = handle["update"], handle["bucket"]
        if bucket != (self._next if update == self._update else 0):
            raise RolloutError(f"bucket {bucket} of weight update {update}: expected the next one after {self._next} of {self._update}")
        try:
            if update != self._update:
                self._update, self._next = update, 0
                self._group = self._join(handle["receivers"], handle["on_gpu"])
            if self._group is None:
                raise RuntimeError("a bucket before it failed")
            flat = torch.empty(handle["n_bytes"], dtype=torch.uint8, device=self._group.device)
            self._group.broadcast(flat, self._failure)
            self._next += 1
            self._store.set(f"{update}/got/{self._index}", str(self._next))
        except RuntimeError as error:
            self._group = None
            raise EngineGoneError(f"bucket {bucket} of weight update {update} did not come from {self._sender}: {error}") from error
        return unpack(flat, handle["layout"])

    def _join(self, receivers: int, on_gpu: bool) -> _Group:
        number, group = self._update, self._group
        self._index = self._store.add(f"{number}/joined", 1) - 1
        if self._index >= receivers:
            raise RuntimeError(f"{self._index + 1} processes receive, expected {receivers}")
        name = f"{socket.gethostname()}:{os.getpid()}"
        member = {"id": self._id, "name": name, "held": group.generation if group else 0, "gpu": _gpu(on_gpu)}
        self._store.set(f"{number}/member/{self._index}", json.dumps(member))
        what = f"all {receivers} receivers"
        _wait_until(lambda: self._store.check([f"{number}/group"]), self._timeout_s, what, self._failure)
        made = json.loads(self._store.get(f"{number}/group"))
        if group is not None and group.generation == made["generation"]:
            return group
        return _Group(self._store, made, made["ids"].index(self._id) + 1, self._address, self._timeout_s)

    def _failure(self) -> str:
        """Return why the sender gave up the update, or an empty string."""
        key = f"{self._update}/error"
        return self._store.get(key).decode() if self._store.check([key]) else ""


def _gpu(on_gpu: bool) -> str:
    """Return the identity of this process's GPU, an empty string without one."""
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid) if on_gpu and torch.cuda.is_available() else ""


def pack(tensors: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, list[list[Any]]]:
    """Return the bytes of tensors in one tensor on their device, and name, dtype, shape and first byte of each."""
    layout: list[list[Any]] = []
    size = 0
    for name, tensor in tensors.items():
        layout.append([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), size])
        size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
    flat = torch.zeros(size, dtype=torch.uint8, device=device)
    for name, view in unpack(flat, layout).items():
        view.copy_(tensors[name].detach())
    return flat, layout


def unpack(flat: torch.Tensor, layout: Sequence[Sequence[Any]]) -> dict[str, torch.Tensor]:
    """Return the tensors of a layout as views of the bytes that `pack` made."""
    tensors = {}
    for name, dtype_name, shape, start in layout:
        dtype, count = getattr(torch, dtype_name), torch.Size(shape).numel()
        tensors[name] = flat[start : start + count * dtype.itemsize].view(dtype).view(shape)
    return tensors
