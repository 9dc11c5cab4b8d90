"""Committed replies of a tree are rewarded as the episode that was played, the other candidates for their own
action.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent_system.record import EpisodeRecord, Sample
from agent_system.reward import PropagationConfig, RewardConfig, assign_rewards

from .conftest import call, episode


def candidate(
    agent_id: str, turn: int, number: int, team: float, local: float, *, played: float | None = None
) -> Sample:
    """A candidate with the rewards of its own fork; `played` is the local reward of a committed one in the
    episode.
    """
    sample = call(agent_id, turn, number).with_identity(committed=played is not None)
    own = sample.with_rewards(fork_reward=team, local_reward=local, candidate_reward=team + local)
    return (
        own if played is None else own.with_rewards(act_reward=team, episode_local=played, local_given=True)
    )


def tree(**changes: Any) -> EpisodeRecord:
    """Three calls of two candidates; `score` gave the candidates 0.05 more than `act`, which the episode does
    not have.
    """
    samples = [
        candidate("A", 1, 0, 0.0, 0.65, played=0.6),
        candidate("A", 1, 0, 0.0, 0.95),
        candidate("B", 1, 1, 0.25, 0.25),
        candidate("B", 1, 1, 0.0, 0.15, played=0.1),
        candidate("A", 2, 0, 0.5, 0.85, played=0.8),
        candidate("A", 2, 0, 0.0, 0.05),
    ]
    return replace(episode(samples, [0.5, 1.0]), team_reward=2.0, **changes)


def rewards(
    settings: RewardConfig, returns: str = "committed", **penalty: float
) -> tuple[list[float], dict[str, float]]:
    (record,), metrics = assign_rewards([tree()], settings, penalty, returns)
    return [s.rewards.reward for s in record.samples], metrics


@pytest.mark.parametrize(
    ("settings", "committed"),
    [
        (RewardConfig(), [2.6, 2.1, 2.8]),
        (RewardConfig(alpha=0.5), [1.6, 1.1, 1.8]),
        (RewardConfig(team_scope="turn"), [0.5 + 0.6, 0.5 + 0.1, 1.5 + 0.8]),
        (RewardConfig(team_scope="call"), [0.6, 0.5 + 0.1, 1.5 + 0.8]),
        (RewardConfig(shaping="hop_discount", shaping_by=0.5), [2.6 / 4, 2.1 / 2, 2.8]),
        (RewardConfig(propagation=PropagationConfig(mode="uniform")), [2.6, 2.1, 2.8]),
        (
            RewardConfig(propagation=PropagationConfig(mode="discounted", gamma=0.5)),
            [0.5 + 0.6, 1.0 + 0.1, 2.8],
        ),
        # b_3 = 2; b_2 = 2 since call 3 has 0.8 >= 0.5; b_1 = 0 since the committed reply of call 2 has 0.1,
        # whatever its sibling had
        (RewardConfig(propagation=PropagationConfig(mode="threshold", min_pass_rate=0.0)), [0.6, 2.1, 2.8]),
    ],
)
def test_the_committed_chain_is_credited_as_an_episode(
    settings: RewardConfig, committed: list[float]
) -> None:
    alpha = settings.alpha
    a, other_a, other_b, b, last, other_last = rewards(settings)[0]
    assert [a, b, last] == pytest.approx(committed)
    assert [other_a, other_b, other_last] == pytest.approx([0.95, alpha * 0.25 + 0.25, 0.05]), (
        "own action alone"
    )


def test_links_that_pass_are_those_between_committed_replies() -> None:
    _, metrics = rewards(RewardConfig(propagation=PropagationConfig(mode="threshold", min_pass_rate=0.0)))
    assert metrics["reward/propagation/pass_rate"] == 0.5


def test_steps_of_committed_replies_have_the_rewards_until_the_agents_next_call() -> None:
    (record,), _ = assign_rewards([tree()], RewardConfig(), None, "committed")
    steps = [s.rewards.step_reward for s in record.samples if s.identity.committed]
    assert steps == pytest.approx([0.5 + 0.6, 0.5 + 0.5 + 1.0 + 0.1, 0.5 + 1.0 + 0.8])
    assert [s.rewards.step_reward for s in record.samples if not s.identity.committed] == pytest.approx(
        [0.95, 0.5, 0.05]
    )


def test_all_candidates_pay_penalties() -> None:
    record = tree()
    record = replace(record, samples=tuple(replace(s, valid=False) for s in record.samples))
    (charged,), _ = assign_rewards([record], RewardConfig(), {"A": 0.5}, "committed")
    assert [s.rewards.invalid_penalty for s in charged.samples] == [0.5, 0.5, 0, 0, 0.5, 0.5]
    assert [s.rewards.reward for s in charged.samples] == pytest.approx([2.1, 0.45, 0.5, 2.1, 2.3, -0.45])


def test_single_steps_are_rewarded_as_before() -> None:
    assert rewards(RewardConfig(team_scope="call"), "step")[0] == pytest.approx(
        [0.65, 0.95, 0.5, 0.15, 1.35, 0.05]
    )


def test_assigning_twice_changes_nothing_and_failed_or_parallel_episodes_are_untouched() -> None:
    failed, parallel = tree(failure="lost"), episode([call("A", 1, 0, local=0.3)], [1.0])
    once, _ = assign_rewards([tree(), failed, parallel], RewardConfig(), {"A": 1.0}, "committed")
    assert assign_rewards(once, RewardConfig(), {"A": 1.0}, "committed")[0] == once
    assert once[1] == failed and once[2].samples[0].rewards.reward == pytest.approx(1.3)
