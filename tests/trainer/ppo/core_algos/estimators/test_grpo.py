"""GRPO with weights and over trajectories, by hand."""

import numpy as np
import pytest
import torch

from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage


def test_weighted_rows_by_hand(rows) -> None:
    # mean (2 + 4 / 2 + 6 / 2) / 2 = 3.5; variance 5.5 / 1.25 (test_grouping.py); the row of weight 0 is
    # nobody's peer.
    rewards, mask = rows([2.0, 4.0, 6.0, 50.0])
    advantages, _ = compute_grpo_outcome_advantage(
        rewards, mask, np.zeros(4), weights=np.array([1.0, 0.5, 0.5, 0.0])
    )
    std = 4.4**0.5
    assert advantages[:, 0].tolist() == pytest.approx([-1.5 / std, 0.5 / std, 2.5 / std, 0.0], abs=1e-5)


def test_one_row_that_weighs_is_a_group_of_one(rows) -> None:
    rewards, mask = rows([2.0, 4.0])
    assert (
        compute_grpo_outcome_advantage(rewards, mask, np.zeros(2), weights=np.array([3.0, 0.0]))[0] == 0
    ).all()


def test_weights_weigh_a_row_within_its_trajectory_and_trajectories_weigh_alike(rows) -> None:
    # x: (3 * 1 + 1 * 5) / 4 = 2, y: 4, so mean 3; whatever y's weight is.
    rewards, mask = rows([1.0, 5.0, 4.0])
    weights, traj = np.array([3.0, 1.0, 0.25]), np.array(["x", "x", "y"], dtype=object)
    advantages, _ = compute_grpo_outcome_advantage(
        rewards, mask, np.zeros(3), norm_adv_by_std_in_grpo=False, traj_index=traj, weights=weights
    )
    assert advantages[:, 0].tolist() == [-1.0, -1.0, 1.0]


def test_a_mask_that_is_float_already_is_left_as_it_was(rows) -> None:
    rewards, mask = rows([1.0, 3.0])
    as_float = mask.float()
    advantages, _ = compute_grpo_outcome_advantage(
        rewards, as_float, np.zeros(2), norm_adv_by_std_in_grpo=False
    )
    assert torch.equal(as_float, mask.float())
    assert advantages.dtype == torch.float32


def test_a_reply_whose_first_token_is_masked_is_a_reply(rows) -> None:
    rewards, mask = rows([1.0, 3.0])
    mask[0, 0] = 0
    advantages, _ = compute_grpo_outcome_advantage(rewards, mask, np.zeros(2), norm_adv_by_std_in_grpo=False)
    assert advantages.tolist() == [[0.0, -1.0, -1.0], [1.0, 1.0, 1.0]]
