"""A process that receives broadcast weights."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from verl.protocol.generate import EngineGoneError, RolloutError
from verl.utils.flat_tensors import unpack
from verl.workers.weight_transfer.broadcast.group import BroadcastGroup, connect, gpu, wait_until
from verl.workers.weight_transfer.broadcast.link import NOTICE_S, PAUSE_S, Link, ready


class Receiver:
    """A process that receives from one sender."""

    def __init__(self, sender: Sequence[Any], timeout_s: float) -> None:
        self.sender = sender
        self._id = uuid.uuid4().hex
        self._timeout_s = timeout_s
        try:
            self.link = Link(socket.create_connection(tuple(sender), timeout=timeout_s))
        except OSError as error:
            raise EngineGoneError(
                f"the sender of the weights at {_address_text(sender)} does not answer: {error}"
            ) from error
        self._group: BroadcastGroup | None = None
        self._heard: dict[str, Any] = {}
        self._update = self._next = 0

    def receive(self, handle: Mapping[str, Any], timeout_s: float) -> dict[str, torch.Tensor]:
        """See `Collective.receive`."""
        update = handle["update"]
        bucket = handle["bucket"]
        self._timeout_s = timeout_s
        if bucket != (self._next if update == self._update else 0):
            raise RolloutError(
                f"bucket {bucket} of weight update {update}: expected the next one after "
                f"{self._next} of {self._update}"
            )
        try:
            if update != self._update:
                self._update = update
                self._next = 0
                self._heard = {}
                self._group = self._join(handle["on_gpu"], handle["receivers"])
            if self._group is None:
                raise RuntimeError("a bucket before it failed")
            flat = torch.empty(handle["n_bytes"], dtype=torch.uint8, device=self._group.device)
            self._group.broadcast(flat, self._wait)
            self._next += 1
            self.link.send(received=self._next)
            self._wait(
                lambda: self._heard.get("arrived", 0) >= self._next, "the other receivers to have the bucket"
            )
        except RuntimeError as error:
            why = self._cause(str(error))
            self._group = None
            raise EngineGoneError(
                f"bucket {bucket} of weight update {update} did not come from {_address_text(self.sender)}: {why}"
            ) from error
        return unpack(flat, handle["layout"])

    def _join(self, on_gpu: bool, receivers: int) -> BroadcastGroup:
        group = self._group
        name = f"{socket.gethostname()}:{os.getpid()}"
        generation = group.generation if group else 0
        self.link.send(
            update=self._update,
            id=self._id,
            name=name,
            held=generation,
            gpu=gpu(on_gpu),
            received=0,
            failed="",
        )
        self._wait(lambda: "group" in self._heard, f"all {receivers} receivers")
        group_spec = self._heard["group"]
        if group is not None and generation == group_spec["generation"]:
            return group
        return connect(
            group_spec, group_spec["ids"].index(self._id) + 1, self.link.address, self._timeout_s, self._wait
        )

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait; raises `RuntimeError` when the sender is lost or gives the update up, and after the
        time limit.
        """

        def watch() -> None:
            self._poll()
            if why := self._heard.get("error", "the sender is gone" if self.link.is_lost else ""):
                raise RuntimeError(why)

        wait_until(condition, self._timeout_s, what, watch)

    def _poll(self) -> None:
        for link in ready([self.link], PAUSE_S):
            for message in link.read():
                # Others are of an earlier update and come late.
                if message.get("update") == self._update:
                    self._heard |= message

    def _cause(self, error: str) -> str:
        """Report an error to the sender, unless it is known there, and return the sender's, which
        names the process that died.
        """
        if "error" not in self._heard:
            self.link.send(failed=error)
        end = time.monotonic() + 2 * NOTICE_S
        while not ("error" in self._heard or self.link.is_lost) and time.monotonic() < end:
            self._poll()
        return str(self._heard.get("error", error))


def _address_text(address: Sequence[Any]) -> str:
    return "{}:{}".format(*address)
