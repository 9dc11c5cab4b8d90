"""Keys that a config written for verl does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def own_key(config: Any, name: str, default: Any) -> Any:
    """The value of a key of a config (a dict, an OmegaConf, a dataclass); `default` without a config, or with one that lacks the key."""
    if config is None:
        return default
    return config.get(name, default) if isinstance(config, Mapping) else getattr(config, name, default)
