"""REINFORCE++ and its variant with a group baseline."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from verl.trainer.ppo.core_algos import (
    compute_reinforce_plus_plus_baseline_outcome_advantage as with_baseline,
)
from verl.trainer.ppo.core_algos import compute_reinforce_plus_plus_outcome_advantage as plain


def test_plain_by_hand() -> None:
    # gamma 1/2: returns 1 + 4/2 = 3 and 4 (the masked token between is stepped over), and 2; mean 3, variance
    # 1
    rewards, mask = torch.tensor([[1.0, 9.0, 4.0], [2.0, 0.0, 0.0]]), torch.tensor([[1, 0, 1], [1, 0, 0]])
    advantages, returns = plain(rewards, mask, config=SimpleNamespace(gamma=0.5))
    assert returns.tolist() == [[3.0, 0.0, 4.0], [2.0, 0.0, 0.0]]
    assert advantages.tolist() == [pytest.approx([0, 0, 1]), pytest.approx([-1, 0, 0])]
    assert torch.equal(plain(rewards, mask, gamma=0.5)[0], advantages)


def test_plain_policies_are_whitened_apart(rows) -> None:
    rewards, mask = rows([1.0, 2.0, 1000.0, -3000.0])
    advantages, _ = plain(rewards, mask, gamma=1.0, policy_index=np.array(["a", "a", "b", "b"], dtype=object))
    assert torch.equal(advantages[:2], plain(rewards[:2], mask[:2], gamma=1.0)[0])


def test_plain_equal_returns_are_exactly_zero(rows) -> None:
    assert (plain(*rows([0.1]), gamma=1.0)[0] == 0).all()
    assert (plain(*rows([0.1] * 5, [3, 2, 1, 3, 3]), gamma=1.0)[0] == 0).all()


def test_plain_needs_a_discount(rows) -> None:
    with pytest.raises(ValueError, match=r"algorithm\.gamma"):
        plain(*rows([1.0]))


def test_baseline_by_hand(rows) -> None:
    # s - mean: -1 on 3 tokens, 1 on 1; mean over tokens -0.5, variance (3 * 0.25 + 2.25) / 3 = 1
    advantages, returns = with_baseline(*rows([1.0, 3.0], [3, 1]), np.zeros(2))
    assert advantages[:, 0].tolist() == pytest.approx([-0.5, 1.5])
    assert advantages[1].tolist() == pytest.approx([1.5, 0, 0])
    assert advantages is returns


def test_baseline_rows_without_a_signal_count_as_zero_and_stay_zero(rows) -> None:
    # values -1 (3 tokens), 1, 0 (3 tokens, equal scores), 0 (alone): whitening moves the mean by 2/8, but not
    # for the silent rows
    rewards, mask = rows([1.0, 3.0, 0.1, 0.1, 7.0], [3, 1, 2, 1, 1])
    advantages, _ = with_baseline(rewards, mask, np.array([0, 0, 1, 1, 2]))
    values = np.array([-1, -1, -1, 1, 0, 0, 0, 0])
    expected = (values - values.mean()) / values.std(ddof=1)
    assert advantages[:2, 0].tolist() == pytest.approx([expected[0], expected[3]], abs=1e-6)
    assert (advantages[2:] == 0).all()


def test_baseline_raw_singletons_enter_with_their_score(rows) -> None:
    # values -1, 1, 3 over one token each: mean 1, std 2
    rewards, mask = rows([0.0, 2.0, 3.0], width=1)
    advantages, _ = with_baseline(rewards, mask, np.array([0, 0, 1]), config=SimpleNamespace(singleton="raw"))
    assert advantages[:, 0].tolist() == pytest.approx([-1, 0, 1])


def test_baseline_raw_singleton_with_score_zero_is_whitened_as_well(rows) -> None:
    rewards, mask = rows([0.0, 3.0], width=1)
    advantages, _ = with_baseline(rewards, mask, np.array([0, 1]), config=SimpleNamespace(singleton="raw"))
    assert advantages[:, 0].tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])


def test_baseline_weights_by_hand(rows) -> None:
    # weights 1, 1, 2 on 0, 4, 8: mean 5, values -5, -1, 3; weighted variance 44 / (4 - 6 / 4)
    rewards, mask = rows([0.0, 4.0, 8.0], width=1)
    advantages, _ = with_baseline(rewards, mask, np.zeros(3), weights=np.array([1, 1, 2]))
    assert advantages[:, 0].tolist() == pytest.approx([-5 / 17.6**0.5, -1 / 17.6**0.5, 3 / 17.6**0.5])


def test_baseline_trajectories_are_averaged_first(rows) -> None:
    # x (0 + 2) / 2 = 1 on two tokens, y 4 on one: mean 2.5; values -1.5, -1.5, 1.5
    rewards, mask = rows([0.0, 2.0, 4.0], width=1)
    advantages, _ = with_baseline(
        rewards, mask, np.zeros(3), traj_index=np.array(["x", "x", "y"], dtype=object)
    )
    assert advantages[:, 0].tolist() == pytest.approx([-1 / 3**0.5, -1 / 3**0.5, 2 / 3**0.5])


@pytest.mark.parametrize("arguments", [{"gamma": 1.0}, {"index": np.zeros(4)}])
def test_padding_rows_change_nothing(rows, arguments) -> None:
    rewards, mask = rows([1.0, 5.0, 2.0, 9.0], [3, 2, 1, 0])
    estimator = with_baseline if "index" in arguments else plain
    whole, _ = estimator(rewards, mask, **arguments)
    real = {key: value[:3] if key == "index" else value for key, value in arguments.items()}
    assert torch.equal(whole[:3], estimator(rewards[:3], mask[:3], **real)[0])
    assert (whole[3] == 0).all()
