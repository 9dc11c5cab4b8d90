"""What replayed decisions say: how much of the outcome is due to an agent's choice, and whether
advantages know it.

Of a decision with arms `a` (the reply of the episode and its alternatives) and `R` continuations each,

    v = (MS between arms - MS within arms) / R      variance of the expected team reward due to the choice
    d = mean of the reply's rewards - mean of the alternatives' rewards

`v` is the one-way random-effects estimate: unbiased, and below 0 about as often as above where a
choice does not matter. Means of `v` are taken over decisions, with the weight that makes up for the
even spread over agents and turns. An effect is the root of such a mean.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agent_system.replay.arms import Decision, DecisionOutcome

RESAMPLES = 1000  # of the bootstrap, and shuffles
TAIL = 2.5  # percent on each side of an interval
FEW = 5  # decisions of an agent in a turn that have a row and shuffles of their own
ENOUGH = 8  # decisions for a rank correlation
RELIABLE = 0.3
DIGITS = 6  # values that differ by less are tied
ZERO = 1e-8  # an advantage that trains nothing


@dataclass(frozen=True)
class Measured:
    """Numbers of the decisions that were restored, each `[n]`.

    Attributes:
        outcomes: the decisions.
        weight: how many decisions of the step each stands for.
        choice: `v` of the module.
        target: `d` of the module.
        noise: variance of the error of `target`.
        task: number of the task.
        other: whether an alternative was another action.
        of_step: number of decisions of the step by agent and turn, drawn or not.
    """

    outcomes: Sequence[DecisionOutcome]
    weight: np.ndarray
    choice: np.ndarray
    target: np.ndarray
    noise: np.ndarray
    task: np.ndarray
    other: np.ndarray
    of_step: Mapping[tuple[str, int], int]

    @classmethod
    def of(cls, outcomes: Sequence[DecisionOutcome], decisions: Sequence[Decision]) -> Measured:
        """Return the numbers of outcomes; `decisions` are all of the step, of which they were drawn."""
        restored = [outcome for outcome in outcomes if not outcome.cause]
        of_step = Counter(decision.stratum for decision in decisions)
        of_sample = Counter(outcome.decision.stratum for outcome in restored)
        tasks = {uid: i for i, uid in enumerate(dict.fromkeys(o.decision.episode.uid for o in restored))}
        parts = np.array([_parts(np.array(outcome.rewards)) for outcome in restored]).reshape(-1, 3)
        return cls(
            restored,
            np.array([of_step[o.decision.stratum] / of_sample[o.decision.stratum] for o in restored]),
            parts[:, 0],
            parts[:, 1],
            parts[:, 2],
            np.array([tasks[o.decision.episode.uid] for o in restored], dtype=np.int64),
            np.array([len(set(o.actions)) > 1 for o in restored], dtype=bool),
            of_step,
        )

    def places(self, agent: str | None, turn: int | None = None) -> np.ndarray:
        """Return the indices of an agent's decisions, in one turn or all; None: of all agents."""
        return np.array(
            [
                i
                for i, outcome in enumerate(self.outcomes)
                if agent in (None, outcome.decision.row.agent_id)
                and turn in (None, outcome.decision.row.identity.turn)
            ],
            dtype=np.int64,
        )

    def agents(self) -> list[str]:
        """Return the agents, in the order in which the team calls them."""
        first: dict[str, tuple[int, int]] = {}
        for outcome in self.outcomes:
            row = outcome.decision.row
            first[row.agent_id] = min(first.get(row.agent_id, row.identity.call_key), row.identity.call_key)
        return sorted(first, key=lambda name: first[name])


def _parts(rewards: np.ndarray) -> tuple[float, float, float]:
    """Return `v`, `d` and the variance of the error of `d` of rewards `[arms, continuations]`."""
    arms, times = rewards.shape
    means = rewards.mean(axis=1)
    between = times * means.var(ddof=1)
    within = rewards.var(axis=1, ddof=1).mean()
    others = means[1:]
    # of the reply's mean, and of the mean of a sample of alternatives
    noise = within / times + others.var(ddof=1) / (arms - 1)
    return (between - within) / times, means[0] - others.mean(), noise


def effects_table(measured: Measured, episodes: int, variance: float, seed: int) -> list[dict[str, Any]]:
    """Return the rows of the table: an agent in all turns (`turn` None), then in each turn that has
    enough decisions.

    Args:
        measured: the decisions.
        episodes: number of episodes of the step.
        variance: of their team rewards.
        seed: of the bootstrap over tasks.
    """
    rows = []
    for agent in measured.agents():
        of_agent = measured.places(agent)
        turns = Counter(measured.outcomes[i].decision.row.identity.turn for i in of_agent)
        with_rows = sorted(turn for turn, count in turns.items() if count >= FEW) if len(turns) > 1 else []
        for turn in (None, *with_rows):
            places = measured.places(agent, turn)
            # turns of which nothing was drawn, or restored, are taken to be as the others
            weight = measured.weight[places].sum()
            count = sum(
                number
                for name, number in measured.of_step.items()
                if name[0] == agent and turn in (None, name[1])
            )
            scale = episodes * variance * weight / count
            rows.append({"agent": agent, "turn": turn} | _effect(measured, places, scale, seed))
    return rows


def _effect(measured: Measured, places: np.ndarray, scale: float, seed: int) -> dict[str, Any]:
    """Return a row; `scale` is what the weighted sum of `v` is a share of."""
    weight = measured.weight[places]
    choice = weight * measured.choice[places]
    tasks = measured.task[places]
    names = np.unique(tasks)
    sums = np.array([[part[tasks == name].sum() for name in names] for part in (choice, weight)])
    resampled = np.random.default_rng(seed).multinomial(
        len(names), np.full(len(names), 1 / len(names)), size=RESAMPLES
    )
    sums_drawn = resampled @ sums.T
    low, high = np.percentile(_root(sums_drawn[:, 0] / sums_drawn[:, 1]), [TAIL, 100 - TAIL])
    shares = np.clip(np.percentile(sums_drawn[:, 0], [TAIL, 100 - TAIL]) / scale, 0, None) if scale else None
    return {
        "decisions": len(places),
        "effect": float(_root(choice.sum() / weight.sum())),
        "low": float(low),
        "high": float(high),
        "share": max(float(choice.sum() / scale), 0.0) if scale else None,
        "share_low": None if shares is None else float(shares[0]),
        "share_high": None if shares is None else float(shares[1]),
        "no_other_action": float(1 - np.average(measured.other[places], weights=weight)),
    }


def _root(variance: Any) -> Any:
    return np.sqrt(np.clip(variance, 0, None))


def estimator_rows(
    measured: Measured,
    advantages: Mapping[str, Mapping[Any, float]],
    tokens: Mapping[str, int],
    used: str,
    seed: int,
) -> list[dict[str, Any]]:
    """Return how the advantages of estimators go with `d`: a row over all agents, then one of each.

    Args:
        measured: the decisions.
        advantages: of every decision by its key, by estimator.
        tokens: that each estimator needs for the step.
        used: the estimator of the run.
        seed: of the shuffles.
    """
    agents = measured.agents()
    rows = []
    for name, values in advantages.items():
        for agent in (None, *(agents if len(agents) > 1 else ())):
            places = measured.places(agent)
            advantage = np.array([values[measured.outcomes[i].decision.key] for i in places])
            rows.append(
                {"name": name, "agent": agent, "used": name == used}
                | _agreement(measured, places, advantage, seed)
                | {"tokens": tokens[name]}
            )
    return rows


def reliability(measured: Measured, places: np.ndarray) -> float:
    """Return the share of the variance of `d` that is not its own error, 0 to 1; 0 where `d` does
    not vary.
    """
    variance = measured.target[places].var(ddof=1) if len(places) > 1 else 0.0
    if variance <= 0:
        return 0.0
    return float(np.clip(1 - measured.noise[places].mean() / variance, 0, 1))


def _agreement(measured: Measured, places: np.ndarray, values: np.ndarray, seed: int) -> dict[str, Any]:
    """Return the rank correlation of advantages with `d`, and that of shuffled advantages.

    Ranks are those within an agent's turn: advantages that one agent's rewards lift above another's say
    nothing about replies, and `d` is 0 in the mean for every agent.
    """
    strata = _strata([measured.outcomes[i].decision for i in places])
    target = _ranks_within(measured.target[places].round(DIGITS), strata)
    trust = reliability(measured, places)
    ranked = _ranks_within(values.round(DIGITS), strata)
    correlation = _correlation(ranked[None], target)[0]
    shuffled = np.tile(ranked, (RESAMPLES, 1))
    random = np.random.default_rng(seed)
    for members in strata:
        shuffled[:, members] = random.permuted(shuffled[:, members], axis=1)
    by_chance = _correlation(shuffled, target)
    defined = math.isfinite(correlation)
    low, high = np.percentile(by_chance, [TAIL, 100 - TAIL]) if defined else (None, None)
    # noise in the target hides agreement, but does not make any
    verdict = "inconclusive" if len(places) < ENOUGH or trust < RELIABLE else "does not"
    if len(places) >= ENOUGH and defined and correlation > high:
        verdict = "agrees"
    return {
        "spearman": float(correlation) if defined else None,
        "shuffled_low": None if low is None else float(low),
        "shuffled_high": None if high is None else float(high),
        "reliability": trust,
        "zero_advantages": float(np.mean(np.abs(values) <= ZERO)) if len(values) else None,
        "verdict": verdict,
    }


def _strata(decisions: Sequence[Decision]) -> list[list[int]]:
    """Return the places of the decisions of each agent and turn; turns with few of an agent together."""
    counts = Counter(decision.stratum for decision in decisions)
    strata = defaultdict(list)
    for i, decision in enumerate(decisions):
        agent, turn = decision.stratum
        strata[agent, turn if counts[decision.stratum] >= FEW else None].append(i)
    return list(strata.values())


def _ranks_within(values: np.ndarray, strata: Sequence[Sequence[int]]) -> np.ndarray:
    """Return ranks of values `[n]` within their strata, as shares of the stratum around its middle: -0.5 to
    0.5.
    """
    relative = np.zeros(len(values))
    for members in strata:
        relative[members] = (ranks(values[members]) - (len(members) + 1) / 2) / len(members)
    return relative


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks of values `[n]`, equal ones with their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[place])


def _correlation(rows: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the correlation of each row `[m, n]` with `target` `[n]`; NaN where one does not vary."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    other = target - target.mean()
    scale = np.sqrt((centred**2).sum(axis=1) * (other**2).sum())
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(scale > 0, centred @ other / scale, np.nan))
