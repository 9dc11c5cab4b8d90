"""One reply that several episodes of a group share (`rollout.repeat_calls`): one row, whose reward
is the mean of theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from agent_system.record import EpisodeRecord, Sample

MEANS = (
    "local_reward", "team_reward", "step_reward", "mixed_reward", "invalid_penalty", "overlong_penalty",
    "reward",
)  # fmt: skip


def share_rewards(records: Sequence[EpisodeRecord], agents: Collection[str]) -> list[EpisodeRecord]:
    """Return the episodes with one trained row for each reply that several of them share.

    Replies are shared if group, agent, place in the episode, seed, prompt and tokens are equal. The
    first one gets the mean of every reward over those of episodes that did not fail; the others
    keep theirs, are marked as `repeated`, and are not trained. Replies whose prompts differ, since
    the episodes have differed before, are rows of their own.

    Args:
        records: all episodes of one collection, with rewards.
        agents: the agents whose replies may be shared.
    """
    places: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
    for number, record in enumerate(records):
        if record.failed:
            continue
        for place, sample in enumerate(record.samples):
            if sample.agent_id in agents:
                places[(record.uid, *_reply(sample))].append((number, place))
    samples = [list(record.samples) for record in records]
    for equal in places.values():
        rows = [samples[number][place] for number, place in equal]
        for row, (number, place) in zip(rows[1:], equal[1:], strict=True):
            samples[number][place] = row.with_identity(repeated=True, trained=False)
        number, place = equal[0]
        samples[number][place] = _mean(rows)
    return [replace(r, samples=tuple(s)) for r, s in zip(records, samples, strict=True)]


def _reply(sample: Sample) -> tuple[Any, ...]:
    place = (sample.agent_id, sample.identity.turn, sample.identity.call, sample.request.seed)
    return (*place, tuple(sample.request.prompt_ids), tuple(sample.generation.token_ids))


def _mean(rows: Sequence[Sample]) -> Sample:
    """Return the first of equal rows with the mean of their rewards."""
    if len(rows) == 1:
        return rows[0]
    means: dict[str, Any] = {name: _average([getattr(row.rewards, name) for row in rows]) for name in MEANS}
    names = [name for name in rows[0].reward_terms if all(name in row.reward_terms for row in rows)]
    terms = {name: _average([row.reward_terms[name] for row in rows]) for name in names}
    if any(row.rewards.token_rewards for row in rows):
        length = len(rows[0].generation.token_ids)
        columns = zip(*(row.rewards.token_rewards or (0.0,) * length for row in rows), strict=True)
        means["token_rewards"] = tuple(map(_average, columns))
    return replace(rows[0].with_rewards(**means), reward_terms=terms)


def _average(values: Sequence[float]) -> float:
    return float(sum(values)) / len(values)
