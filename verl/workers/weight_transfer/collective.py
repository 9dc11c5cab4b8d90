"""Weights by broadcast of `torch.distributed`: NCCL where every process has a GPU of its own,
otherwise gloo. Works across nodes.

The sender is rank 0 of a process group apart from torch's default group; receivers are the other
ranks. Every receiver keeps a connection to the sender (`Link`), over which it joins each update and
confirms each bucket, so one that was restarted takes part in the next update. A bucket has arrived
when all receivers have it: if one is lost, the others fail in the same bucket, and the whole update
is to be repeated. A new group is formed when the receivers are not those of the group before, or
that group failed, and only then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from verl.workers.weight_transfer.base import WeightTransfer
from verl.workers.weight_transfer.broadcast.receiver import Receiver
from verl.workers.weight_transfer.broadcast.sender import Sender

TIMEOUT_S = 300.0


class Collective(WeightTransfer):
    """Its handles name the sender's address, the update and the bucket, and have the names, dtypes
    and shapes of the tensors.

    Args:
        timeout_s: limit of every wait, in seconds.
    """

    direct = on_device = True

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None

    def send(self, tensors: Mapping[str, torch.Tensor], receivers: int) -> dict[str, Any]:
        """Queue the bucket for the thread that broadcasts; the first one after all before were
        released begins an update.
        """
        self._sender = self._sender or Sender(self.timeout_s)
        return self._sender.send(tensors, receivers)

    def receive(self, handle: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Take part in the broadcast and return the tensors: on the GPU with NCCL, otherwise in CPU
        memory.

        Raises:
            EngineGoneError: a process died or did not come in time; the engine has to be restarted.
            RolloutError: the buckets are not received in the order of sending.
        """
        if self._receiver is None or self._receiver.sender != handle["sender"] or self._receiver.link.is_lost:
            self._receiver = Receiver(handle["sender"], self.timeout_s)
        return self._receiver.receive(handle, self.timeout_s)

    def release(self, handle: dict[str, Any]) -> None:
        """Free the bucket; releasing one that has not arrived ends the update."""
        if self._sender is not None:
            self._sender.release(handle)
