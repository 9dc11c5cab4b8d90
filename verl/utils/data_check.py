"""Checks of a run's data files before anything reads their rows."""

from __future__ import annotations

import json
import math
from pathlib import Path

from verl.trainer.config import DataConfig
from verl.utils.data_file import DatasetError, check_batch_size, check_data_file, data_files


def count_rows(file: Path) -> float:
    """Return the number of rows of a data file; infinite for one whose content is wrong, which
    its reader reports.
    """
    try:
        if file.suffix == ".parquet":
            import pyarrow.parquet

            return int(pyarrow.parquet.read_metadata(file).num_rows)
        if file.suffix == ".jsonl":
            with file.open("rb") as lines:
                return sum(1 for line in lines if line.strip())
        return len(json.loads(file.read_bytes()))
    # whatever a file holds, and JSON that is nested too deep
    except (OSError, ValueError, TypeError, RecursionError):
        return math.inf


def check_data(data: DataConfig, val_only: bool) -> None:
    """Raise DatasetError for a missing data file, and for fewer rows than a batch has tasks."""
    if val_only and not data.val_files:
        raise DatasetError("trainer.val_only=true needs data.val_files")
    train = [] if val_only else [check_data_file(file) for file in data_files(data.train_files)]
    for file in data_files(data.val_files) if data.val_files else []:
        check_data_file(file)
    if not val_only:
        rows = sum(count_rows(file) for file in train)
        if not rows:
            raise DatasetError(f"no rows in {', '.join(map(str, train))}")
        most = data.train_max_samples
        check_batch_size(rows if most < 0 else min(rows, most), data.train_batch_size)
