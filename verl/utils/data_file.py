"""Where a run's data files are: checked without what reads them, before torch is imported."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

SUFFIXES = (".parquet", ".jsonl", ".json")


class DatasetError(ValueError):
    """Data that cannot be used: a missing file, an incomplete row, or no task left."""


def data_files(value: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the paths of `data.train_files` or `data.val_files`, which may be one or a list.

    Raises DatasetError for none.
    """
    files = [os.fspath(f) for f in ([value] if isinstance(value, (str, os.PathLike)) else value)]
    if not files:
        raise DatasetError("no data files: set data.train_files and data.val_files to parquet or jsonl files")
    return files


def check_data_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that can be read as rows.

    Raises:
        DatasetError: a folder, no such file, one that may not be read, or an unknown suffix.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        listing = (
            ", ".join(sorted(each.name for each in file.iterdir() if each.suffix in SUFFIXES))
            or f"none with {', '.join(SUFFIXES)}"
        )
        raise DatasetError(
            f"{file} is a folder; name the files in data.train_files / data.val_files (in it: {listing})"
        )
    if not file.is_file():
        raise DatasetError(
            f"no such data file: {file} (looked in {Path.cwd()}); set data.train_files / data.val_files"
        )
    if not os.access(file, os.R_OK):
        raise DatasetError(
            f"{file} may not be read; correct its permissions, or data.train_files / data.val_files"
        )
    if file.suffix not in SUFFIXES:
        raise DatasetError(f"{file}: suffix {file.suffix!r} is not one of {', '.join(SUFFIXES)}")
    return file


def check_batch_size(tasks: float, batch_size: int) -> None:
    """Raise DatasetError for fewer tasks than one batch; `batch_size` 0: all tasks."""
    if tasks < batch_size:
        raise DatasetError(
            f"{tasks} tasks do not fill one batch of "
            f"data.train_batch_size={batch_size}; lower it or add tasks"
        )
