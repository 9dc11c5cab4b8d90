"""How a configuration key is declared: its type (the annotation), its default and its meaning in one place."""

from __future__ import annotations

import copy
from dataclasses import field, fields, is_dataclass
from typing import Any, get_type_hints


def key(default: Any, meaning: str) -> Any:
    """Declare a key of a config dataclass; `meaning` ends up in docs/config.md."""
    if isinstance(default, (list, dict)) or is_dataclass(default):
        return field(default_factory=lambda: copy.deepcopy(default), metadata={"meaning": meaning})
    return field(default=default, metadata={"meaning": meaning})


def section(cls: type) -> Any:
    """Declare a sub-section that is itself a config dataclass."""
    return field(default_factory=cls)


def describe(cls: type, prefix: str = "") -> list[tuple[str, str, Any, str]]:
    """All keys under `cls` as rows (dotted key, type, default, meaning)."""
    rows: list[tuple[str, str, Any, str]] = []
    hints = get_type_hints(cls)
    instance = cls()
    for f in fields(cls):
        name = f"{prefix}{f.name}"
        value = getattr(instance, f.name)
        if is_dataclass(value) and "meaning" not in f.metadata:
            rows += describe(type(value), name + ".")
        else:
            hint = hints[f.name]
            rows.append((name, getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint), value, f.metadata["meaning"]))
    return rows
