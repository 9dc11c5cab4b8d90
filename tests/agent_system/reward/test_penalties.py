"""Penalties by hand: what a reply that cannot be parsed, and one that is too long, cost."""

from __future__ import annotations

import numpy as np
import pytest

from agent_system.reward import assign_rewards
from agent_system.reward.penalties import overlong
from agent_system.rollout import CollectorSettings
from verl.trainer.config.reward import OverlongBufferConfig, RewardConfig

from .conftest import call, episode


def test_only_invalid_replies_of_agents_with_a_coefficient_pay() -> None:
    record = episode([call("A", 1, 0, valid=False), call("A", 1, 1), call("B", 1, 2, valid=False)], [1.0])
    (rewarded,), _ = assign_rewards([record], RewardConfig(), {"A": 0.5})
    assert [s.rewards.reward for s in rewarded.samples] == [0.5, 1.0, 1.0]
    assert [s.rewards.invalid_penalty for s in rewarded.samples] == [0.5, 0.0, 0.0]


def test_the_overlong_penalty_grows_linearly_inside_the_buffer() -> None:
    # Limit 10, buffer 4: free up to 6 tokens, then a quarter of the factor a token.
    lengths = np.array([1, 6, 7, 8, 10])
    paid = overlong(lengths, np.full(5, 10), OverlongBufferConfig(4, 2.0))
    assert paid.tolist() == [0.0, 0.0, 0.5, 1.0, 2.0]


def test_each_agent_is_held_against_its_own_limit() -> None:
    assert overlong(np.array([8, 8]), np.array([8, 16]), OverlongBufferConfig(4, 1.0)).tolist() == [
        1.0,
        0.0,
    ]


def test_a_buffer_of_zero_tokens_stands_for_a_fifth_of_the_limit() -> None:
    assert overlong(
        np.array([16, 18, 20]), np.array([20, 20, 20]), OverlongBufferConfig(0, 1.0)
    ).tolist() == [0.0, 0.5, 1.0]


def test_penalties_are_subtracted_after_shaping() -> None:
    record = episode([call("A", 1, 0, valid=False, tokens=10)], [7.0])
    settings = RewardConfig(shaping="normalized", overlong_buffer=OverlongBufferConfig(4, 0.5))
    (rewarded,), _ = assign_rewards([record], settings, {"A": 0.25})
    sample = rewarded.samples[0]
    assert (
        sample.rewards.mixed_reward,
        sample.rewards.invalid_penalty,
        sample.rewards.overlong_penalty,
        sample.rewards.reward,
    ) == (
        7.0,
        0.25,
        0.5,
        0.25,
    )


def test_the_step_reward_has_both_penalties_and_none_in_validation() -> None:
    # Two turns of A. The first is not valid and full (0.25 and 0.5), and its turn pays 7; the second is
    # neither, and its turn pays 3.
    first, second = call("A", 1, 0, local=0.125, valid=False, tokens=10), call("A", 2, 0, local=1.0)
    reward = RewardConfig(alpha=2.0, overlong_buffer=OverlongBufferConfig(4, 0.5), shaping="normalized")
    settings = CollectorSettings(reward=reward, invalid_action_penalty={"A": 0.25})
    record = episode([first, second], [7.0, 3.0])
    for used, paid in ((settings, 0.75), (settings.for_validation(), 0.0)):
        (rewarded,), _ = assign_rewards([record], used.reward, used.invalid_action_penalty)
        assert [s.rewards.step_reward for s in rewarded.samples] == [
            2.0 * 7.0 + 0.125 - paid,
            2.0 * 3.0 + 1.0,
        ]


def test_a_candidate_of_a_tree_pays_for_itself() -> None:
    candidates = [call("A", 1, 0, valid=valid).with_rewards(fork_reward=1.0) for valid in (True, False)]
    (rewarded,), _ = assign_rewards([episode(candidates, [0.0])], RewardConfig(), {"A": 0.5})
    assert [s.rewards.step_reward for s in rewarded.samples] == [1.0, 0.5]


def test_validation_has_no_penalties() -> None:
    reward = RewardConfig(alpha=3.0, overlong_buffer=OverlongBufferConfig(0))
    settings = CollectorSettings(reward=reward, invalid_action_penalty={"A": 1.0}, joint_prompt_length=8)
    assert settings.for_validation() == CollectorSettings(reward=RewardConfig(alpha=3.0))


@pytest.mark.parametrize("enabled", [False, True])
def test_short_replies_have_no_penalty_either_way(enabled: bool) -> None:
    assert overlong(
        np.array([3]), np.array([10]), OverlongBufferConfig(4 if enabled else None, 1.0)
    ).tolist() == [0.0]
