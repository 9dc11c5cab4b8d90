"""Tensors for another process of this node: files in shared memory that the reader maps, so that bytes are written once and sent never."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "verl-mas"
_OWNED = re.compile(rf"{PREFIX}-(\d+)-[0-9a-f]+")


class Spool:
    """A folder of this process alone, in shared memory where there is room for `size` bytes at a time, else among the temporary files; and
    `scratch`, another one among those, for sockets and the temporary files of other processes.

    They are removed with `close`, with this object, or, after a process that was killed, by the next spool on the node.
    """

    def __init__(self, size: int) -> None:
        places = [place for place in (SHARED_MEMORY, Path(tempfile.gettempdir())) if place.is_dir()]
        for place in places:
            _remove_orphans(place)
        roomy = [place for place in places if shutil.disk_usage(place).free > 2 * size]
        self.folder, self.scratch = _own_folder((roomy or places[-1:])[0]), _own_folder(places[-1])
        self.close = weakref.finalize(self, _remove, self.folder, self.scratch)

    def write(self, tensors: Mapping[str, torch.Tensor], name: str = "") -> Path:
        """Write tensors as one safetensors file and return its path; `name` is random when there is none."""
        path = self.folder / (name or f"{uuid.uuid4().hex}.safetensors")
        path.parent.mkdir(exist_ok=True)
        seen: set[int] = set()
        own = {}
        for key, value in tensors.items():
            value = value.detach().cpu().contiguous()
            own[key] = value.clone() if value.untyped_storage().data_ptr() in seen else value  # a file has no shared tensors
            seen.add(value.untyped_storage().data_ptr())
        save_file(own, path)
        return path


def _own_folder(place: Path) -> Path:
    folder = place / f"{PREFIX}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
    folder.mkdir(mode=0o700)
    return folder


def _remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_orphans(place: Path) -> None:
    """Folders whose process is gone."""
    for folder in place.glob(f"{PREFIX}-*"):
        match = _OWNED.fullmatch(folder.name)
        if match and not Path(f"/proc/{match[1]}").exists() and folder.stat().st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)
