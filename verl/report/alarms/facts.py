"""What rules read of the records of a step: counts, not texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RunFacts:
    """What the episodes of a run say, by split and step."""

    def add(self, step: int, split: str, number: int, episode: Mapping[str, Any]) -> None:
        """Read an episode."""
