"""OPO: the length-weighted baseline."""

from types import SimpleNamespace

import numpy as np
import pytest

from verl.trainer.ppo.core_algos import compute_opo_outcome_advantage as opo


def test_by_hand(rows) -> None:
    # baseline (3 * 1 + 1 * 5) / 4 = 2
    advantages, returns = opo(*rows([1.0, 5.0], [3, 1]), np.zeros(2))
    assert advantages.tolist() == [[-1.0] * 3, [3.0, 0.0, 0.0]]
    assert advantages is returns


def test_a_weight_counts_like_length(rows) -> None:
    # baseline (0.5 * 3 * 1 + 1 * 1 * 5) / 2.5 = 2.6
    advantages, _ = opo(*rows([1.0, 5.0], [3, 1]), np.zeros(2), weights=np.array([0.5, 1.0]))
    assert advantages[:, 0].tolist() == pytest.approx([-1.6, 2.4])


def test_a_trajectory_is_as_long_as_its_rows(rows) -> None:
    # x: score (1 + 3) / 2 = 2, length 3 + 1 = 4; y: score 5, length 2; baseline (8 + 10) / 6 = 3
    traj = np.array(["x", "x", "y"], dtype=object)
    advantages, _ = opo(*rows([1.0, 3.0, 5.0], [3, 1, 2]), np.zeros(3), traj_index=traj)
    assert advantages[:, 0].tolist() == pytest.approx([-1.0, -1.0, 2.0])


def test_groups_without_a_signal(rows) -> None:
    index = np.array([0, 1, 1, 1])
    assert opo(*rows([3.0, 0.1, 0.1, 0.1], [1, 3, 2, 3]), index)[0].abs().sum() == 0
    raw = opo(*rows([3.0, 0.1, 0.1, 0.1]), index, config=SimpleNamespace(singleton="raw"))[0]
    assert raw[:, 0].tolist() == [3.0, 0.0, 0.0, 0.0]


def test_padding_has_no_length(rows) -> None:
    advantages, _ = opo(*rows([1.0, 5.0, 9.0], [3, 1, 0]), np.zeros(3))
    assert advantages[:, 0].tolist() == [-1.0, 3.0, 0.0]


def test_the_order_of_a_trajectorys_rows_changes_no_bit(rows) -> None:
    rng = np.random.default_rng(0)
    rewards, mask = rows(rng.normal(size=24).tolist(), rng.integers(1, 4, 24).tolist())
    trajectory, weights = rng.integers(0, 3, 24), 1 / rng.integers(3, 12, 24)
    plain = opo(rewards.double(), mask, np.zeros(24), traj_index=trajectory, weights=weights)[0]
    for _ in range(20):
        order = rng.permutation(24)
        shuffled = opo(
            rewards[order].double(),
            mask[order],
            np.zeros(24),
            traj_index=trajectory[order],
            weights=weights[order],
        )[0]
        assert shuffled.tolist() == plain[order].tolist()
