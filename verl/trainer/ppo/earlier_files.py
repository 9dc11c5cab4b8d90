"""Episodes and timeline of an earlier run in the same folder, which are not those of this run."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path

from verl.utils.disk import writing
from verl.utils.tracking.jsonl import back_up, free_path

logger = logging.getLogger(__name__)

_STEP = re.compile(r"(?:train|val)_(\d+)(?:_\d+)?\.jsonl")


def set_earlier_files_aside(run_dir: Path, resumed_step: int | None) -> None:
    """Rename what an earlier run wrote and this one does not continue to a free `trajectories.<n>/`
    and `timeline.<n>.jsonl`, as `metrics.jsonl` is: all of it in a fresh run, what is after the
    resumed step in one that goes on.

    Args:
        run_dir: output folder of the run.
        resumed_step: step of the checkpoint that the run goes on from; None for a fresh run.

    Raises:
        DiskError: a file cannot be renamed or written.
    """
    with writing(run_dir):
        moved = [_move_episodes(run_dir, resumed_step), _cut_timeline(run_dir, resumed_step)]
    names = [path.name for path in moved if path is not None]
    if names:
        cause = "an earlier run" if resumed_step is None else f"steps after {resumed_step}"
        logger.warning("%s: files of %s are now in %s", run_dir, cause, " and ".join(names))


def _move_episodes(run_dir: Path, resumed_step: int | None) -> Path | None:
    folder = run_dir / "trajectories"
    files = [path for path in folder.glob("*.jsonl") if _is_later(path, resumed_step)]
    if not files:
        return None
    if resumed_step is None:
        return back_up(folder)
    backup = free_path(folder)
    backup.mkdir()
    for path in files:
        path.rename(backup / path.name)
    return backup


def _is_later(path: Path, resumed_step: int | None) -> bool:
    step = _STEP.fullmatch(path.name)
    return resumed_step is None or (step is not None and int(step.group(1)) > resumed_step)


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
        new = path.with_suffix(".jsonl.new")
        new.write_text("".join(own_lines), encoding="utf-8")
        os.replace(new, path)
    return backup


def _step_of(line: str) -> float:
    """Return the step of a span; infinity for a line that a crash has cut off."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
