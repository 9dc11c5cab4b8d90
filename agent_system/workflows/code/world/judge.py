"""Whether an answer is the expected one. Pure: nothing is run and nothing is evaluated.

Values of Python's own types come as `assertions` writes them: `{"$tuple": [1, 2]}`.

Output is compared word by word, so white space does not count. A whole number is met by the same text alone, or with a fraction of
zeros: 0010 and +10 are not 10, which 10.0 is. A number with a fraction or exponent may be off by the tolerance, absolute or relative, where
the expected one has a fraction or exponent too.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,4})?", re.ASCII)
_WHOLE = re.compile(r"[-+]?\d+", re.ASCII)
_PLAIN = re.compile(r"-?(?:0|[1-9]\d*)", re.ASCII)
_LONGEST_NUMBER = 400


def same_output(expected: str, found: str, tolerance: float) -> bool:
    """Whether a program printed what is expected."""
    left, right = expected.split(), found.split()
    return len(left) == len(right) and all(_same_word(one, other, tolerance) for one, other in zip(left, right, strict=True))


def same_value(expected: Any, found: Any, tolerance: float) -> bool:
    """Whether a function returned what is expected; both as JSON has them, so that tuples are lists.

    A truth value is no number, 1 is 1.0, and numbers are close where the expected one is a float.
    """
    if isinstance(expected, bool) or isinstance(found, bool) or expected is None or found is None:
        return expected is found
    if isinstance(expected, (int, float)) and isinstance(found, (int, float)):
        return expected == found or (isinstance(expected, float) and _close(expected, found, tolerance))
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(same_value(one, other, tolerance) for one, other in zip(expected, found, strict=True))
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(same_value(value, found[key], tolerance) for key, value in expected.items())
    return isinstance(expected, str) and isinstance(found, str) and expected == found


def same_python(expected: Any, found: Any) -> bool:
    """Whether Python calls two values equal; both as they are written, without what a function did to its arguments."""
    return python_key(_value(expected)) == python_key(_value(found))


def python_key(value: Any) -> str:
    """A text that two values share just where Python calls them equal (1, 1.0 and True; sets in any order), or where both are NaN."""
    if isinstance(value, (bool, int, float)):
        return str(int(value)) if isinstance(value, int) or value.is_integer() else repr(value)
    if isinstance(value, list):
        return f"[{','.join(map(python_key, value))}]"
    if not isinstance(value, dict):
        return json.dumps(value)
    tag, held = _opened(value)
    if tag in ("$set", "$frozenset") and isinstance(held, list):
        return f"set[{','.join(sorted(map(python_key, held)))}]"
    if tag and not (tag == "$dict" and _are_pairs(held)):
        return tag + python_key(held)
    return f"dict[{','.join(sorted(f'{python_key(key)}:{python_key(one)}' for key, one in _pairs(held)))}]"


def as_json(value: Any) -> Any:
    """A value of Python's own types as JSON has it, without what a function did to its arguments: tuples and sets are lists, keys are text.

    Raises:
        ValueError: it has no such form.
    """
    value = _value(value)
    if isinstance(value, list):
        return [as_json(one) for one in value]
    if not isinstance(value, dict):
        return value
    tag, held = _opened(value)
    if tag in ("$tuple", "$set", "$frozenset", "$range"):
        return as_json(held)
    if tag and not (tag == "$dict" and _are_pairs(held)):
        raise ValueError(f"a {held if tag == '$other' else tag[1:]} has no JSON form")
    return {key if isinstance(key, str) else json.dumps(key): as_json(one) for key, one in _pairs(held)}


def in_order(written: Any, answer: Any) -> Any:
    """A value as JSON has it, its lists in the order of `as_json` where the answer, of Python's own types, is a set."""
    answer = _value(answer)
    tag, held = _opened(answer) if isinstance(answer, dict) else ("", answer)
    if tag in ("$set", "$frozenset") and isinstance(written, list):
        return sorted(written, key=json.dumps)
    if isinstance(written, list) and isinstance(held, list) and len(written) == len(held):
        return [in_order(one, other) for one, other in zip(written, held, strict=True)]
    return written


def is_as_finite(found: Any, expected: Any) -> bool:
    """Whether an answer has no number beyond all numbers, and none that is none (NaN), which the expected one does not have too."""
    return not Counter(_not_finite(found)) - Counter(_not_finite(expected))


def _not_finite(value: Any) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield repr(value)
    elif isinstance(value, (list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _not_finite(one)


def _opened(value: dict[str, Any]) -> tuple[str, Any]:
    """The tag and what it holds; no tag and the object itself where it is one."""
    tag = next(iter(value), "")
    return (tag, value[tag]) if tag.startswith("$") and len(value) == 1 else ("", value)


def _value(answer: Any) -> Any:
    """The value alone of an answer that also says what the function made of its arguments."""
    held = answer.get("$changed") if isinstance(answer, dict) else None
    return held[0] if isinstance(held, list) and held else answer


def _are_pairs(held: Any) -> bool:
    return isinstance(held, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in held)


def _pairs(held: Any) -> Iterable[tuple[Any, Any]]:
    return held.items() if isinstance(held, dict) else ((key, one) for key, one in held)


def same_kind(one: Any, other: Any) -> bool:
    """Whether two values, as JSON has them, are of one type; all numbers are of one, and a truth value is no number."""
    return {type(one), type(other)} <= {int, float} or type(one) is type(other)


def _same_word(expected: str, found: str, tolerance: float) -> bool:
    if expected == found:
        return True
    if max(len(expected), len(found)) > _LONGEST_NUMBER or not (_NUMBER.fullmatch(expected) and _NUMBER.fullmatch(found)):
        return False
    if _WHOLE.fullmatch(expected):
        whole, _, rest = found.partition(".")
        return whole == expected and not rest.strip("0")
    if _WHOLE.fullmatch(found) and not _PLAIN.fullmatch(found):
        return False
    return _close(float(expected), float(found), tolerance)


def _close(expected: float, found: float, tolerance: float) -> bool:
    try:
        return math.isfinite(expected) and math.isclose(expected, found, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # a whole number beyond all floats
        return False
