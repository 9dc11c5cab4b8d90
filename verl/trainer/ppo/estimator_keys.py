"""Values of estimators' own keys that cannot be used, found before anything starts."""

from __future__ import annotations

import math
from typing import Any

from verl.trainer.config.names import GAE_LEVELS, GIGPO_MODES, RAE_ORDERS


def check_estimator_keys(settings: Any, where: str = "algorithm") -> None:
    """Look at `gamma`, `lam`, the keys under `gae`, `gigpo`, `rae` and `gdpo_reward_*` of an `AlgorithmConfig`.

    Raises ValueError naming the key below `where`, its value and what is expected.
    """
    gae, gigpo, rae = settings.gae, settings.gigpo, settings.rae
    named = (("gae.level", gae.level, GAE_LEVELS), ("gigpo.mode", gigpo.mode, GIGPO_MODES), ("rae.order", rae.order, RAE_ORDERS))
    for key, value, known in named:
        if value not in known:
            raise ValueError(f"{where}.{key}={value!r}: expected one of {', '.join(known)}")
    if not 0 < settings.gigpo.similarity_thresh <= 1:
        raise ValueError(f"{where}.gigpo.similarity_thresh={settings.gigpo.similarity_thresh}: expected more than 0 and at most 1")
    for key, number in (("gigpo.step_advantage_w", settings.gigpo.step_advantage_w), ("gamma", settings.gamma), ("lam", settings.lam)):
        if not math.isfinite(number):
            raise ValueError(f"{where}.{key}={number}: expected a finite number")
    if not 0 <= settings.rae.decay < 1:
        raise ValueError(f"{where}.rae.decay={settings.rae.decay}: expected at least 0 and less than 1")
    keys, weights = settings.gdpo_reward_keys, settings.gdpo_reward_weights
    if settings.adv_estimator == "gdpo" and not keys:
        raise ValueError(f"{where}.adv_estimator=gdpo needs {where}.gdpo_reward_keys, such as [team_reward,local_reward]")
    if weights is not None and len(weights) != len(keys or ()):
        raise ValueError(f"{where}.gdpo_reward_weights has {len(weights)} entries for {len(keys or ())} gdpo_reward_keys; give one each")
    if weights is not None and not all(map(math.isfinite, weights)):
        raise ValueError(f"{where}.gdpo_reward_weights={weights}: expected finite numbers")
