"""Atomic checkpoints: written to a temporary folder, flushed to disk, then renamed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from verl.utils.names import error_line

_META = "meta.json"
# Names of the tensors of the model begin with it; others are of the optimizer.
WEIGHTS = "model."
_SHARDS = "shards"
_FORMAT = 1


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written, found, read or used; after a failed write the message
    says what is intact.
    """


def fsync_tree(folder: Path) -> None:
    """Flush every file and folder under `folder` to disk."""
    for root, _, names in os.walk(folder):
        for path in [*(Path(root) / name for name in names), Path(root)]:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def _previous(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def commit_folder(path: Path) -> None:
    """Replace `path` by its finished temporary folder; one complete version exists at any time."""
    fsync_tree(_temporary(path))
    # Left by a process that ended before it could remove it.
    shutil.rmtree(_previous(path), ignore_errors=True)
    if path.exists():
        path.rename(_previous(path))
    _temporary(path).rename(path)
    shutil.rmtree(_previous(path), ignore_errors=True)
    # The renames must last as well.
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def find_folder(path: Path) -> Path:
    """Return the checkpoint at `path`, or the previous version if the process died between the two
    renames.

    Raises:
        CheckpointError: there is none.
    """
    for candidate in (path, _previous(path)):
        if (candidate / _META).is_file():
            return candidate
    raise CheckpointError(f"no checkpoint at {path} (it would hold {_META} and {_SHARDS}/)")


def save_sharded(
    path: str | Path,
    tensors: Mapping[str, torch.Tensor],
    rank_state: Mapping[str, Any],
    meta: Mapping[str, Any],
    group: dist.ProcessGroup,
    write_more: Callable[[Path], None] | None = None,
) -> None:
    """Write one checkpoint of all ranks; all of them must call this.

    Args:
        path: the folder; an older checkpoint there is replaced only when the new one is complete.
        tensors: sharded (DTensor) or equal on all ranks; they can be loaded on another number of
            ranks.
        rank_state: state of each rank (its random state); tensors and plain values.
        meta: JSON values, the same on all ranks.
        write_more: called on every rank with the unfinished folder, to add files.

    Raises:
        CheckpointError: on every rank, when any rank could not write; the previous checkpoint at
            `path` is intact.
    """
    path = Path(path)
    rank = dist.get_rank(group)
    folder = _temporary(path)
    failures: list[str | None] = [None] * dist.get_world_size(group)
    start = {**meta, "format": _FORMAT, "world_size": len(failures)}
    # After each part all ranks know whether one has failed, so that none waits for it in the
    # collectives of the next.
    for write in (
        lambda: _start(folder, start) if rank == 0 else None,
        lambda: _save_shards(dict(tensors), folder / _SHARDS, group),
        lambda: torch.save(dict(rank_state), folder / f"rank_{rank}.pt"),
        lambda: write_more(folder) if write_more is not None else None,
        lambda: commit_folder(path) if rank == 0 else None,
    ):
        if any(failures):
            break
        failure = _attempt(write)
        if len(failures) == 1:
            failures = [failure]
        else:
            dist.all_gather_object(failures, failure, group=group)
    if any(failures):
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        causes = "; ".join(f"rank {i}: {cause}" for i, cause in enumerate(failures) if cause)
        raise CheckpointError(
            f"checkpoint {path} was not written ({causes}); what was there before is intact"
        )


def _save_shards(tensors: dict[str, torch.Tensor], folder: Path, group: dist.ProcessGroup) -> None:
    if dist.get_world_size(group) > 1:
        dcp.save(tensors, checkpoint_id=folder, process_group=group)
        return
    # the same files, without what torch would send to itself
    with _one_process():
        dcp.save(tensors, checkpoint_id=folder, no_dist=True)


@contextmanager
def _one_process() -> Iterator[None]:
    """Silence torch's warning that a checkpoint is of a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _start(folder: Path, meta: Mapping[str, Any]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / _META).write_text(json.dumps(dict(meta), indent=1, sort_keys=True))


def _attempt(write: Callable[[], None]) -> str | None:
    """Run `write` and return the cause if it failed, to be sent to all ranks."""
    try:
        write()
    except (OSError, RuntimeError, CheckpointException) as error:
        return f"{type(error).__name__}: {error}".strip().splitlines()[-1]
    return None


def read_meta(path: str | Path) -> dict[str, Any]:
    """Return the `meta` of a checkpoint. Raises CheckpointError when there is none, or one of
    another format.
    """
    meta = json.loads((find_folder(Path(path)) / _META).read_text())
    if meta.get("format") != _FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {meta.get('format')}, this version reads {_FORMAT}"
        )
    return meta


def load_sharded(
    path: str | Path, tensors: Mapping[str, torch.Tensor], group: dist.ProcessGroup
) -> dict[str, Any]:
    """Load a checkpoint into `tensors` in place and return this rank's own state.

    If it was written by another number of ranks, the tensors are resharded and the result is empty.

    Raises:
        CheckpointError: there is no checkpoint, or it does not fit `tensors`.
    """
    folder = find_folder(Path(path))
    meta = read_meta(path)
    try:
        dcp.load(dict(tensors), checkpoint_id=folder / _SHARDS, process_group=group)
    except (CheckpointException, RuntimeError, ValueError, OSError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error_line(error, last=True)}") from error
    if meta["world_size"] != dist.get_world_size(group):
        return {}
    return torch.load(folder / f"rank_{dist.get_rank(group)}.pt", weights_only=True)


def stored_weights(path: str | Path, limit_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the unsharded tensors of a checkpoint's model, by their names in the model.

    Each dict has at most `limit_bytes`, or one tensor. No process group is needed. Raises
    CheckpointError when there is no checkpoint or it cannot be read.
    """
    shards = find_folder(Path(path)) / _SHARDS
    try:
        listed = dcp.FileSystemReader(shards).read_metadata().state_dict_metadata
        tensor_metadata = {
            key: at
            for key, at in listed.items()
            if key.startswith(WEIGHTS) and isinstance(at, TensorStorageMetadata)
        }
        piece: dict[str, torch.Tensor] = {}
        room = limit_bytes
        for key, at in tensor_metadata.items():
            tensor = torch.empty(at.size, dtype=at.properties.dtype)
            if piece and tensor.nbytes > room:
                yield _filled(piece, shards)
                piece = {}
                room = limit_bytes
            piece[key] = tensor
            room -= tensor.nbytes
        if piece:
            yield _filled(piece, shards)
    except (
        CheckpointException,
        RuntimeError,
        ValueError,
        OSError,
        pickle.UnpicklingError,
        EOFError,
    ) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error_line(error, last=True)}") from error


def _filled(tensors: dict[str, torch.Tensor], shards: Path) -> dict[str, torch.Tensor]:
    with _one_process():
        dcp.load(dict(tensors), checkpoint_id=shards, no_dist=True)
    return {key.removeprefix(WEIGHTS): tensor for key, tensor in tensors.items()}
