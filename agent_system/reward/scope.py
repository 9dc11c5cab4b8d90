"""Which of an episode's team rewards belong to which call.

An environment pays the team at two kinds of moment: `act` pays right after a call, `step` pays at the end of a turn. Both are kept
where they arrived (`Sample.act_reward`, `EpisodeRecord.turn_rewards`); everything here is derived from these.
"""

from __future__ import annotations

from agent_system.record import EpisodeRecord, Sample


def team_rewards(record: EpisodeRecord, scope: str) -> list[float]:
    """The team reward of every sample of an episode, in their order.

    - `episode`: the sum over the episode, the same for all (Dr. MAS, arXiv 2602.08847).
    - `turn`: what arrived in the sample's turn: all `act` of that turn and its `step`.
    - `call`: what arrived right after the sample's own action (AT-GRPO, arXiv 2510.11062): its own `act`, and the `step` for the
      call whose action ended the turn, which is the turn's last one. An environment without `act` cannot tell calls of a turn
      apart: each gets the turn's `step`.
    """
    if scope == "episode":
        return [record.team_reward] * len(record.samples)
    if scope == "turn":
        acts = [0.0] * len(record.turn_rewards)
        for s in record.samples:
            acts[s.turn - 1] += s.act_reward or 0.0
        return [acts[s.turn - 1] + record.turn_rewards[s.turn - 1] for s in record.samples]
    last = {s.turn: s.call for s in record.samples}
    return [_own(s, record.turn_rewards[s.turn - 1], last[s.turn] == s.call) for s in record.samples]


def _own(sample: Sample, step: float, ended_turn: bool) -> float:
    if sample.act_reward is None:
        return step
    return sample.act_reward + step if ended_turn else sample.act_reward


def step_rewards(record: EpisodeRecord, alpha: float) -> list[float]:
    """`alpha * arrived + local` of every sample, where a team reward arrives at each agent's latest call before it.

    Between two calls of an agent the world moves on: others act, the turn ends. What the team is paid in that time follows from
    the first of the two, so it belongs to it. A `step`'s reward goes to the last call of each agent in that turn (in an earlier
    one for an agent that was silent); summed over an agent's calls no reward counts twice, and none is lost once it has spoken.
    """
    arrived = [0.0] * len(record.samples)
    latest: dict[str, int] = {}
    by_turn: dict[int, list[int]] = {}
    for index, sample in enumerate(record.samples):
        by_turn.setdefault(sample.turn, []).append(index)

    def pay(amount: float | None) -> None:
        if amount:
            for index in latest.values():
                arrived[index] += amount

    for turn, at_the_end in enumerate(record.turn_rewards, start=1):
        for index in by_turn.get(turn, ()):
            latest[record.samples[index].agent_id] = index
            pay(record.samples[index].act_reward)
        pay(at_the_end)
    return [alpha * team + s.local_reward for team, s in zip(arrived, record.samples, strict=True)]
