"""Shaping: the transformation of a call's mixed reward before penalties (`reward.shaping`).

The names are PettingLLMs' (the code of AT-GRPO, arXiv 2510.11062). Three things differ, so that the last call
of any episode keeps its whole reward: turns and calls are counted relative to the length of the episode that
was played, not to a configured maximum (an early success is not worth less than a late one); the last turn's
discount is 1, not gamma; and the shaped quantity is the call's own mixed reward, not only the final one of
the environment.

    turn_weighted, hop_weighted  r * turn / turns, r * call / calls
    discount, hop_discount       r * gamma^(turns - turn), r * gamma^(calls - call)
    binary                       1 if r > threshold, else 0
    normalized                   clip(r, -1, 1)

Keys: `reward.shaping`, `reward.shaping_by`.
Use when: later calls decide the outcome (weighted, discount), or single rewards dominate a group (binary,
normalized).
Fails when: calls of different turns are compared in one group: early calls then have lower rewards by shaping
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from verl.trainer.config.reward import SHAPINGS, RewardConfig


@dataclass(frozen=True)
class CallPositions:
    """Position of each sample in its episode, arrays of `[samples]`.

    Attributes:
        turn, turns: number of its turn, from 1, and turns of the episode.
        hop, hops: number of its call in the episode, from 1, and calls of the episode; the
            generations of a call share its number.
    """

    turn: np.ndarray
    turns: np.ndarray
    hop: np.ndarray
    hops: np.ndarray


def default(rewards: np.ndarray, at: CallPositions, settings: RewardConfig) -> np.ndarray:
    """Return `r`."""
    return rewards


def turn_weighted(rewards: np.ndarray, at: CallPositions, settings: RewardConfig) -> np.ndarray:
    """Return `r * turn / turns`: later turns weigh more, linearly."""
    return rewards * at.turn / at.turns


def _number(settings: RewardConfig, default: float) -> float:
    return default if settings.shaping_by is None else settings.shaping_by


def discount(rewards: np.ndarray, at: CallPositions, settings: RewardConfig) -> np.ndarray:
    """Return `r * gamma^(turns - turn)`: earlier turns weigh less, by `reward.shaping_by` per
    turn.
    """
    return rewards * _number(settings, 0.9) ** (at.turns - at.turn)


def hop_weighted(rewards: np.ndarray, at: CallPositions, settings: RewardConfig) -> np.ndarray:
    """Return `r * hop / hops`: later calls weigh more, linearly."""
    return rewards * at.hop / at.hops


def hop_discount(rewards: np.ndarray, at: CallPositions, settings: RewardConfig) -> np.ndarray:
    """Return `r * gamma^(hops - hop)`: earlier calls weigh less, by `reward.shaping_by` per
    call.
    """
    return rewards * _number(settings, 0.9) ** (at.hops - at.hop)


def binary(rewards: np.ndarray, at: CallPositions, settings: RewardConfig) -> np.ndarray:
    """Return `1 if r > threshold else 0`, with `reward.shaping_by` as the threshold."""
    return (rewards > _number(settings, 0.5)).astype(np.float64)


def normalized(rewards: np.ndarray, at: CallPositions, settings: RewardConfig) -> np.ndarray:
    """Return `clip(r, -1, 1)`: no single reward dominates a group."""
    return np.clip(rewards, -1.0, 1.0)


Shaping = Callable[[np.ndarray, CallPositions, RewardConfig], np.ndarray]
SHAPING_FUNCTIONS: dict[str, Shaping] = {name: globals()[name] for name in SHAPINGS}
