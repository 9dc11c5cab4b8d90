"""Values of files that anybody may have written, as JSON that a browser reads, without secrets."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from verl.utils.names import without_password

# Names of keys whose text is a secret; the name of an environment variable (`api_key_env`) is none.
_SECRET = re.compile(
    r"(?:^|[_.\-])(?:api_?key|secret(?:_?key)?|password|passwd|authorization|credentials?|"
    r"private_?key|access_?key|(?<!pad_)(?<!eos_)(?<!bos_)(?<!unk_)(?<!sep_)(?<!mask_)token)$",
    re.IGNORECASE,
)
MASK = "***"
# Digits of a rounded number: those of float32.
_DIGITS = ".9g"
_MOST_DEPTH = 40


def number(value: Any) -> float | int | None:
    """Return a finite number with nine digits, of one above a million (a time) three decimals, a
    boolean as 0 or 1; None for anything else.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        if value.is_integer() and abs(value) < 2**53:
            return int(value)
        return round(value, 3) if abs(value) > 1e6 else float(format(value, _DIGITS))
    if isinstance(value, int) and abs(value) < 2**63:
        return int(value)
    return None


def text(value: Any) -> str:
    """Return a text as it is, None as an empty one, other values as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(clean(value))


def printable(value: str) -> str:
    """Return a text in one line for a terminal: characters that are not printed, such as control
    characters, marks of direction and lone surrogates, as their escapes.
    """
    line = " ".join(value.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)


def is_secret(name: str) -> bool:
    """Return whether a key has the name of a secret."""
    return _SECRET.search(name) is not None


def clean(value: Any, name: str = "", depth: int = 0) -> Any:
    """Return a value read from JSON or YAML as JSON that a browser reads: non-finite numbers are
    null, texts of keys named like secrets and passwords in URLs are masked, what is nested deeper
    than 40 levels is a mark.
    """
    if depth > _MOST_DEPTH:
        return "(nested too deeply)"
    if isinstance(value, Mapping):
        return {str(k): clean(v, str(k), depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(v, name, depth + 1) for v in value]
    if isinstance(value, str):
        if value and is_secret(name):
            return MASK
        return without_password(value) if "://" in value and len(value) < 2000 else value
    if value is None or isinstance(value, bool):
        return value
    return number(value) if isinstance(value, (int, float)) else str(value)


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as dotted keys; lists and empty mappings are values."""
    if not isinstance(config, Mapping) or not config:
        return {prefix: config} if prefix else {}
    keys: dict[str, Any] = {}
    for name, value in config.items():
        keys |= flat(value, f"{prefix}.{name}" if prefix else str(name))
    return keys


def to_bytes(value: Any) -> bytes:
    """Return compact JSON in UTF-8, in which a lone surrogate is an escape and so stays what it is."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace")
