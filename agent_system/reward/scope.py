"""Assignment of an episode's team rewards to its calls.

An environment gives team rewards at two points: `act` right after a call, `step` at the end of a
turn. Both are recorded where they arrived (`RewardTerms.act_reward`, `EpisodeRecord.turn_rewards`);
everything here is derived from these.
"""

from __future__ import annotations

import math

from agent_system.record import EpisodeRecord


def team_rewards(record: EpisodeRecord, scope: str) -> list[float]:
    """Return the team reward of every sample of an episode, in their order.

    - `episode`: the sum over the episode, the same for all (Dr. MAS, arXiv 2602.08847).
    - `turn`: the rewards of the sample's turn: all `act` of that turn and its `step`.
    - `call`: the rewards right after the sample's own action (AT-GRPO, arXiv 2510.11062): its own `act`, and
      the `step` for the
      call whose action ended the turn, which is the one that began last. Without `act` the calls of a turn
      cannot be told apart: each gets the turn's `step`. An earlier generation of a call gets what the last
      one gets.

    Tree sampling with `rollout.tree.returns=step` requires `call`: each candidate, the committed one
    included, gets the rewards of `act` and `score` on its own fork, so that the candidates of a call are
    compared by the same measure. A `step` reward belongs to the episode and to no candidate.
    """
    if record.branched:
        return [s.rewards.fork_reward or 0.0 for s in record.samples]
    if scope == "episode":
        return [record.team_reward] * len(record.samples)
    if scope == "turn":
        acts = [0.0] * len(record.turn_rewards)
        for s in record.samples:
            acts[s.identity.turn - 1] += s.rewards.act_reward or 0.0
        return [acts[s.identity.turn - 1] + record.turn_rewards[s.identity.turn - 1] for s in record.samples]
    # by turn, in the order of first generations
    last = dict(list(dict.fromkeys(s.identity.whole_call for s in record.samples)))
    call_rewards = {
        s.identity.call_key: _call_reward(
            s.rewards.act_reward,
            record.turn_rewards[s.identity.turn - 1],
            last[s.identity.turn] == s.identity.call,
        )
        for s in record.samples
    }
    return [call_rewards[s.identity.whole_call] for s in record.samples]


def _call_reward(act: float | None, step: float, ended_turn: bool) -> float:
    if act is None:
        return step
    return act + step if ended_turn else act


def step_rewards(record: EpisodeRecord, alpha: float) -> list[float]:
    """Return `alpha * arrived + local` of every sample, where a team reward arrives at each agent's
    latest call before it.

    Team rewards between two calls of an agent (from other agents' actions, or the end of the turn)
    are a consequence of the first of the two and are credited to it. A call counts from the moment
    its prompt was built, so each of several concurrent calls comes before the rewards of the
    others. A `step` reward goes to the last call of each agent in that turn, or in an earlier turn
    for an agent without a call in it. Summed over an agent's calls, no reward counts twice, and
    none after its first call is lost. A candidate of a tree has no next call of its own: it gets
    `alpha` times the team reward of its fork.
    """
    if record.branched:
        return [alpha * (s.rewards.fork_reward or 0.0) + s.rewards.local_reward for s in record.samples]
    samples = record.samples
    identities = [s.identity for s in samples]
    arrived = [0.0] * len(samples)
    call_order = sorted(
        range(len(samples)),
        key=lambda i: (identities[i].turn, identities[i].prior_replies, identities[i].call),
    )
    acts = [
        (s.identity.turn, s.identity.order, s.rewards.act_reward, i)
        for i, s in enumerate(samples)
        if s.rewards.act_reward
    ]
    steps = [
        (turn, math.inf, reward, None) for turn, reward in enumerate(record.turn_rewards, start=1) if reward
    ]
    latest: dict[str, int] = {}
    next_call = 0
    for turn, moment, amount, call in sorted([*acts, *steps], key=lambda event: event[:2]):
        while next_call < len(call_order) and (
            identities[call_order[next_call]].turn,
            identities[call_order[next_call]].prior_replies,
        ) <= (turn, moment):
            latest[samples[call_order[next_call]].agent_id] = call_order[next_call]
            next_call += 1
        # also if its agent has two concurrent calls
        acting_call = {} if call is None else {samples[call].agent_id: call}
        for index in (latest | acting_call).values():
            arrived[index] += amount
    # the last generation of a call has it
    local = [s.rewards.local_reward if s.identity.ends_call else 0.0 for s in samples]
    return [alpha * team + local_reward for team, local_reward in zip(arrived, local, strict=True)]
