"""Comparison of answers with expected answers. Pure: nothing is run and nothing is evaluated.

Values of Python's own types are encoded as in `assertions`: `{"$tuple": [1, 2]}`.

Output is compared word by word, so white space does not count. An integer equals the same text,
also with a fraction of zeros: 10.0 is 10, 0010 and +10 are not. A number may differ by the absolute
or relative tolerance where the expected one has a fraction or exponent.
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


def same_output(expected: str, output: str, tolerance: float) -> bool:
    """Return whether a program's output is the expected one."""
    left = expected.split()
    right = output.split()
    return len(left) == len(right) and all(
        _same_word(one, other, tolerance) for one, other in zip(left, right, strict=True)
    )


def same_value(expected: Any, actual: Any, tolerance: float) -> bool:
    """Return whether a function's return value is the expected one; both in their JSON form, in
    which tuples are lists.

    A bool is not a number, 1 equals 1.0, and `tolerance` applies where the expected number is a
    float.
    """
    if isinstance(expected, bool) or isinstance(actual, bool) or expected is None or actual is None:
        return expected is actual
    if isinstance(expected, (int, float)) and isinstance(actual, (int, float)):
        return expected == actual or (isinstance(expected, float) and _close(expected, actual, tolerance))
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(
            same_value(one, other, tolerance) for one, other in zip(expected, actual, strict=True)
        )
    if isinstance(expected, dict) and isinstance(actual, dict):
        return expected.keys() == actual.keys() and all(
            same_value(value, actual[key], tolerance) for key, value in expected.items()
        )
    return isinstance(expected, str) and isinstance(actual, str) and expected == actual


def same_python(expected: Any, actual: Any) -> bool:
    """Return whether two encoded values are equal in Python, ignoring modified arguments."""
    return python_key(_value(expected)) == python_key(_value(actual))


def python_key(value: Any) -> str:
    """Return a text that is equal for two values if and only if Python considers them equal (1,
    1.0, True; sets), or both are NaN.
    """
    if isinstance(value, (bool, int, float)):
        return str(int(value)) if isinstance(value, int) or value.is_integer() else repr(value)
    if isinstance(value, list):
        return f"[{','.join(map(python_key, value))}]"
    if not isinstance(value, dict):
        return json.dumps(value)
    tag, content = _decoded(value)
    if tag in ("$set", "$frozenset") and isinstance(content, list):
        return f"set[{','.join(sorted(map(python_key, content)))}]"
    if tag and not (tag == "$dict" and _are_pairs(content)):
        return tag + python_key(content)
    return f"dict[{','.join(sorted(f'{python_key(key)}:{python_key(one)}' for key, one in _pairs(content)))}]"


def as_json(value: Any) -> Any:
    """Return the plain JSON form of an encoded value, ignoring modified arguments: tuples and sets
    are lists, keys are text.

    Raises:
        ValueError: there is no such form.
    """
    value = _value(value)
    if isinstance(value, list):
        return [as_json(one) for one in value]
    if not isinstance(value, dict):
        return value
    tag, content = _decoded(value)
    if tag in ("$tuple", "$set", "$frozenset", "$range"):
        return as_json(content)
    if tag and not (tag == "$dict" and _are_pairs(content)):
        raise ValueError(f"a {content if tag == '$other' else tag[1:]} has no JSON form")
    return {key if isinstance(key, str) else json.dumps(key): as_json(one) for key, one in _pairs(content)}


def with_sorted_sets(plain: Any, answer: Any) -> Any:
    """Return the JSON value `plain` with its lists in the order of `as_json` where the encoded
    `answer` has a set.
    """
    answer = _value(answer)
    tag, content = _decoded(answer) if isinstance(answer, dict) else ("", answer)
    if tag in ("$set", "$frozenset") and isinstance(plain, list):
        return sorted(plain, key=json.dumps)
    if isinstance(plain, list) and isinstance(content, list) and len(plain) == len(content):
        return [with_sorted_sets(one, other) for one, other in zip(plain, content, strict=True)]
    return plain


def no_extra_non_finite(value: Any, expected: Any) -> bool:
    """Return whether every non-finite number of `value` also occurs in `expected`."""
    return not Counter(_non_finite(value)) - Counter(_non_finite(expected))


def _non_finite(value: Any) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield repr(value)
    elif isinstance(value, (list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _non_finite(one)


def _decoded(value: dict[str, Any]) -> tuple[str, Any]:
    """Return the tag and the value of an encoded type, or no tag and the object itself for a plain
    object.
    """
    tag = next(iter(value), "")
    return (tag, value[tag]) if tag.startswith("$") and len(value) == 1 else ("", value)


def _value(answer: Any) -> Any:
    """Return the return value of an answer, without the modified arguments."""
    parts = answer.get("$changed") if isinstance(answer, dict) else None
    return parts[0] if isinstance(parts, list) and parts else answer


def _are_pairs(content: Any) -> bool:
    return isinstance(content, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in content)


def _pairs(content: Any) -> Iterable[tuple[Any, Any]]:
    return content.items() if isinstance(content, dict) else ((key, one) for key, one in content)


def same_kind(one: Any, other: Any) -> bool:
    """Return whether two JSON values are of the same type; int and float are one type, bool is
    another.
    """
    return {type(one), type(other)} <= {int, float} or type(one) is type(other)


def _same_word(expected: str, word: str, tolerance: float) -> bool:
    if expected == word:
        return True
    if max(len(expected), len(word)) > _LONGEST_NUMBER or not (
        _NUMBER.fullmatch(expected) and _NUMBER.fullmatch(word)
    ):
        return False
    if _WHOLE.fullmatch(expected):
        whole, _, rest = word.partition(".")
        return whole == expected and not rest.strip("0")
    if _WHOLE.fullmatch(word) and not _PLAIN.fullmatch(word):
        return False
    return _close(float(expected), float(word), tolerance)


def _close(expected: float, actual: float, tolerance: float) -> bool:
    try:
        return math.isfinite(expected) and math.isclose(
            expected, actual, rel_tol=tolerance, abs_tol=tolerance
        )
    except OverflowError:  # an integer beyond the range of floats
        return False
