"""Rows of parquet files, with the cells that a file of JSON would have."""

from __future__ import annotations

import json
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pyarrow.types

from verl.utils.data_file import DatasetError


def read_parquet(file: Path) -> list[dict[str, Any]]:
    """Read every row as a dict. Raise DatasetError for two columns of one name, or no parquet."""
    try:
        # ParquetFile instead of read_table: hive-style folder names must not become columns.
        with pyarrow.parquet.ParquetFile(file) as table:
            names = table.schema_arrow.names
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise DatasetError(f"{file}: two columns are named {twice[0]!r}; rename one")
            kinds = {column.name: column.type for column in table.schema_arrow}
            rows = table.read().to_pylist(maps_as_pydicts="lossy")
            return [
                {name: _decoded(_as_in_json(cell), kinds[name]) for name, cell in row.items()} for row in rows
            ]
    except pyarrow.ArrowInvalid as error:
        raise DatasetError(f"{file}: not a readable parquet file ({error})") from error


def _as_in_json(value: Any) -> Any:
    """Return a cell as a file of JSON has it: texts for bytes of UTF-8, exact decimals and times, no
    null fields of structs.
    """
    if isinstance(value, dict):
        # A field that one row has is null in all rows that lack it.
        return {name: _as_in_json(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_as_in_json(item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:  # an image
            return value
    if isinstance(value, (date, time)):
        return value.isoformat()
    return str(value) if isinstance(value, (Decimal, timedelta)) else value


def _decoded(value: Any, kind: pyarrow.DataType) -> Any:
    """Return a cell of a type with the cells of JSON in it decoded, as `datasets` 5 stores columns
    of mixed types.
    """
    if isinstance(kind, pyarrow.JsonType):
        return _from_json(value) if isinstance(value, str) else value
    if isinstance(value, list):
        return [_decoded(item, kind.value_type) for item in value]
    if isinstance(value, dict):
        if pyarrow.types.is_map(kind):
            return {name: _decoded(item, kind.item_type) for name, item in value.items()}
        return {name: _decoded(item, kind.field(name).type) for name, item in value.items()}
    return value


def _from_json(cell: str) -> Any:
    """Return the text, list or object of a cell of JSON.

    `datasets` stores a text such as 7, 1e3, true or null as the number, truth value or null that it
    reads as. It is returned as the text: contents and answers are texts.
    """
    try:
        value = json.loads(cell)
    except (ValueError, RecursionError):
        return cell
    return value if isinstance(value, (str, list, dict)) else cell
