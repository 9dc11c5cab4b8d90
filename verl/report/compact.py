"""Tables in fewer bytes, as the file of a report has them; `expand.js` makes of them what they were.

Forms of a column:

- a list, or `{"all": value}` as of `Columns.to_json`;
- `{"same": name}`, another column of the table; `{"abs": name}`, its absolute values;
- `{"joined": [name, name], "by": text}`, the texts of two columns with a text between them;
- `{"ints": characters}`, integers, a character each: with `"per"` divided by it, with `"sum"` each added
  to those before it, with `"set"` places in a list of values;
- `{"fields": table}`, objects with the same keys, and null in the rows `"none"`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from verl.report.columns import values
from verl.utils.plain import to_bytes

Table = Mapping[str, Any]

# Columns of fewer rows stay lists.
_FEW = 8
# Denominators of decimal fractions.
_PER = (1, 10, 100, 1000)
# Beyond it a number times a denominator is not exact.
_MOST = 2**53 / max(_PER)
# Integers beyond it have no character.
_LARGEST = 500_000
# Characters of a JSON text that need no escape begin at 35, but for a backslash.
_FIRST_CODE = 35
_BACKSLASH = 92
_SURROGATES = range(0xD800, 0xE000)
_NULL = "!"
_SCALARS = (str, int, float, bool, type(None))


def compact_table(table: Table) -> dict[str, Any]:
    """Return a table whose columns are in the form that needs the fewest bytes."""
    short: dict[str, Any] = {}
    names: dict[str, str] = {}  # column as JSON -> its name
    for name, column in table.items():
        if not isinstance(column, list):
            short[name] = column
            continue
        key = json.dumps(column)
        if key in names:
            short[name] = {"same": names[key]}
            continue
        names[key] = name
        short[name] = _absolute(table, name) or _joined(table, name) or short_form(column)
    return short


def _absolute(table: Table, name: str) -> dict[str, str] | None:
    """Return the form of a column `abs` that has the absolute values of `advantage`."""
    advantages = table.get("advantage")
    if name != "abs" or not isinstance(advantages, list):
        return None
    is_number = all(isinstance(value, (int, float)) for value in advantages)
    is_absolute = is_number and [abs(value) for value in advantages] == table[name]
    return {"abs": "advantage"} if is_absolute else None


def _joined(table: Table, name: str) -> dict[str, Any] | None:
    """Return the form of a column `traj_uid` that consists of `uid` and `index`."""
    if name != "traj_uid" or "uid" not in table or "index" not in table:
        return None
    parts = zip(values(table, "uid"), values(table, "index"), table[name], strict=True)
    is_joined = all(f"{uid}#{index}" == whole for uid, index, whole in parts)
    return {"joined": ["uid", "index"], "by": "#"} if is_joined else None


def short_form(column: list[Any]) -> Any:
    """Return a column in the form that needs the fewest bytes."""
    if len(column) < _FEW:
        return column
    forms = [form for form in (_fields(column), *_integers(column), _places(column)) if form is not None]
    return min([*forms, column], key=_bytes)


def _bytes(form: Any) -> int:
    return len(zlib.compress(to_bytes(form), 1))


def _integers(column: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield the forms of a column of numbers: as they are, and as differences."""
    if not all(value is None or (type(value) in (int, float) and abs(value) < _MOST) for value in column):
        return
    for per in _PER:
        whole = [None if value is None else round(value * per) for value in column]
        if all(a is None or a / per == b for a, b in zip(whole, column, strict=True)):
            break
    else:
        return
    scale = {} if per == 1 else {"per": per}
    if (characters := characters_of(whole)) is not None:
        yield {"ints": characters, **scale}
    numbers = [value for value in whole if value is not None]
    if len(numbers) == len(whole):
        differences = [b - a for a, b in pairwise([0, *numbers])]
        base = differences[0]
        if abs(base) > _LARGEST:
            differences[0] = 0
            scale["from"] = base
        if (characters := characters_of(differences)) is not None:
            yield {"ints": characters, "sum": 1, **scale}


def _places(column: Sequence[Any]) -> dict[str, Any] | None:
    """Return a column as places in the list of its values; None unless they repeat."""
    distinct: dict[Any, int] = {}
    # 1, 1.0 and True are equal keys and other values
    keys = [(type(value), value if type(value) in _SCALARS else json.dumps(value)) for value in column]
    places = [distinct.setdefault(key, len(distinct)) for key in keys]
    if len(distinct) > len(column) // 2:
        return None
    first = dict(zip(reversed(places), reversed(column), strict=True))
    characters = characters_of(places)
    values_of = [first[place] for place in range(len(distinct))]
    return None if characters is None else {"ints": characters, "set": values_of}


def _fields(column: Sequence[Any]) -> dict[str, Any] | None:
    """Return a column of objects with the same keys as a table; None for others are its rows
    `none`.
    """
    objects = [value for value in column if value is not None]
    if not objects or not all(isinstance(value, dict) and value for value in objects):
        return None
    names = tuple(objects[0])
    if any(tuple(value) != names for value in objects):
        return None
    table = {name: [value[name] for value in objects] for name in names}
    none = [at for at, value in enumerate(column) if value is None]
    return {"fields": compact_table(table), "none": short_form(none)}


def characters_of(whole: Sequence[int | None]) -> str | None:
    """Return a character for each integer, None if one is too large."""
    distinct = set(whole)
    if any(value is not None and abs(value) > _LARGEST for value in distinct):
        return None
    characters = {value: _character(value) for value in distinct}
    return "".join([characters[value] for value in whole])


def _character(value: int | None) -> str:
    if value is None:
        return _NULL
    code = _FIRST_CODE + (2 * value if value >= 0 else -2 * value - 1)
    code += code >= _BACKSLASH
    return chr(code + len(_SURROGATES) if code >= _SURROGATES.start else code)
