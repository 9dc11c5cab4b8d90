"""Rows of plain files: parquet, jsonl and json lists, read and written without a dataset library."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
SUFFIXES = (".parquet", ".jsonl", ".json")
# Characters that JSON does not escape in a string, but at which `str.splitlines` ends a line.
LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}


class DatasetError(ValueError):
    """Data that cannot be used: a missing file, an incomplete row, or no task left."""


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """Read every row of one file as a dict.

    Raises:
        DatasetError: no such file, an unknown suffix, or content that is not rows of objects.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        found = ", ".join(sorted(each.name for each in file.iterdir() if each.suffix in SUFFIXES)) or f"none with {', '.join(SUFFIXES)}"
        raise DatasetError(f"{file} is a folder; name the files in data.train_files / data.val_files (in it: {found})")
    if not file.is_file():
        raise DatasetError(f"no such data file: {file} (looked in {Path.cwd()}); set data.train_files / data.val_files")
    if not os.access(file, os.R_OK):
        raise DatasetError(f"{file} may not be read; correct its permissions, or data.train_files / data.val_files")
    if file.suffix == ".parquet":
        return _read_parquet(file)
    if file.suffix == ".jsonl":
        return _read_jsonl(file)
    if file.suffix == ".json":
        return _objects(file, _parse(file, file.read_text(encoding="utf-8"), "content"))
    raise DatasetError(f"{file}: suffix {file.suffix!r} is not one of {', '.join(SUFFIXES)}")


def write_rows(rows: Iterable[Row], path: str | os.PathLike[str]) -> Path:
    """Write rows as parquet or jsonl (by suffix) to a temporary file, rename it, and return the path."""
    file = Path(path).expanduser()
    if file.suffix not in (".parquet", ".jsonl"):
        raise DatasetError(f"{file}: rows are written as .parquet or .jsonl, not {file.suffix!r}")
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        if file.suffix == ".parquet":
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), temporary)
        else:
            # A lone surrogate, which UTF-8 cannot encode, becomes its JSON escape.
            with temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as out:
                out.writelines(json.dumps(row, ensure_ascii=False).translate(LINE_ENDS) + "\n" for row in rows)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    return file


def _read_parquet(file: Path) -> list[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        # ParquetFile instead of read_table: hive-style folder names must not become columns.
        with pyarrow.parquet.ParquetFile(file) as table:
            return table.read().to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise DatasetError(f"{file}: not a readable parquet file ({error})") from error


def _read_jsonl(file: Path) -> list[Row]:
    with file.open(encoding="utf-8") as lines:
        return _objects(file, [_parse(file, line, f"line {number}") for number, line in enumerate(lines, 1) if line.strip()])


def _parse(file: Path, text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DatasetError(f"{file}, {where}: not JSON ({error})") from error


def _objects(file: Path, rows: Any) -> list[Row]:
    if not isinstance(rows, list):
        raise DatasetError(f"{file}: expected a list of objects, found {type(rows).__name__}")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DatasetError(f"{file}, row {number}: expected an object, found {type(row).__name__}")
    return rows
