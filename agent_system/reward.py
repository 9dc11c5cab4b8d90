"""From rewards of an environment to the reward of a sample, before a batch exists."""

from __future__ import annotations


def mix(team: float, local: float, alpha: float) -> float:
    """Return `alpha * team + local` (AT-GRPO, equation of the mixed reward; alpha 1 and local 0 is Dr. MAS)."""
    return alpha * team + local
