"""ReMax: reward to go minus what the greedy reply earned."""

import numpy as np
import pytest
import torch

from verl.trainer.ppo.core_algos import compute_remax_outcome_advantage as remax


def test_by_hand() -> None:
    # rewards to go 3, 2, -; minus the greedy reply's 1. The masked 5 is not there.
    rewards, mask = torch.tensor([[1.0, 2.0, 5.0]]), torch.tensor([[1, 1, 0]])
    advantages, returns = remax(rewards, torch.tensor([1.0]), mask)
    assert returns.tolist() == [[3.0, 2.0, 0.0]]
    assert advantages.tolist() == [[2.0, 1.0, 0.0]]


def test_a_reply_as_good_as_the_greedy_one_has_advantage_zero(rows) -> None:
    rewards, mask = rows([0.3, 0.3])
    assert (remax(rewards, rewards.sum(-1), mask)[0] == 0).all()


def test_padding_rows_need_no_baseline(rows) -> None:
    rewards, mask = rows([1.0, 9.0], [3, 0])
    advantages, returns = remax(rewards, torch.tensor([0.5, float("nan")]), mask)
    assert advantages.tolist() == [[0.5] * 3, [0.0] * 3]
    assert (returns[1] == 0).all()


def test_bad_input_is_named(rows) -> None:
    rewards, mask = rows([1.0, 2.0])
    with pytest.raises(ValueError, match="needs reward_baselines"):
        remax(rewards, None, mask)
    with pytest.raises(ValueError, match="reward_baselines has 3 entries"):
        remax(rewards, torch.zeros(3), mask)
    with pytest.raises(ValueError, match=r"reward_baselines: 1 of 2 rows are not finite \(first: row 1\)"):
        remax(rewards, np.array([0.0, float("nan")]), mask)
