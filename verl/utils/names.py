"""Names in folders, metrics and messages, and values of configuration keys by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import reduce
from hashlib import blake2b
from typing import Any


def did_you_mean(name: object, valid_names: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the known name nearest to `name`, if none is near whatever
    its case, or an empty string.
    """
    # of the longest name that a client may send, the comparison takes seconds
    names = list(valid_names)
    short_name = str(name)[:200]
    by_folded = {k.lower(): k for k in names}
    near = difflib.get_close_matches(short_name, names, n=1) or [
        by_folded[k] for k in difflib.get_close_matches(short_name.lower(), by_folded, n=1, cutoff=0.5)
    ]
    return f"; did you mean {near[0]!r}?" if near else ""


def error_line(
    error: BaseException, *, typed: bool = False, last: bool = False, most: int | None = None
) -> str:
    """Return one line of an error's message; the name of its type for an error without a message.

    Args:
        error: an error, such as of a library.
        typed: the name of its type comes before it.
        last: the last line instead of the first one.
        most: number of characters of the line.
    """
    kind = type(error).__name__
    lines = str(error).strip().splitlines()
    if not lines:
        return kind
    line = lines[-1 if last else 0][:most]
    return f"{kind}: {line}" if typed else line


def listed(names: Iterable[str], most: int = 8) -> str:
    """Return `a, b and 3 more`: the first `most` of the names, each once."""
    distinct = list(dict.fromkeys(names))
    return ", ".join(distinct[:most]) + (f" and {len(distinct) - most} more" if len(distinct) > most else "")


def slug(name: str) -> str:
    """Return a name of lower-case letters, digits and underscores only, for folders, metrics and
    adapters.
    """
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def draw_place(name: str) -> float:
    """Return a number in [0, 1) that orders names at random, always in the same way."""
    return int.from_bytes(blake2b(name.encode()).digest()[:8]) / 2**64


def value_at(config: Any, key: str) -> Any:
    """Return the value at a dotted key of nested objects."""
    return reduce(getattr, key.split("."), config)


def own_key(config: Any, name: str, default: Any) -> Any:
    """Return the value of a key of a config (dict, OmegaConf or dataclass); `default` if there is
    no config or it lacks the key.
    """
    if config is None:
        return default
    return config.get(name, default) if isinstance(config, Mapping) else getattr(config, name, default)


def without_password(url: str) -> str:
    """Return a URL for display, with any user and password replaced by `***`."""
    return re.sub(r"(?<=//)[^/?#]*@", "***@", url, count=1)
