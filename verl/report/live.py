"""The report of a run that goes on: read again where its files have changed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from verl.report.episodes import EpisodeIndex
from verl.report.folder import RunFolder
from verl.report.index import FORMAT, run_names, run_of
from verl.report.pack import chunk_of

# A run is read again after this many seconds without a change, since it may have stalled.
_AGAIN = 10.0
# Tables of columns of which a reader may ask for new rows alone.
_TABLES = ("episodes", "calls")


class LiveReport:
    """The index of one run, with all texts by group; `refresh` follows the files of the run.

    Args:
        path: folder of the run.

    Attributes:
        version: number of changes so far.
        run: the run as the page reads it.

    Raises:
        ReportError: `path` is not the folder of a run.
    """

    def __init__(self, path: Path) -> None:
        self.version = 0
        self.run: dict[str, Any] = {}
        self._name = run_names([path])[0]
        self._folder = RunFolder(path)
        self._episodes = EpisodeIndex(path)
        self._read_files: list[tuple[Path, int, int]] = []
        self._groups: list[list[int]] = []
        self._history: list[set[str]] = []
        self._read_at = 0.0
        self.refresh()

    def refresh(self) -> bool:
        """Read what has changed; return whether anything has."""
        is_changed = bool(self._folder.read())
        is_changed |= self._read_episodes()
        if not is_changed and time.monotonic() < self._read_at + _AGAIN:
            return False
        self._read_at = time.monotonic()
        run = run_of(self._folder, self._episodes, self._name)
        run["episodes"] = run["episodes"] | self._places()
        changed = {name for name, value in run.items() if value != self.run.get(name)}
        self.run = run
        if changed:
            self.version += 1
            self._history.append(changed)
        return bool(changed)

    def _read_episodes(self) -> bool:
        """Read new files of trajectories; all of them if an earlier one is not what it was."""
        files = self._folder.episode_files
        stats = []
        for file in files:
            try:
                stat = file.path.stat()
            except OSError:
                continue
            stats.append((file.path, stat.st_size, stat.st_mtime_ns))
        if stats == self._read_files:
            return False
        if stats[: len(self._read_files)] != self._read_files:
            self._episodes = EpisodeIndex(self._folder.path)
            self._read_files = []
        paths = {path for path, *_ in stats} - {path for path, *_ in self._read_files}
        for file in files:
            if file.path in paths:
                self._episodes.read(file)
        self._read_files = stats
        return True

    def _places(self) -> dict[str, list[int]]:
        """Return the columns `chunk` and `row`: each group is a chunk."""
        self._groups = list(self._episodes.groups().values())
        chunks = [0] * self._episodes.episodes.length
        rows = [0] * self._episodes.episodes.length
        for number, members in enumerate(self._groups):
            for row, at in enumerate(members):
                chunks[at] = number
                rows[at] = row
        return {"chunk": chunks, "row": rows}

    def changed_since(self, version: int) -> list[str]:
        """Return names of the parts of the run that have changed since a version."""
        return sorted(set().union(*self._history[max(version, 0) :]))

    def index(self, parts: list[str] | None = None, after: tuple[int, int] = (0, 0)) -> dict[str, Any]:
        """Return the index.

        Args:
            parts: keys of the run; None for all of them.
            after: number of rows of `episodes` and of `calls` that are left out.
        """
        run = self.run if parts is None else {name: self.run[name] for name in parts if name in self.run}
        for name, start in zip(_TABLES, after, strict=True):
            if start and name in run:
                run = run | {name: _rows_from(run[name], start)}
        return {
            "format": FORMAT,
            "built": round(time.time(), 1),
            "live": True,
            "version": self.version,
            "runs": [run],
            "compare": None,
        }

    def chunk(self, number: int) -> dict[str, Any] | None:
        """Return the texts of a group; None if there is no such group."""
        if not 0 <= number < len(self._groups):
            return None
        return chunk_of(self._episodes.whole(self._groups[number])).to_json()


def _rows_from(table: dict[str, Any], start: int) -> dict[str, Any]:
    """Return a table of columns from row `start` on."""
    rest = {name: column[start:] if isinstance(column, list) else column for name, column in table.items()}
    return rest | {"length": max(table["length"] - start, 0)}
