"""Keys that a config written for verl does not have."""

from __future__ import annotations

from typing import Any


def own_key(config: Any, name: str, default: Any) -> Any:
    """The value of a key that is ours alone; `default` without a config, or with one of verl's, which cannot have it."""
    return default if config is None else getattr(config, name, default)
