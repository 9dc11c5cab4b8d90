"""Rows of plain files: parquet, jsonl and json lists, read and written without a dataset library."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from verl.utils.data_file import DatasetError, check_data_file

Row = dict[str, Any]
# Characters that JSON does not escape in a string, but at which `str.splitlines` ends a line.
LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """Read every row of one file as a dict.

    Raises:
        DatasetError: no such file, an unknown suffix, or content that is not rows of objects.
    """
    file = check_data_file(path)
    if file.suffix == ".parquet":
        from verl.utils.dataset.parquet import read_parquet

        return read_parquet(file)
    if file.suffix == ".jsonl":
        return _read_jsonl(file)
    return _read_json(file)


def write_rows(rows: Iterable[Row], path: str | os.PathLike[str]) -> Path:
    """Write rows as parquet or jsonl (by suffix) to a temporary file, rename it, and return the
    path.
    """
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
                out.writelines(
                    json.dumps(row, ensure_ascii=False).translate(LINE_ENDS) + "\n" for row in rows
                )
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    return file


def _read_jsonl(file: Path) -> list[Row]:
    return _objects(file, _parse_lines(file, file.read_bytes()))


def _read_json(file: Path) -> list[Row]:
    """Read a list of objects, or the lines of a jsonl file under another name."""
    content = file.read_bytes()
    text = _decoded(file, content, 1)
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            return _objects(file, _parse_lines(file, content))
        raise DatasetError(f"{file}: not JSON ({error})") from error
    return _objects(file, rows)


def _parse_lines(file: Path, content: bytes) -> list[Any]:
    """Return the value of every line that is not blank."""
    rows = []
    for number, line in enumerate(content.splitlines(), 1):
        if text := _decoded(file, line, number).strip():
            try:
                rows.append(json.loads(text))
            except (ValueError, RecursionError) as error:
                raise DatasetError(f"{file}, line {number}: not JSON ({error})") from error
    return rows


def _decoded(file: Path, content: bytes, line: int) -> str:
    """Return UTF-8 as text without a byte order mark; `line` is the number of the first line."""
    try:
        return content.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line += content[: error.start].count(b"\n")
        raise DatasetError(
            f"{file}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8; convert the "
            "file, e.g. with iconv -t UTF-8"
        ) from error


def _objects(file: Path, rows: Any) -> list[Row]:
    if not isinstance(rows, list):
        raise DatasetError(f"{file}: expected a list of objects, found {type(rows).__name__}")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DatasetError(f"{file}, row {number}: expected an object, found {type(row).__name__}")
    return rows
