"""Names as folders and metrics have them, and what a message says about one that nobody knows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the known name nearest to `name`, or an empty string."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def slug(name: str) -> str:
    """Lower-case letters, digits and underscores only: a name for folders, metrics and adapters."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def value_at(config: Any, key: str) -> Any:
    """The value at a dotted key of nested objects."""
    return reduce(getattr, key.split("."), config)


def own_key(config: Any, name: str, default: Any) -> Any:
    """The value of a key of a config (a dict, an OmegaConf, a dataclass); `default` without a config, or with one that lacks the key."""
    if config is None:
        return default
    return config.get(name, default) if isinstance(config, Mapping) else getattr(config, name, default)
