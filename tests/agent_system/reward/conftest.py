"""Episodes written down by hand."""

from __future__ import annotations

from collections.abc import Sequence

from agent_system.record import EpisodeRecord, RewardTerms, Sample, SampleIdentity, SampleRequest
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
        agent_id=agent_id,
        text="",
        action="",
        valid=valid,
        fields={},
        identity=SampleIdentity(policy_id=agent_id, wg_id=agent_id, turn=turn, call=number),
        request=SampleRequest(prompt_text="", prompt_ids=(1,), max_tokens=10),
        generation=generation,
        rewards=RewardTerms(act_reward=act, local_reward=local or 0.0, local_given=local is not None),
    )


def episode(
    samples: Sequence[Sample], turn_rewards: Sequence[float], name: str = "e", failure: str | None = None
) -> EpisodeRecord:
    """An episode of these calls, one after the other, whose turns ended with these team rewards."""
    samples = [s.with_identity(prior_replies=i, order=i) for i, s in enumerate(samples)]
    team = sum(s.rewards.act_reward or 0.0 for s in samples) + sum(turn_rewards)
    return EpisodeRecord(
        uid="g",
        traj_uid=name,
        task_id="t",
        data_source="",
        index=0,
        samples=tuple(samples),
        team_reward=team,
        turns=len(turn_rewards),
        failure=failure,
        turn_rewards=tuple(turn_rewards),
    )


def chain(locals_: Sequence[float | None], team: float, name: str = "e") -> EpisodeRecord:
    """One turn of calls with these local rewards (None: none was given), which ends with `team`."""
    return episode([call(f"A{i}", 1, i, local=local) for i, local in enumerate(locals_)], [team], name)
