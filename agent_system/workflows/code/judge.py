"""Whether an answer is the expected one. Pure: nothing is run and nothing is evaluated.

Output is compared word by word, so white space does not count. A whole number is met by the same text alone, or with a fraction of
zeros: 0010 and +10 are not 10, which 10.0 is. A number with a fraction or exponent may be off by the tolerance, absolute or relative, where
the expected one has a fraction or exponent too.
"""

from __future__ import annotations

import math
import re
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
