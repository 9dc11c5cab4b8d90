"""The protocol of weight transfer from a policy's worker to an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar

import torch


class WeightTransfer(ABC):
    """Sends tensors from one process to the processes that load them into a model.

    The sender and every receiver each make an object. The handle that `send` returns is passed with
    the request to load the bucket (as an argument of a worker's method, so a Ray object reference
    arrives as its value), and every receiver calls `receive` for every bucket, in the order of
    sending.

    Attributes:
        direct: True if the processes of an engine (`vllm`) receive the weights of a model
            themselves; otherwise the rollout worker receives them and passes them on in shared
            memory. The tensors of an adapter are always received by the rollout worker.
        every_rank: True if all ranks of the policy send, each with the whole bucket; handles are
            then mappings by place, and receivers get their union. Otherwise rank 0 sends.
        on_device: True if `send` gets tensors on the trainer's device; otherwise they are in CPU
            memory.
    """

    direct: ClassVar[bool] = False
    every_rank: ClassVar[bool] = False
    on_device: ClassVar[bool] = False

    @abstractmethod
    def send(self, tensors: Mapping[str, torch.Tensor], receivers: int) -> Any:
        """Send one bucket to `receivers` processes, without waiting for them, and return its
        handle.
        """

    @abstractmethod
    def receive(self, handle: Any) -> Mapping[str, torch.Tensor]:
        """Return the tensors of a bucket, on any device."""

    def release(self, handle: Any) -> None:  # noqa: B027
        """Free the sender's copy of a bucket, after all receivers have loaded it or none will."""


@dataclass(frozen=True)
class WeightBucket:
    """Named tensors that were sent.

    Attributes:
        handle: argument of `WeightTransfer.receive`.
        shapes: of the tensors, by name.
        n_bytes: total size of the tensors.
    """

    handle: Any
    shapes: Mapping[str, tuple[int, ...]]
    n_bytes: int


def send_bucket(
    transfer: WeightTransfer, tensors: Mapping[str, torch.Tensor], receivers: int = 1
) -> WeightBucket:
    """Send tensors and return the bucket that describes them to the engine."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return WeightBucket(
        transfer.send(tensors, receivers), shapes, sum(tensor.nbytes for tensor in tensors.values())
    )


def merged(buckets: Sequence[WeightBucket | None]) -> WeightBucket | None:
    """Return the bucket that the ranks of a policy have sent, None if there is none."""
    rank_buckets = [bucket for bucket in buckets if bucket is not None]
    if len(rank_buckets) < 2:
        return rank_buckets[0] if rank_buckets else None
    return replace(
        rank_buckets[0],
        handle={place: part for bucket in rank_buckets for place, part in bucket.handle.items()},
    )


class ReceivedWeights(Mapping[str, torch.Tensor]):
    """The tensors of one bucket, by name; reading the first one receives all of them.

    Args:
        transfer: of the receiver.
        handle: of the bucket.
        shapes: of the tensors, by name.
    """

    def __init__(self, transfer: WeightTransfer, handle: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.transfer = transfer
        self.handle = handle
        self.shapes = shapes

    def receive(self) -> None:
        """Receive the tensors now."""
        _ = self._tensors

    @cached_property
    def _tensors(self) -> Mapping[str, torch.Tensor]:
        return self.transfer.receive(self.handle)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def build_transfer(name: str) -> WeightTransfer:
    """Return a new transfer: `shared_memory` names the class `SharedMemory` of that file here,
    `module.Class` any other.

    Raises ModuleNotFoundError or AttributeError when there is none.
    """
    module, _, of_module = name.rpartition(".")
    cls = of_module if module else name.title().replace("_", "")
    transfer: WeightTransfer = getattr(import_module(module or f"{__package__}.{name}"), cls)()
    return transfer


def transfer_name(transfer: WeightTransfer) -> str:
    """Return the name by which another process makes a transfer of the same class."""
    return f"{type(transfer).__module__}.{type(transfer).__qualname__}"
