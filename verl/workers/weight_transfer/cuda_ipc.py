"""Weights in memory of the sender that the receivers map, copy from and let go: CUDA IPC between
processes that use the same GPU.

On a CPU the same is done with a file in shared memory. Every rank of the policy sends, and a
receiver takes what is in the memory of its own GPU (node). A block begins with two numbers: one
that the handle has as well, which is overwritten when the block is released, so that a late
receiver gets an error and no other bytes; and the number of receivers that have copied it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch

from verl.protocol.generate import RolloutError
from verl.utils.flat_tensors import device_of, layout_of, pack, unpack
from verl.workers.weight_transfer import EXPANDABLE_SEGMENTS, expandable_segments
from verl.workers.weight_transfer.base import WeightTransfer
from verl.workers.weight_transfer.broadcast.group import gpu
from verl.workers.weight_transfer.shared_memory import Spool

_HEADER = 16
_OTHERWISE = "use rollout.weight_transfer=object_store"


class HostMemory:
    """A file in shared memory; its export is the path."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._spool = Spool(size)
        self.export = str(self._spool.folder / "block")
        self.flat = self.map(self.export, size)

    @staticmethod
    def place() -> str:
        """Return the name of this node since it was started."""
        return f"node {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"

    @staticmethod
    def map(export: str, size: int) -> torch.Tensor:
        """Return the memory as a uint8 tensor."""
        return torch.from_file(export, shared=True, size=size, dtype=torch.uint8)

    def free(self, copied: bool) -> None:
        """Remove the file."""
        self._spool.close()


class GpuMemory:
    """A block of torch's allocator; its export is what CUDA and torch's count of mappings need, for
    one receiver.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        if expandable_segments():
            raise RolloutError(
                "CUDA IPC cannot share memory of expandable segments; unset "
                f"{EXPANDABLE_SEGMENTS}, or {_OTHERWISE}"
            )
        self.flat = torch.empty(size, dtype=torch.uint8, device=device)
        self.export = list(self.flat.untyped_storage()._share_cuda_())[1:]

    @staticmethod
    def place() -> str:
        """Return the UUID of this process's GPU, an empty string without one."""
        uuid = gpu(True)
        return f"GPU {uuid}" if uuid else ""

    @staticmethod
    def map(export: list[Any], size: int) -> torch.Tensor:
        """Return the memory as a uint8 tensor."""
        device = torch.device("cuda", torch.cuda.current_device())
        storage = torch.UntypedStorage._new_shared_cuda(device.index, *export)
        return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)  # type: ignore[call-overload]

    def free(self, copied: bool) -> None:
        """Count the mapping of a receiver that died as ended; torch would keep the block for it."""
        if not copied:
            counter, offset = self.export[3:5]
            torch.UntypedStorage._release_ipc_counter_cuda(counter, offset)


_KINDS: dict[str, type[HostMemory] | type[GpuMemory]] = {"cpu": HostMemory, "cuda": GpuMemory}
# Blocks of this process, by number: CUDA does not map memory in the process that it belongs to.
_OWN_BLOCKS: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()


class CudaIpc(WeightTransfer):
    """Its handles are, by place, the export of a block and the names, dtypes and shapes of the
    tensors in it.
    """

    direct = on_device = every_rank = True

    def __init__(self) -> None:
        self._sent_blocks: dict[int, HostMemory | GpuMemory] = {}

    def send(self, tensors: Mapping[str, torch.Tensor], receivers: int) -> dict[str, Any]:
        """Copy the tensors into a block. Raises `RolloutError` where its memory cannot be shared."""
        device, (layout, size) = device_of(tensors), layout_of(tensors)
        kind = _KINDS[device.type]
        # Never 0, which marks a block that was released.
        number = secrets.randbits(62) | 1
        block = kind(_HEADER + size, device)
        _header(block.flat).copy_(torch.tensor([number, 0]))
        pack(tensors, block.flat[_HEADER:], layout)
        _finish(block.flat)
        self._sent_blocks[number], _OWN_BLOCKS[number] = block, block.flat
        return {
            kind.place(): {
                "kind": device.type,
                "export": block.export,
                "number": number,
                "layout": layout,
                "size": _HEADER + size,
            }
        }

    def receive(self, handle: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return a copy of the tensors, on the device of the sender's.

        Raises:
            RolloutError: the sender uses another GPU (node), or has released the block.
        """
        places = [place for place in (kind.place() for kind in _KINDS.values()) if place]
        here = [place for place in places if place in handle]
        if not here:
            raise RolloutError(
                f"the weights are in the memory of {', '.join(handle)}, this process uses "
                f"{', '.join(places)}; {_OTHERWISE}"
            )
        block_handle = handle[here[-1]]
        number = block_handle["number"]
        try:
            flat = _OWN_BLOCKS.get(number)
            flat = (
                _KINDS[block_handle["kind"]].map(block_handle["export"], block_handle["size"])
                if flat is None
                else flat
            )
        except RuntimeError as error:
            raise RolloutError(f"the block of weights in {here[-1]} cannot be mapped: {error}") from error
        copied = flat[_HEADER:].clone()
        # After the copy, while which the block may have been released.
        if _header(flat)[0].item() != number:
            raise RolloutError(f"the block of weights in {here[-1]} was released before it was copied")
        _header(flat)[1] += 1
        _finish(flat)
        return unpack(copied, block_handle["layout"])

    def release(self, handle: Mapping[str, Any]) -> None:
        """Free the block, whether it was copied or not."""
        for block_handle in handle.values():
            block = self._sent_blocks.pop(block_handle["number"], None)
            if block is not None:
                copied = _header(block.flat)[1].item() > 0
                _header(block.flat).zero_()
                _finish(block.flat)
                block.free(copied)


def _header(flat: torch.Tensor) -> torch.Tensor:
    return flat[:_HEADER].view(torch.int64)


def _finish(flat: torch.Tensor) -> None:
    """Wait until all work on the tensor's GPU that was started here is done."""
    if flat.is_cuda:
        torch.cuda.current_stream(flat.device).synchronize()
