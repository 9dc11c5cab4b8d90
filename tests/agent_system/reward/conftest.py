"""Episodes written down by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent_system.record import EpisodeRecord, Sample
from verl.protocol.generate import Generation


def call(
    agent_id: str,
    turn: int,
    number: int,
    *,
    act: float | None = None,
    local: float | None = None,
    valid: bool = True,
    tokens: int = 4,
) -> Sample:
    """One call; `act` is what the environment paid the team right after it, `tokens` the length of the reply
    (of at most 10).
    """
    generation = Generation(tuple(range(tokens)), (-0.5,) * tokens, "stop")
    return Sample(
        agent_id, agent_id, agent_id, turn, number, 0, "", (1,), generation, "", "", valid, {}, 0, 0, 0,
        max_tokens=10, act_reward=act, local_reward=local or 0.0, local_given=local is not None,
    )  # fmt: skip


def episode(
    samples: Sequence[Sample], turn_rewards: Sequence[float], name: str = "e", failure: str | None = None
) -> EpisodeRecord:
    """An episode of these calls, one after the other, whose turns ended with these team rewards."""
    samples = [replace(s, prior_replies=i, order=i) for i, s in enumerate(samples)]
    team = sum(s.act_reward or 0.0 for s in samples) + sum(turn_rewards)
    return EpisodeRecord(
        "g",
        name,
        "t",
        "",
        0,
        tuple(samples),
        team,
        len(turn_rewards),
        failure=failure,
        turn_rewards=tuple(turn_rewards),
    )


def chain(locals_: Sequence[float | None], team: float, name: str = "e") -> EpisodeRecord:
    """One turn of calls with these local rewards (None: none was given), which ends with `team`."""
    return episode([call(f"A{i}", 1, i, local=local) for i, local in enumerate(locals_)], [team], name)
