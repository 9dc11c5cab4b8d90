"""Propagation of an episode's team reward back along its calls 1..m (`reward.propagation`).

Local rewards are scaled to 0..1 first, so that `alpha` has the same weight in every environment and `theta`
is a share:

    uniform      b_j = R
    discounted   b_j = gamma^(m - j) * R
    threshold    b_m = R;  b_j = b_(j+1) if local_(j+1) >= theta, or call j+1 was given no local reward, else 0

The reward of a call is `alpha * b_j + local_j`. With `threshold`, a call with a low local reward cuts the
credit of all earlier calls; a call without a local reward cuts none. A missing local reward counts as 0 in
the call's own reward, scaled like the others. The generations of a call (rounds of a `ToolAgent`, a summary
before it) count as one call, with the local reward of the last one.
No paper: the rule is this project's; `discounted` is the return of a reward at the end of the episode.

Keys: `reward.propagation.mode`, `reward.propagation.gamma`, `reward.propagation.theta`,
`reward.propagation.theta_quantile`, `reward.propagation.theta_step`,
`reward.propagation.local_range`, `reward.propagation.min_pass_rate`.
Use when: each agent builds on the work of the one before and the environment rewards each call, so that local
rewards show which failed.
Fails when: local rewards correlate little with a call's effect on the outcome: `threshold` then cuts credit
at random.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from agent_system.errors import AgentSystemError
from verl.trainer.config.reward import PropagationConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CallChains:
    """The samples of all episodes, one episode after the other; arrays of `[samples]`.

    Attributes:
        episode: number of the episode, from 0.
        hop: number of the call in its episode, from 1; the generations of a call share it.
        hops: calls of its episode.
        final: whether it is the last generation of its call, whose local reward is the call's.
        team: the episode's team reward.
        local: the sample's local reward, 0 where it has none.
        has_local: whether the sample has a local reward.
        agent_ids: agent of each sample.
    """

    episode: np.ndarray
    hop: np.ndarray
    hops: np.ndarray
    final: np.ndarray
    team: np.ndarray
    local: np.ndarray
    has_local: np.ndarray
    agent_ids: Sequence[str]


@dataclass(frozen=True)
class PropagationResult:
    """The rewards credited to samples, `[samples]`, with metrics.

    Attributes:
        team: b_j.
        local: local rewards, scaled to 0..1.
        metrics: `reward/propagation/pass_rate`, `theta` and `fallback` (threshold only).
    """

    team: np.ndarray
    local: np.ndarray
    metrics: dict[str, float] = field(default_factory=dict)


def propagate(chains: CallChains, settings: PropagationConfig) -> PropagationResult:
    """Return the rewards of every sample. Raise AgentSystemError for a local reward outside
    `local_range`, with the agent and the value.
    """
    if settings.mode == "none":
        return PropagationResult(chains.team, chains.local)
    local = scaled(chains, settings.local_range)
    if settings.mode == "uniform":
        return PropagationResult(chains.team, local)
    if settings.mode == "discounted":
        return PropagationResult(chains.team * settings.gamma ** (chains.hops - chains.hop), local)
    return _threshold(chains, local, settings)


def scaled(chains: CallChains, local_range: Sequence[float]) -> np.ndarray:
    """Return local rewards as shares of `local_range`, 0..1; a missing one counts as 0, clipped to
    the range.
    """
    low, high = local_range
    outside = np.flatnonzero(chains.has_local & ((chains.local < low) | (chains.local > high)))
    if len(outside):
        first = outside[0]
        raise AgentSystemError(
            f"reward.propagation.local_range=[{low:g}, {high:g}], but a call of "
            f"{chains.agent_ids[first]} got the local reward {chains.local[first]:g} "
            f"({len(outside)} of {int(chains.has_local.sum())} local rewards are outside the range): "
            "set it to the lowest and the highest local reward of the environment"
        )
    return np.clip((chains.local - low) / (high - low), 0.0, 1.0)


def _threshold(chains: CallChains, local: np.ndarray, settings: PropagationConfig) -> PropagationResult:
    theta = settings.theta
    has_local = chains.has_local & chains.final
    if settings.theta_quantile is not None and has_local.any():
        theta = float(np.quantile(local[has_local], settings.theta_quantile))
    bad = has_local & (local < theta)
    links = chains.final & (chains.hop > 1)
    pass_rate = 1.0 - float(np.mean(bad[links])) if links.any() else 1.0
    fallback = pass_rate < settings.min_pass_rate
    if fallback:
        logger.warning(
            "only %.3g of the links between calls pass reward.propagation.theta=%.3g, fewer than "
            "reward.propagation.min_pass_rate=%.3g: in this step every call gets the full team reward",
            pass_rate, theta, settings.min_pass_rate,
        )  # fmt: skip
    last_bad = np.zeros(chains.episode[-1] + 1, dtype=np.int64)
    np.maximum.at(last_bad, chains.episode[bad], chains.hop[bad])
    # a bad call comes after this one in the same episode
    cut = chains.hop < last_bad[chains.episode]
    team = chains.team if fallback else np.where(cut, 0.0, chains.team)
    metrics = {"pass_rate": pass_rate, "theta": theta, "fallback": float(fallback)}
    return PropagationResult(
        team, local, {f"reward/propagation/{name}": value for name, value in metrics.items()}
    )
