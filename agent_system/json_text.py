"""JSON that a program or a model wrote, read with limits."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

MAX_NESTING = 200
# Arguments and values of tests are integers of more digits than Python reads and writes by default;
# of this number it takes milliseconds.
MAX_DIGITS = 20_000
if 0 < sys.get_int_max_str_digits() < MAX_DIGITS:
    sys.set_int_max_str_digits(MAX_DIGITS)


def parse_json(text: str) -> Any:
    """Parse JSON written by a program. Raise ValueError for other text, more than `MAX_NESTING`
    levels or `MAX_DIGITS` digits.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deep") from error
    level: list[Any] = [value]
    for _ in range(MAX_NESTING):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return value
    raise ValueError(f"JSON that is nested more than {MAX_NESTING} deep")


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
