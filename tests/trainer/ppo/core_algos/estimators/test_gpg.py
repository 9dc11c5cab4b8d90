"""GPG: centred scores, scaled by the share of rows with a score."""

from types import SimpleNamespace

import numpy as np
import pytest

from verl.trainer.ppo.core_algos import compute_gpg_outcome_advantage as gpg


def test_by_hand(rows) -> None:
    # 4 rows, 2 scores that are not 0: alpha 2; group means 1 and 0.5; f_norm 2 cancels alpha
    index = np.array([0, 0, 1, 1])
    advantages, returns = gpg(*rows([2.0, 0.0, 1.0, 0.0], [1, 3, 3, 3]), index)
    assert advantages[:, 0].tolist() == [2.0, -2.0, 1.0, -1.0]
    assert advantages[0].tolist() == [2.0, 0.0, 0.0]
    assert advantages is returns
    assert gpg(*rows([2.0, 0.0, 1.0, 0.0]), index, f_norm=2.0)[0][:, 0].tolist() == [1.0, -1.0, 0.5, -0.5]


def test_alpha_is_of_the_rows_policy(rows) -> None:
    # policy a: all rows score, alpha 1; policy b: one of two, alpha 2
    index = policy = np.array(["a", "a", "b", "b"], dtype=object)
    advantages, _ = gpg(*rows([1.0, 3.0, 2.0, 0.0]), index, policy_index=policy)
    assert advantages[:, 0].tolist() == [-1.0, 1.0, 2.0, -2.0]


def test_weights_by_hand(rows) -> None:
    # weights 1/2, 1/2, 1: mean (1 + 0 + 3) / 2 = 2; alpha 2 / 1.5
    advantages, _ = gpg(*rows([2.0, 0.0, 3.0]), np.zeros(3), weights=np.array([0.5, 0.5, 1.0]))
    assert advantages[:, 0].tolist() == pytest.approx([0.0, -8 / 3, 4 / 3])


def test_trajectories_are_averaged_first(rows) -> None:
    # x (4 + 0) / 2 = 2, y 4: mean 3; alpha over rows 3 / 2
    traj = np.array(["x", "x", "y"], dtype=object)
    advantages, _ = gpg(*rows([4.0, 0.0, 4.0]), np.zeros(3), traj_index=traj)
    assert advantages[:, 0].tolist() == [-1.5, -1.5, 1.5]


def test_groups_without_a_signal(rows) -> None:
    index = np.array([0, 1, 1, 1])
    scores = [3.0, 0.1, 0.1, 0.1]
    assert gpg(*rows(scores), index)[0].abs().sum() == 0
    assert gpg(*rows(scores), index, config=SimpleNamespace(singleton="raw"))[0][:, 0].tolist() == [
        3.0,
        0.0,
        0.0,
        0.0,
    ]
    assert gpg(*rows([0.0, 0.0]), np.zeros(2))[0].abs().sum() == 0


def test_padding_is_in_neither_the_mean_nor_alpha(rows) -> None:
    advantages, _ = gpg(*rows([2.0, 0.0, 0.0], [3, 3, 0]), np.zeros(3))
    assert advantages[:, 0].tolist() == [2.0, -2.0, 0.0]
