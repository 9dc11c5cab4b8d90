"""Each shaping on three calls in two turns, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from agent_system.reward import assign_rewards
from verl.trainer.config.reward import RewardConfig

from .conftest import call, episode

# Mixed rewards 2 * 1 + (0, -4, 0.5) = 2, -2, 2.5; turns 1, 1, 2 of 2; hops 1, 2, 3 of 3.
EPISODE = episode([call("A", 1, 0), call("B", 1, 1, local=-4.0), call("A", 2, 0, local=0.5)], [0.0, 1.0])


@pytest.mark.parametrize(
    ("shaping", "expected"),
    [
        ("default", [2.0, -2.0, 2.5]),
        ("turn_weighted", [2.0 * 1 / 2, -2.0 * 1 / 2, 2.5 * 2 / 2]),
        ("discount", [2.0 * 0.5, -2.0 * 0.5, 2.5]),
        ("hop_weighted", [2.0 * 1 / 3, -2.0 * 2 / 3, 2.5 * 3 / 3]),
        ("hop_discount", [2.0 * 0.25, -2.0 * 0.5, 2.5]),
        ("binary", [0.0, 0.0, 1.0]),
        ("normalized", [1.0, -1.0, 1.0]),
    ],
)
def test_shaping_by_hand(shaping: str, expected: list[float]) -> None:
    settings = RewardConfig(alpha=2.0, shaping=shaping, shaping_by=2.0 if shaping == "binary" else 0.5)
    (shaped,), _ = assign_rewards([EPISODE], settings)
    assert [s.rewards.reward for s in shaped.samples] == pytest.approx(expected, rel=1e-15)
    assert [s.rewards.mixed_reward for s in shaped.samples] == [2.0, -2.0, 2.5]


def test_the_last_call_of_a_short_and_of_a_long_episode_keep_the_whole_reward() -> None:
    short = episode([call("A", 1, 0)], [1.0], "short")
    long = episode([call("A", turn, 0) for turn in (1, 2, 3)], [0.0, 0.0, 1.0], "long")
    for shaping in ("turn_weighted", "discount", "hop_weighted", "hop_discount"):
        records, _ = assign_rewards([short, long], RewardConfig(shaping=shaping))
        assert [r.samples[-1].rewards.reward for r in records] == [1.0, 1.0]
        assert np.all(np.diff([s.rewards.reward for s in records[1].samples]) > 0)
