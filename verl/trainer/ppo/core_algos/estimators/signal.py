"""Groups that have nothing to say: one alone, or all equal."""

from __future__ import annotations

from typing import Any

import numpy as np

from verl.trainer.ppo.core_algos.estimators.outcome import Compared, singleton_advantage
from verl.trainer.ppo.core_algos.grouping import GroupStats


def settle(compared: Compared, stats: GroupStats, relative: np.ndarray, config: Any) -> np.ndarray:
    """`relative` `[n_units]`, but exactly 0 for equal scores and for what is not real, and `config.singleton` for a group of one."""
    groups = compared.groups
    settled = np.where(stats.constant[groups] | ~compared.valid, 0.0, relative)
    alone = (stats.count[groups] == 1) & compared.valid
    return np.where(alone, singleton_advantage(compared.scores, config), settled) if alone.any() else settled


def silent_units(compared: Compared, stats: GroupStats, config: Any) -> np.ndarray:
    """Units whose group says nothing of them, `[n_units]` bool: one of equal scores, or of one without `config.singleton="raw"`."""
    groups = compared.groups
    alone = (stats.count[groups] == 1) & (singleton_advantage(compared.scores, config) is compared.scores)
    return ~compared.valid | (stats.constant[groups] & ~alone)
