"""The mixed reward of a call."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

Rewards = TypeVar("Rewards", float, np.ndarray)


def mix(team: Rewards, local: Rewards, alpha: float) -> Rewards:
    """Return `alpha * team + local` (AT-GRPO, arXiv 2510.11062, the mixed reward; alpha 1 and local 0 is Dr. MAS)."""
    return alpha * team + local
