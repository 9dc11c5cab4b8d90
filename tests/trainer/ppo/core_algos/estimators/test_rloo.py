"""RLOO with weights and over trajectories, by hand."""

import numpy as np
import pytest

from verl.trainer.ppo.core_algos import compute_rloo_outcome_advantage


def test_weighted_others_by_hand(rows) -> None:
    # others of row 0: (0.5 * 4 + 0.5 * 6) / 1 = 5; of row 1: (2 + 3) / 1.5 = 10 / 3; of row 2: (2 + 2) / 1.5
    # = 8 / 3
    rewards, mask = rows([2.0, 4.0, 6.0, 50.0])
    advantages, _ = compute_rloo_outcome_advantage(
        rewards, mask, np.zeros(4), weights=np.array([1.0, 0.5, 0.5, 0.0])
    )
    assert advantages[:, 0].tolist() == pytest.approx([-3.0, 4 - 10 / 3, 6 - 8 / 3, 0.0], abs=1e-6)


def test_equal_weights_of_any_size_change_nothing(rows) -> None:
    rewards, mask = rows([1.0, 0.0, 2.0])
    plain, _ = compute_rloo_outcome_advantage(rewards, mask, np.zeros(3))
    weighted, _ = compute_rloo_outcome_advantage(rewards, mask, np.zeros(3), weights=np.full(3, 0.2))
    assert weighted[:, 0].tolist() == pytest.approx(plain[:, 0].tolist(), abs=1e-6)


def test_a_trajectory_is_compared_with_the_other_trajectories_only(rows) -> None:
    # x: (1 + 3) / 2 = 2 against y: 4, z: 6
    rewards, mask = rows([1.0, 3.0, 4.0, 6.0])
    traj = np.array(["x", "x", "y", "z"], dtype=object)
    advantages, _ = compute_rloo_outcome_advantage(rewards, mask, np.zeros(4), traj_index=traj)
    assert advantages[:, 0].tolist() == [-3.0, -3.0, 0.0, 3.0]


def test_what_verl_passes_to_every_estimator_is_ignored(rows) -> None:
    rewards, mask = rows([1.0, 0.0])
    assert compute_rloo_outcome_advantage(rewards, mask, np.zeros(2), reward_baselines=None)[0][
        :, 0
    ].tolist() == [1.0, -1.0]
