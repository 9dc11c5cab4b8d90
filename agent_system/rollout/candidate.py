"""Candidates of tree sampling: replies of one call, each tried on a fork, and the choice of the one to
commit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from agent_system.env_caller import EnvHandle
from agent_system.environment import Outcome
from agent_system.rollout.call import Call, Reply
from verl.trainer.config.run import TreeConfig


@dataclass(frozen=True, slots=True)
class Candidate:
    """A reply and its outcome on its own fork.

    Attributes:
        number: index among the call's K replies, from 0.
        reply: the reply.
        env: the fork, after `act`.
        outcome: outcome of `act`.
        team, local: summed rewards of `act` and `score`; `local` with that of a reward model.
        terms: scores of a reward model.
    """

    number: int
    reply: Reply
    env: EnvHandle
    outcome: Outcome
    team: float
    local: float
    terms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CandidateSet:
    """A call, its scored candidates, the chosen candidate, and the greedy reply that they are compared with,
    if there is one.
    """

    call: Call
    candidates: Sequence[Candidate]
    winner: Candidate
    greedy: Candidate | None = None


def choose(settings: TreeConfig, rewards: Sequence[float], seed: int) -> int:
    """Return the index of the candidate to commit, given the candidates' rewards."""
    indices = range(len(rewards))
    draw = Random(seed)
    if settings.epsilon and draw.random() < settings.epsilon:
        return draw.randrange(len(rewards))
    if settings.select == "first":
        return 0
    if settings.select == "greedy":
        return max(indices, key=lambda i: rewards[i])
    if settings.select == "random":
        return draw.randrange(len(rewards))
    best = max(rewards)
    return draw.choices(indices, [math.exp((r - best) / settings.temperature) for r in rewards])[0]
