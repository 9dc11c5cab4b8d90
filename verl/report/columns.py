"""Tables as columns, which are smaller than rows as JSON and in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Key of the number of rows in a table.
LENGTH = "length"


class Columns:
    """A table that grows by rows; a column is one value while all of its values are equal.

    Args:
        names: of the columns. Every row has all of them.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.length = 0
        self._first: dict[str, Any] = dict.fromkeys(names)
        self._values: dict[str, list[Any]] = {}

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row, a value for every column."""
        for name, first in self._first.items():
            value = row[name]
            values = self._values.get(name)
            if values is not None:
                values.append(value)
            elif not self.length:
                self._first[name] = value
            elif value != first:
                self._values[name] = [first] * self.length
                self._values[name].append(value)
        self.length += 1

    def replace(self, name: str, column: Sequence[Any]) -> None:
        """Set all values of a column."""
        self._first[name] = column[0] if column else None
        self._values.pop(name, None)
        if any(value != self._first[name] for value in column):
            self._values[name] = list(column)

    def get(self, name: str) -> Sequence[Any]:
        """Return the values of a column."""
        values = self._values.get(name)
        return [self._first[name]] * self.length if values is None else values

    def to_json(self, start: int = 0) -> dict[str, Any]:
        """Return the table from row `start` on: `length`, and for each column a list or, where all
        values are equal, `{"all": value}`.
        """
        table: dict[str, Any] = {LENGTH: self.length - start}
        for name, first in self._first.items():
            values = self._values.get(name)
            table[name] = {"all": first} if values is None else values[start:] if start else values
        return table


def values(table: Mapping[str, Any], name: str) -> Sequence[Any]:
    """Return the values of a column of `Columns.to_json`; a column that the table lacks is all
    None.
    """
    column = table.get(name, {"all": None})
    if isinstance(column, Mapping):
        return [column["all"]] * int(table[LENGTH])
    return column
