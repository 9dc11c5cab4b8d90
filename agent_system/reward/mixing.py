"""The mixed reward of a call."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

Rewards = TypeVar("Rewards", float, np.ndarray)


def mix(team: Rewards, local: Rewards, alpha: float) -> Rewards:
    """Return `alpha * team + local` (AT-GRPO, arXiv 2510.11062, the mixed reward; alpha 1 and local 0 is Dr.
    MAS).

    Keys: `reward.alpha`, `reward.team_scope`.
    Use when: the environment rewards single calls (tests passed, a useful move) in addition to the team.
    Fails when: local rewards can be earned without helping the team and alpha is small: agents then optimize
    their own reward only.
    """
    return alpha * team + local
