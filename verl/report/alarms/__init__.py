"""Alarms of a run: what is wrong with it, worst first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def raised_alarms(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the alarms of a run as its index describes it (`verl.report.index`), worst first."""
    return []


def is_solved(run: Mapping[str, Any]) -> bool:
    """Return whether nothing is left to learn."""
    return False
