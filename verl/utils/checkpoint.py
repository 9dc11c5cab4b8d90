"""Checkpoints that are either whole or absent: written aside, flushed to disk, then renamed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

_META = "meta.json"
_SHARDS = "shards"
_FORMAT = 1


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written, found, read or used; the message says what is still intact."""


def fsync_tree(folder: Path) -> None:
    """Flush every file and folder under `folder` to disk."""
    for root, _, names in os.walk(folder):
        for path in [*(Path(root) / name for name in names), Path(root)]:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def _replaced(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def commit_folder(path: Path) -> None:
    """Put the finished folder aside in the place of `path`; at every moment one whole version exists."""
    fsync_tree(_aside(path))
    shutil.rmtree(_replaced(path), ignore_errors=True)
    if path.exists():
        path.rename(_replaced(path))
    _aside(path).rename(path)
    shutil.rmtree(_replaced(path), ignore_errors=True)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def find_folder(path: Path) -> Path:
    """The checkpoint at `path`, or the version it was replacing when the process died between two renames.

    Raises:
        CheckpointError: there is none.
    """
    for candidate in (path, _replaced(path)):
        if (candidate / _META).is_file():
            return candidate
    raise CheckpointError(f"no checkpoint at {path} (it would hold {_META} and {_SHARDS}/)")


def save_sharded(
    path: str | Path,
    tensors: Mapping[str, torch.Tensor],
    own: Mapping[str, Any],
    meta: Mapping[str, Any],
    group: dist.ProcessGroup,
    write_more: Callable[[Path], None] | None = None,
) -> None:
    """Write a checkpoint of all ranks together.

    Args:
        path: the folder; an older checkpoint there is replaced only when the new one is complete.
        tensors: sharded (DTensor) or equal on all ranks; they can be read back on another number of ranks.
        own: what each rank keeps for itself (its random state); tensors and plain values.
        meta: JSON values, the same on all ranks.
        write_more: called on every rank with the unfinished folder, to add files.

    Raises:
        CheckpointError: on every rank, when any rank could not write; what was at `path` before is still there.
    """
    path = Path(path)
    rank, aside = dist.get_rank(group), _aside(path)
    failures: list[str | None] = [None] * dist.get_world_size(group)
    failure = _attempt(lambda: _start(aside, {**meta, "format": _FORMAT, "world_size": len(failures)}) if rank == 0 else None)
    dist.all_gather_object(failures, failure, group=group)
    for write in (
        lambda: dcp.save(dict(tensors), checkpoint_id=aside / _SHARDS, process_group=group),
        lambda: torch.save(dict(own), aside / f"rank_{rank}.pt"),
        lambda: write_more(aside) if write_more is not None else None,
        lambda: commit_folder(path) if rank == 0 else None,
    ):
        if not any(failures):
            dist.all_gather_object(failures, _attempt(write), group=group)
    if any(failures):
        if rank == 0:
            shutil.rmtree(aside, ignore_errors=True)
        causes = "; ".join(f"rank {i}: {cause}" for i, cause in enumerate(failures) if cause)
        raise CheckpointError(f"checkpoint {path} was not written ({causes}); what was there before is intact")


def _start(aside: Path, meta: Mapping[str, Any]) -> None:
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    (aside / _META).write_text(json.dumps(dict(meta), indent=1, sort_keys=True))


def _attempt(write: Callable[[], None]) -> str | None:
    """Run `write`; a failed write comes back as its cause, so that all ranks can hear of it."""
    try:
        write()
    except (OSError, RuntimeError, CheckpointException) as error:
        return f"{type(error).__name__}: {error}".strip().splitlines()[-1]
    return None


def read_meta(path: str | Path) -> dict[str, Any]:
    """The `meta` of a checkpoint. Raises CheckpointError when there is none, or one of another format."""
    meta = json.loads((find_folder(Path(path)) / _META).read_text())
    if meta.get("format") != _FORMAT:
        raise CheckpointError(f"checkpoint {path} has format {meta.get('format')}, this version reads {_FORMAT}")
    return meta


def load_sharded(path: str | Path, tensors: Mapping[str, torch.Tensor], group: dist.ProcessGroup) -> dict[str, Any]:
    """Read a checkpoint into `tensors` in place and return what this rank kept for itself.

    On another number of ranks than it was written with, the tensors are resharded and the result is empty.

    Raises:
        CheckpointError: there is no checkpoint, or it does not fit `tensors`.
    """
    folder = find_folder(Path(path))
    meta = read_meta(path)
    try:
        dcp.load(dict(tensors), checkpoint_id=folder / _SHARDS, process_group=group)
    except (CheckpointException, RuntimeError, ValueError, OSError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {str(error).strip().splitlines()[-1]}") from error
    if meta["world_size"] != dist.get_world_size(group):
        return {}
    return torch.load(folder / f"rank_{dist.get_rank(group)}.pt", weights_only=True)


def stored_tensors(path: str | Path, prefix: str, limit_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
    """The tensors of a checkpoint whose names begin with `prefix`, whole and without it, in pieces of at most so many bytes or one tensor.

    No process group is needed. Raises CheckpointError when there is no checkpoint or it cannot be read.
    """
    shards = find_folder(Path(path)) / _SHARDS
    try:
        listed = dcp.FileSystemReader(shards).read_metadata().state_dict_metadata
        wanted = {key: at for key, at in listed.items() if key.startswith(prefix) and isinstance(at, TensorStorageMetadata)}
        piece: dict[str, torch.Tensor] = {}
        room = limit_bytes
        for key, at in wanted.items():
            tensor = torch.empty(at.size, dtype=at.properties.dtype)
            if piece and tensor.nbytes > room:
                yield _filled(piece, shards, prefix)
                piece, room = {}, limit_bytes
            piece[key] = tensor
            room -= tensor.nbytes
        if piece:
            yield _filled(piece, shards, prefix)
    except (CheckpointException, RuntimeError, ValueError, OSError, pickle.UnpicklingError, EOFError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {str(error).strip().splitlines()[-1:]}") from error


def _filled(tensors: dict[str, torch.Tensor], shards: Path, prefix: str) -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(dict(tensors), checkpoint_id=shards, no_dist=True)
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
