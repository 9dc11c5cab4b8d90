"""Episodes, credit and timeline of an earlier run in the same folder, which are not those of this run."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

from verl.utils.disk import write_whole, writing
from verl.utils.tracking.jsonl import back_up, free_path

logger = logging.getLogger(__name__)

# Folders with files of steps.
FOLDERS = ("trajectories", "credit")
_STEP = re.compile(r"(train|val|step)_(\d+)(?:_\d+)?\.jsonl?")


def set_earlier_files_aside(run_dir: Path, resumed_step: int | None, has_next: bool = False) -> None:
    """Rename what an earlier run wrote and this one does not continue to a free `trajectories.<n>/`,
    `credit.<n>/` and `timeline.<n>.jsonl`, as `metrics.jsonl` is: all of it in a fresh run, what is
    after the resumed step in one that goes on.

    Args:
        run_dir: output folder of the run.
        resumed_step: step of the checkpoint that the run goes on from; None for a fresh run.
        has_next: the checkpoint has the samples of the next step, whose episodes are not played
            again: their file stays.

    Raises:
        DiskError: a file cannot be renamed or written.
    """
    with writing(run_dir):
        moved = [_move_steps(run_dir / name, resumed_step, has_next) for name in FOLDERS]
        moved.append(_cut_timeline(run_dir, resumed_step))
    names = [path.name for path in moved if path is not None]
    if names:
        cause = "an earlier run" if resumed_step is None else f"steps after {resumed_step}"
        listing = " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
        logger.warning("%s: files of %s are now in %s", run_dir, cause, listing)


def _move_steps(folder: Path, resumed_step: int | None, has_next: bool) -> Path | None:
    files = [path for path in folder.glob("*.json*") if _is_later(path, resumed_step, has_next)]
    if not files:
        return None
    if resumed_step is None:
        return back_up(folder)
    backup = free_path(folder)
    backup.mkdir()
    for path in files:
        path.rename(backup / path.name)
    return backup


def _is_later(path: Path, resumed_step: int | None, has_next: bool) -> bool:
    if resumed_step is None:
        return True
    match = _STEP.fullmatch(path.name)
    if match is None:
        return False
    # a validation and the credit of the next step are made again
    last = resumed_step + (has_next and match.group(1) == "train")
    return int(match.group(2)) > last


def _cut_timeline(run_dir: Path, resumed_step: int | None) -> Path | None:
    path = run_dir / "timeline.jsonl"
    if not path.exists():
        return None
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    own_lines = [line for line in lines if resumed_step is not None and _step_of(line) <= resumed_step]
    if len(own_lines) == len(lines):
        return None
    backup = back_up(path)
    if own_lines:
        write_whole(path, "".join(own_lines).encode())
    return backup


def _step_of(line: str) -> float:
    """Return the step of a span; infinity for a line that a crash has cut off."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
