"""The process that broadcasts weights."""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import distributed as dist

from verl.utils.flat_tensors import device_of, layout_of, pack
from verl.workers.weight_transfer.broadcast.group import (
    BroadcastGroup,
    Wait,
    WaitTimeoutError,
    connect,
    gpu,
    wait_until,
)
from verl.workers.weight_transfer.broadcast.link import JOINING, NOTICE_S, PAUSE_S, Link, ready

logger = logging.getLogger(__name__)


@dataclass
class _Update:
    """An update of the sender.

    Attributes:
        waiting: buckets to be broadcast; None after the last.
        open: buckets that were sent and not released.
        next_bucket: number of the next bucket, which is how many were sent.
        arrived: number of buckets that all receivers have.
        members: the receivers that have joined.
        error: why the update was given up.
    """

    number: int
    receivers: int
    on_gpu: bool
    waiting: queue.SimpleQueue[torch.Tensor | None] = field(default_factory=queue.SimpleQueue)
    open: set[int] = field(default_factory=set)
    next_bucket: int = 0
    arrived: int = 0
    members: list[Link] = field(default_factory=list)
    error: str = ""
    released: bool = False

    def behind(self) -> list[str]:
        """Return the names of receivers that have not confirmed the bucket that is being broadcast."""
        return [link.message["name"] for link in self.members if link.message["received"] <= self.arrived]

    def lost_names(self) -> list[str]:
        """Return the names of receivers whose connection has ended."""
        return [link.message["name"] for link in self.members if link.is_lost]

    def failed(self) -> str:
        """Return why the update cannot succeed, or an empty string."""
        if names := self.lost_names():
            return f"lost {', '.join(names)}"
        return "; ".join(
            f"{link.message['name']} gave up: {link.message['failed']}"
            for link in self.members
            if link.message["failed"]
        )


class Sender:
    """Rank 0; one thread for each update broadcasts its buckets."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._address = os.environ.get("MASTER_ADDR", "127.0.0.1")
        self._server = socket.create_server((self._address, 0))
        # Bound to one address: torch's own server listens on every interface.
        with socket.create_server((self._address, 0)) as server:
            port = server.getsockname()[1]
            limit = timedelta(seconds=timeout_s)
            self._store = dist.TCPStore(
                self._address,
                port,
                is_master=True,
                timeout=limit,
                wait_for_workers=False,
                master_listen_fd=server.detach(),
            )
        self._store_address = [self._address, port]
        self._links: list[Link] = []
        self._update: _Update | None = None
        self._thread: threading.Thread | None = None
        self._group: BroadcastGroup | None = None
        self._updates = self._generation = 0

    def send(self, tensors: Mapping[str, torch.Tensor], receivers: int) -> dict[str, Any]:
        """See `Collective.send`."""
        layout, size = layout_of(tensors)
        flat = torch.zeros(size, dtype=torch.uint8, device=device_of(tensors))
        pack(tensors, flat, layout)
        update = self._update
        if update is None:
            self._updates += 1
            update = self._update = _Update(self._updates, receivers, flat.is_cuda)
            name = f"weight update {update.number}"
            self._thread = threading.Thread(
                target=self._run, args=(update, self._thread), name=name, daemon=True
            )
            self._thread.start()
        if receivers != update.receivers:
            raise ValueError(f"a bucket for {receivers} receivers in a weight update for {update.receivers}")
        bucket = update.next_bucket
        update.next_bucket += 1
        update.open.add(bucket)
        update.waiting.put(flat)
        place = {
            "sender": [self._address, self._server.getsockname()[1]],
            "update": update.number,
            "bucket": bucket,
        }
        return place | {"receivers": receivers, "on_gpu": update.on_gpu, "layout": layout, "n_bytes": size}

    def release(self, handle: Mapping[str, Any]) -> None:
        """See `Collective.release`."""
        update = self._update
        # A handle of an update that has ended.
        if update is None or handle["update"] != update.number:
            return
        update.open.discard(handle["bucket"])
        if not update.open:
            update.released = True
            self._update = None
            update.waiting.put(None)

    def _run(self, update: _Update, before: threading.Thread | None) -> None:
        # Updates share the connections and the group, so one runs at a time.
        if before is not None:
            before.join()
        wait = partial(self._wait, update)
        try:
            group = self._group_for(update, wait)
            while (flat := update.waiting.get()) is not None:
                group.broadcast(flat.to(group.device), wait)
                wait(lambda: not update.behind(), "receivers to confirm a bucket")
                update.arrived += 1
                self._tell(update, arrived=update.arrived)
        except (RuntimeError, OSError) as error:
            self._give_up(update, error)

    def _tell(self, update: _Update, **message: Any) -> None:
        for link in update.members:
            link.send(update=update.number, **message)

    def _wait(self, update: _Update, condition: Callable[[], bool], what: str) -> None:
        """Wait; raises `RuntimeError` when a receiver is lost or gives up, when the update is
        released, and after the time limit.
        """

        def watch() -> None:
            self._poll(update)
            if failed := "the update was released before all had it" if update.released else update.failed():
                raise RuntimeError(failed)

        wait_until(condition, self._timeout_s, what, watch)

    def _poll(self, update: _Update) -> None:
        """Accept connections and read messages; pauses shortly if there are none."""
        for source in ready([self._server, *self._links], PAUSE_S):
            if source is self._server:
                self._links.append(Link(self._server.accept()[0]))
                continue
            for message in source.read():
                if "update" in message:
                    self._admit(update, source, message)
        self._links = [link for link in self._links if not link.is_lost]

    def _admit(self, update: _Update, link: Link, message: Mapping[str, Any]) -> None:
        """Let a receiver join, or tell it why it cannot."""
        why = update.error
        if message["update"] != update.number:
            why = "the update has ended"
        elif len(update.members) == update.receivers:
            why = why or f"{update.receivers} other receivers have joined"
        if message.keys() != JOINING:
            link.is_lost = True
        elif why:
            link.send(update=message["update"], error=why)
        else:
            update.members.append(link)

    def _give_up(self, update: _Update, error: Exception) -> None:
        """Tell all receivers why, those that come later too, until the update is released."""
        self._group = None
        # A receiver that has died is often seen as lost only after the broadcast has failed.
        end = time.monotonic() + (0 if isinstance(error, WaitTimeoutError) else NOTICE_S)
        while not (update.released or update.lost_names()) and time.monotonic() < end:
            self._poll(update)
        if names := update.lost_names():
            update.error = f"the sender gave up: lost {', '.join(names)}"
        elif len(update.members) < update.receivers:
            missing = update.receivers - len(update.members)
            update.error = f"the sender gave up: {error}; {missing} of {update.receivers} never came"
        else:
            update.error = f"the sender gave up: {error}; behind: {', '.join(update.behind()) or 'none'}"
        if not update.released:
            logger.warning("weight update %d by broadcast failed: %s", update.number, update.error)
        self._tell(update, error=update.error)
        while not update.released:
            self._poll(update)

    def _group_for(self, update: _Update, wait: Wait) -> BroadcastGroup:
        """Wait for all receivers and return their group, a new one unless it is the same as before."""
        wait(lambda: len(update.members) == update.receivers, f"{update.receivers} receivers of weights")
        statuses = [link.message for link in update.members]
        ids = sorted(one["id"] for one in statuses)
        gpus = [gpu(update.on_gpu), *(one["gpu"] for one in statuses)]
        # NCCL takes no two ranks on one GPU.
        backend = "nccl" if all(gpus) and len(set(gpus)) == len(gpus) else "gloo"
        old = self._group
        self._group = None
        if (
            old is None
            or (old.ids, old.backend) != (ids, backend)
            # A receiver that was started again does not have the group.
            or any(one["held"] != old.generation for one in statuses)
        ):
            self._generation += 1
            old = None
        group_spec = {
            "generation": self._generation,
            "ids": ids,
            "backend": backend,
            "store": self._store_address,
        }
        self._tell(update, group=group_spec)
        self._group = old or connect(group_spec, 0, self._address, self._timeout_s, wait)
        return self._group
