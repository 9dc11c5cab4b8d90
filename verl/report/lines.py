"""Files of JSON lines that grow while they are read, and whose lines may be damaged."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

CUT_OFF = "cut off: it is being written, or the run ended while it was"


def check_file(status: os.stat_result) -> None:
    """Raise OSError for a pipe or a device, whose reading may never end."""
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise OSError("it is no file")


@dataclass(frozen=True)
class Line:
    """One line of a file of JSON lines.

    Attributes:
        number: of the line, from 1.
        offset, size: its place in the file, in bytes.
        row: its object; None for a damaged line.
        why: what is wrong with it; empty for an object.
    """

    number: int
    offset: int
    size: int
    row: dict[str, Any] | None
    why: str = ""


def read_lines(file: BinaryIO, offset: int = 0, number: int = 0) -> Iterator[Line]:
    """Yield the lines of `file` that are not blank, from its position on, one at a time in memory.

    Args:
        file: a file of JSON lines.
        offset: its position, in bytes.
        number: of lines before it.
    """
    for line in file:
        number += 1
        if line.strip():
            row, why = _parsed(line)
            yield Line(number, offset, len(line), row, why)
        offset += len(line)


def _parsed(line: bytes) -> tuple[dict[str, Any] | None, str]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return None, f"no JSON: {error}"[:200] if line.endswith(b"\n") else CUT_OFF
    if isinstance(row, dict):
        return row, ""
    return None, f"a {type(row).__name__} instead of an object"


@dataclass
class GrowingFile:
    """The objects of a file of JSON lines; `read` parses only what is new, and the last line again,
    which a run may rewrite.

    Attributes:
        path: the file, which may be missing.
        lines: its lines, damaged ones included.
        modified: time of the last change in seconds since the epoch; 0 if it is missing.
    """

    path: Path
    lines: list[Line] = field(default_factory=list)
    modified: float = 0.0
    _stat: tuple[int, int, int] | None = None

    def read(self) -> bool:
        """Read what is new; return whether the file has changed.

        Raises:
            OSError: the file cannot be read.
        """
        try:
            status = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            changed = self._stat is not None
            self._stat = None
            self.lines = []
            self.modified = 0.0
            return changed
        check_file(status)
        stat_key = status.st_ino, status.st_size, status.st_mtime_ns
        if stat_key == self._stat:
            return False
        last = self.lines[-1] if self.lines else None
        if self._stat is None or last is None or stat_key[0] != self._stat[0] or stat_key[1] < last.offset:
            self.lines = []
            last = None
        with self.path.open("rb") as file:
            if last is not None:
                file.seek(last.offset)
                self.lines.pop()
            self.lines += read_lines(file, last.offset if last else 0, last.number - 1 if last else 0)
        self._stat = stat_key
        self.modified = status.st_mtime
        return True

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The objects."""
        return [line.row for line in self.lines if line.row is not None]
