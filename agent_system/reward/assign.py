"""From finished episodes to samples with rewards: the entry point of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from agent_system.record import EpisodeRecord, Sample
from agent_system.reward.mixing import mix
from agent_system.reward.penalties import invalid_action, overlong
from agent_system.reward.propagation import CallChains, propagate
from agent_system.reward.scope import step_rewards, team_rewards
from agent_system.reward.shaping import SHAPING_FUNCTIONS, CallPositions
from verl.trainer.config.reward import PropagationConfig, RewardConfig


def assign_rewards(
    records: Sequence[EpisodeRecord],
    settings: RewardConfig,
    invalid_action_penalty: Mapping[str, float] | None = None,
    tree_returns: str = "step",
) -> tuple[list[EpisodeRecord], dict[str, float]]:
    """Compute every reward term of the samples of the episodes that did not fail.

    `reward = shaping(alpha * team + local) - invalid_penalty -
    overlong_penalty`, where `team` follows `team_scope` or, if set, the propagation mode.
    `step_reward = alpha * arrived + local - invalid_penalty - overlong_penalty`, see `scope.step_rewards`. Statistics of the
    batch (a quantile, the share of links that pass) do not depend on its order.

    Args:
        records: all episodes of one collection.
        settings: the keys under `reward`.
        invalid_action_penalty: agent -> penalty of a reply that cannot be parsed; 0 for agents that
            are not listed.
        tree_returns: `rollout.tree.returns`. With `committed` the committed replies of a tree are
            rewarded as an episode of parallel sampling, and the other candidates for their own
            action.

    Returns:
        The episodes in the same order, and the metrics of propagation (`reward/propagation/*`).

    Raises:
        AgentSystemError: a local reward outside `reward.propagation.local_range`.
    """
    if tree_returns == "committed":
        return _with_continuations(records, settings, invalid_action_penalty)
    finished_records = [r for r in records if not r.failed and r.samples]
    if not finished_records:
        return list(records), {}
    samples = [s for r in finished_records for s in r.samples]
    chains = _chains(finished_records, samples, settings.team_scope)
    turn = np.array([s.identity.turn for s in samples])
    turns = np.array([r.turns for r in finished_records])[chains.episode]
    positions = CallPositions(turn, turns, chains.hop, chains.hops)
    credited = propagate(chains, settings.propagation)
    mixed = mix(credited.team, credited.local, settings.alpha)
    coefficients = [(invalid_action_penalty or {}).get(s.agent_id, 0.0) for s in samples]
    invalid = invalid_action(
        np.array([s.valid for s in samples], dtype=bool), np.array(coefficients, dtype=np.float64)
    )
    too_long = overlong(
        np.array([max(len(g.generation.token_ids) for g in s.generations) for s in samples]),
        np.array([s.request.max_tokens for s in samples]),
        settings.overlong_buffer,
    )
    reward = SHAPING_FUNCTIONS[settings.shaping](mixed, positions, settings) - invalid - too_long
    step = (
        np.array(
            [value for r in finished_records for value in step_rewards(r, settings.alpha)], dtype=np.float64
        )
        - invalid
        - too_long
    )
    terms = {
        "team_reward": credited.team,
        "step_reward": step,
        "mixed_reward": mixed,
        "invalid_penalty": invalid,
        "overlong_penalty": too_long,
        "reward": reward,
    }
    rows = zip(*(values.tolist() for values in terms.values()), strict=True)
    rewarded = iter(
        [s.with_rewards(**dict(zip(terms, row, strict=True))) for s, row in zip(samples, rows, strict=True)]
    )
    records_by_id = {
        id(r): replace(r, samples=tuple(next(rewarded) for _ in r.samples)) for r in finished_records
    }
    return [records_by_id.get(id(r), r) for r in records], credited.metrics


def _with_continuations(
    records: Sequence[EpisodeRecord], settings: RewardConfig, penalty: Mapping[str, float] | None
) -> tuple[list[EpisodeRecord], dict[str, float]]:
    step = replace(settings, team_scope="call", shaping="default", propagation=PropagationConfig())
    alone, _ = assign_rewards(records, step, penalty)
    episodes, metrics = assign_rewards([r.as_played() for r in records], settings, penalty)
    return [a if a.failed else _joined(a, e) for a, e in zip(alone, episodes, strict=True)], metrics


def _joined(alone: EpisodeRecord, episode: EpisodeRecord) -> EpisodeRecord:
    committed = iter(episode.samples)
    samples = tuple(
        next(committed).with_rewards(fork_reward=s.rewards.fork_reward) if s.identity.committed else s
        for s in alone.samples
    )
    return replace(alone, samples=samples)


def _chains(records: Sequence[EpisodeRecord], samples: Sequence[Sample], scope: str) -> CallChains:
    hop, hops = _hops(records)
    team = np.array([value for r in records for value in team_rewards(r, scope)], dtype=np.float64)
    local = np.array([s.rewards.local_reward for s in samples], dtype=np.float64)
    has_local = np.array([s.rewards.local_given for s in samples], dtype=bool)
    final = np.array([s.identity.ends_call for s in samples], dtype=bool)
    episode = np.repeat(np.arange(len(records)), [len(r.samples) for r in records])
    return CallChains(episode, hop, hops, final, team, local, has_local, [s.agent_id for s in samples])


def _hops(records: Sequence[EpisodeRecord]) -> tuple[np.ndarray, np.ndarray]:
    """Return for each sample the number of its call, from 1, and the calls of its episode.

    The candidates of a call share its number, and so do its generations: rounds of a `ToolAgent`, a
    summary before it.
    """
    hops = list[int]()
    totals = list[int]()
    for record in records:
        numbers: dict[tuple[int, int], int] = {}
        for s in record.samples:
            hops.append(numbers.setdefault(s.identity.whole_call, len(numbers) + 1))
        totals += [len(numbers)] * len(record.samples)
    return np.array(hops), np.array(totals)
