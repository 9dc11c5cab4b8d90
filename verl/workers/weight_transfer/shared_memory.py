"""Weights as files in shared memory that every process of this node maps: written once, never sent.
Works within one node.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from verl.protocol.generate import RolloutError
from verl.workers.weight_transfer.base import WeightTransfer

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "verl-mas"
_OWNED = re.compile(rf"{PREFIX}-(\d+)-[0-9a-f]+")


class SharedMemory(WeightTransfer):
    """Its handles are paths of safetensors files.

    Args:
        spool: where files are written; made with the first bucket when None.
    """

    direct = True

    def __init__(self, spool: Spool | None = None) -> None:
        self._spool = spool

    def send(self, tensors: Mapping[str, torch.Tensor], receivers: int) -> str:
        """Write the tensors to a file and return its path."""
        self._spool = self._spool or Spool(sum(tensor.nbytes for tensor in tensors.values()))
        return str(self._spool.write(tensors))

    def receive(self, handle: str) -> dict[str, torch.Tensor]:
        """Map the file and return its tensors. Raises `RolloutError` if it is not on this node."""
        if not Path(handle).exists():
            raise RolloutError(
                f"no weights at {handle}: the sender is on another node; use "
                "rollout.weight_transfer=object_store"
            )
        return load_file(handle)

    def release(self, handle: str) -> None:
        """Remove the file; processes that have mapped it keep their mapping."""
        Path(handle).unlink(missing_ok=True)


class Spool:
    """A private folder of this process, in shared memory if that has room for twice `size` bytes,
    else in the temporary folder.

    It is removed by `close`, with this object, or, if the process was killed, by the next spool on
    the node.
    """

    def __init__(self, size: int) -> None:
        places = [place for place in (SHARED_MEMORY, Path(tempfile.gettempdir())) if place.is_dir()]
        for place in places:
            _remove_orphans(place)
        roomy = [place for place in places if shutil.disk_usage(place).free > 2 * size]
        self.folder = _own_folder((roomy or places[-1:])[0])
        self._folders = [self.folder]
        self.close = weakref.finalize(self, _remove, self._folders)

    @cached_property
    def scratch(self) -> Path:
        """Another folder, in the temporary folder: for sockets and the temporary files of other
        processes.
        """
        self._folders.append(_own_folder(Path(tempfile.gettempdir())))
        return self._folders[-1]

    def write(self, tensors: Mapping[str, torch.Tensor], name: str = "") -> Path:
        """Write tensors as one safetensors file and return its path; an empty `name` is replaced by
        a random one.
        """
        path = self.folder / (name or f"{uuid.uuid4().hex}.safetensors")
        path.parent.mkdir(exist_ok=True)
        storage_pointers: set[int] = set()
        file_tensors = {}
        for key, value in tensors.items():
            value = value.detach().cpu().contiguous()
            # safetensors rejects shared storage
            file_tensors[key] = (
                value.clone() if value.untyped_storage().data_ptr() in storage_pointers else value
            )
            storage_pointers.add(value.untyped_storage().data_ptr())
        save_file(file_tensors, path)
        return path


def _own_folder(place: Path) -> Path:
    folder = place / f"{PREFIX}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
    folder.mkdir(mode=0o700)
    return folder


def _remove(folders: list[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_orphans(place: Path) -> None:
    """Remove folders of processes that no longer exist."""
    for folder in place.glob(f"{PREFIX}-*"):
        match = _OWNED.fullmatch(folder.name)
        if match and not Path(f"/proc/{match[1]}").exists() and folder.stat().st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)
