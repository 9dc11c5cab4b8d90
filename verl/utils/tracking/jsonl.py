"""Metrics in a file: `metrics.jsonl`, one JSON object per step, in order of steps."""

import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from verl.utils.disk import write_whole
from verl.utils.tracking.backend import RunInfo

logger = logging.getLogger(__name__)


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Return the rows of `path`, without a last line truncated by a crash. Raises ValueError for
    any other line that is not a row.
    """
    rows = []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise ValueError(
                f"{path}:{number} is not JSON ({error}); move the file away or repair the line"
            ) from error
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise ValueError(
                f"{path}:{number} has no integer 'step'; expected an object such as {{\"step\": 1, ...}}"
            )
        rows.append(row)
    return rows


def free_path(path: Path) -> Path:
    """Return the first free `<stem>.<n><suffix>` beside `path`."""
    n = 1
    while (target := path.with_name(f"{path.stem}.{n}{path.suffix}")).exists():
        n += 1
    return target


def back_up(path: Path) -> Path:
    """Rename `path` to the first free `<stem>.<n><suffix>` beside it and return the new path."""
    return path.rename(free_path(path))


class JsonlBackend:
    """Writes `run_dir/metrics.jsonl`; every line is on disk when `log` returns.

    A second `log` of the last step adds to its line. Resuming drops the lines after the resumed
    step, which will be written again; a fresh run starts a new file. Dropped lines are kept in
    `metrics.<n>.jsonl`. NaN and infinity, which JSON does not have, become null.
    """

    def __init__(self, run: RunInfo) -> None:
        run.run_dir.mkdir(parents=True, exist_ok=True)
        self.path = run.run_dir / "metrics.jsonl"
        self._last: dict[str, Any] = {}
        self._last_offset = 0
        if self.path.exists():
            self._continue(run.resume_step)
        self._file = self.path.open("r+b" if self.path.exists() else "w+b")
        self._file.seek(0, os.SEEK_END)

    def _continue(self, resume_step: Optional[int]) -> None:
        if resume_step is None:
            backup = back_up(self.path)
            logger.warning("%s is from an earlier run; it is now %s", self.path, backup.name)
            return
        stored_rows = read_steps(self.path)
        rows = [row for row in stored_rows if row["step"] <= resume_step]
        lines = [json.dumps(row).encode() + b"\n" for row in rows]
        if len(rows) < len(stored_rows):
            backup = back_up(self.path)
            logger.warning(
                "%d lines after step %d are left out; all lines are in %s",
                len(stored_rows) - len(rows),
                resume_step,
                backup.name,
            )
        write_whole(self.path, b"".join(lines))
        if rows:
            self._last = rows[-1]
            self._last_offset = sum(map(len, lines[:-1]))

    def log(self, data: Mapping[str, float], step: int) -> None:
        """Append the line of `step`, or add to the last line; raises ValueError for a step before
        the last one.
        """
        row = {key: value if math.isfinite(value) else None for key, value in data.items()}
        last_step = self._last.get("step")
        if last_step is not None and step < last_step:
            raise ValueError(
                f"{self.path} already has step {last_step}; got step {step}, expected steps in order"
            )
        if step == last_step:
            self._file.seek(self._last_offset)
            row = {**self._last, **row}
        else:
            self._last_offset = self._file.tell()
            row = {"step": step, **row}
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.truncate()
        self._file.flush()
        self._last = row

    def finish(self) -> None:
        """Close the file."""
        self._file.close()
