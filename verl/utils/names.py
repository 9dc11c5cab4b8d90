"""Names in folders, metrics and messages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the known name nearest to `name`, whatever its case, or an empty string."""
    by_folded = {k.lower(): k for k in known}
    near = difflib.get_close_matches(str(name).lower(), by_folded, n=1, cutoff=0.5)
    return f"; did you mean {by_folded[near[0]]!r}?" if near else ""


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


def without_password(url: str) -> str:
    """Return a URL as it may be shown, with `***` for the user and password that it may hold."""
    return re.sub(r"(?<=//)[^/?#]*@", "***@", url, count=1)
