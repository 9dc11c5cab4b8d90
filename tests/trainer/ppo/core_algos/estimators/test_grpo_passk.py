"""Pass@k: the best reply gets its margin."""

from types import SimpleNamespace

import numpy as np
import pytest

from verl.trainer.ppo.core_algos import compute_grpo_passk_outcome_advantage as passk


def test_by_hand(rows) -> None:
    # group a: 5 is 3 ahead of 2; std of (1, 2, 5) is sqrt(13/3). group b: the two best are equal.
    rewards, mask = rows([1.0, 5.0, 2.0, 7.0, 7.0, 0.0], [3, 2, 3, 3, 3, 3])
    index = np.array(list("aaabbb"), dtype=object)
    advantages, returns = passk(rewards, mask, index, norm_adv_by_std_in_grpo=False)
    assert advantages.tolist() == [[0.0] * 3, [3.0, 3.0, 0.0], *[[0.0] * 3] * 4]
    assert advantages is returns
    normed, _ = passk(rewards, mask, index)
    assert normed[1, 0].item() == pytest.approx(3 / ((13 / 3) ** 0.5 + 1e-6))


def test_the_key_in_the_config_wins_over_the_argument(rows) -> None:
    config = SimpleNamespace(norm_adv_by_std_in_grpo=False, singleton="zero")
    assert passk(*rows([1.0, 4.0]), np.zeros(2), config=config)[0][1, 0] == 3.0


def test_a_group_of_one_is_no_error_and_gives_zero_or_its_score(rows) -> None:
    index = np.array([0, 1, 1])
    assert passk(*rows([3.0, 1.0, 2.0]), index)[0][0, 0] == 0
    raw = SimpleNamespace(norm_adv_by_std_in_grpo=False, singleton="raw")
    assert passk(*rows([3.0, 1.0, 2.0]), index, config=raw)[0][:, 0].tolist() == [3.0, 0.0, 1.0]


def test_padding_is_never_the_best(rows) -> None:
    rewards, mask = rows([1.0, 2.0, 9.0], [3, 3, 0])
    advantages, _ = passk(rewards, mask, np.zeros(3), norm_adv_by_std_in_grpo=False)
    assert advantages[:, 0].tolist() == [0.0, 1.0, 0.0]


def test_the_best_trajectory_shares_its_margin(rows) -> None:
    # means of the trajectories: x (1 + 5) / 2 = 3, y 2
    traj = np.array(["x", "x", "y"], dtype=object)
    advantages, _ = passk(*rows([1.0, 5.0, 2.0]), np.zeros(3), traj_index=traj, norm_adv_by_std_in_grpo=False)
    assert advantages[:, 0].tolist() == [1.0, 1.0, 0.0]


def test_calls_cannot_be_weighed(rows) -> None:
    passk(*rows([1.0, 2.0]), np.zeros(2), weights=np.array([0.5, 0.5]))
    with pytest.raises(ValueError, match="call_weighting=sample"):
        passk(*rows([1.0, 2.0]), np.zeros(2), weights=np.array([0.5, 1.0]))
