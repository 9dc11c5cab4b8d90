"""The optimal token baseline, over columns and over the tokens that a reply wrote itself."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from verl.trainer.ppo.core_algos import compute_multi_turn_optimal_token_baseline_advantage as over_tokens
from verl.trainer.ppo.core_algos import compute_optimal_token_baseline_advantage as over_columns

BOTH = pytest.mark.parametrize("estimator", [over_columns, over_tokens])


def energies(terms: list[list[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs (of probability 1/2) and sums of squares that give these terms: w = 1 - 2 * 1/2 + sum of
    squares.
    """
    squares = torch.tensor(terms)
    return torch.full_like(squares, 0.5).log(), squares


@BOTH
def test_by_hand(estimator) -> None:
    # W: row 0: 1, 1 + 1 = 2; row 1: 3, 3 + 3 = 6. Rewards to go: row 0: 4, 4; row 1: 0, 0.
    # B_0 = 4 * 1 / 4 = 1, B_1 = 4 * 2 / 8 = 1.
    rewards = torch.tensor([[0.0, 4.0], [0.0, 0.0]])
    advantages, returns = estimator(
        rewards, torch.ones(2, 2), np.zeros(2), *energies([[1.0, 1.0], [3.0, 3.0]])
    )
    assert advantages.flatten().tolist() == pytest.approx([3.0, 3.0, -1.0, -1.0])
    assert returns.tolist() == [[4.0, 4.0], [0.0, 0.0]]


@BOTH
def test_importance_weights_count_squared(estimator) -> None:
    # the terms of row 0 times 4: B = 4 * 4 / (4 + 3)
    rewards, weights = torch.tensor([[4.0], [0.0]]), torch.tensor([[2.0], [1.0]])
    advantages, _ = estimator(rewards, torch.ones(2, 1), np.zeros(2), *energies([[1.0], [3.0]]), weights)
    assert advantages[:, 0].tolist() == pytest.approx([4 - 16 / 7, -16 / 7])


@BOTH
def test_the_tail_of_the_longest_reply_has_no_baseline_unless_asked(estimator) -> None:
    # column 1 holds row 0 only: its baseline there would be its own 4
    rewards, mask = torch.tensor([[0.0, 4.0], [0.0, 0.0]]), torch.tensor([[1, 1], [1, 0]])
    arguments = (rewards, mask, np.zeros(2), *energies([[1.0, 1.0], [1.0, 9.0]]))
    assert estimator(*arguments)[0].flatten().tolist() == pytest.approx([2.0, 4.0, -2.0, 0.0])
    assert estimator(*arguments, handle_zero_tail=False)[0].flatten().tolist() == pytest.approx(
        [2.0, 0.0, -2.0, 0.0], abs=1e-6
    )


def test_masked_tokens_shift_columns_but_not_tokens() -> None:
    # Row 0 wrote columns 0 and 2, row 1 columns 0 and 1. Second tokens: W 2 and 2, rewards to go 4 and 0:
    # baseline 2.
    rewards, mask = torch.tensor([[0.0, 9.0, 4.0], [0.0, 0.0, 0.0]]), torch.tensor([[1, 0, 1], [1, 1, 0]])
    arguments = (rewards, mask, np.zeros(2), *energies([[1.0, 7.0, 1.0], [1.0, 1.0, 7.0]]))
    assert over_tokens(*arguments)[0].tolist() == [
        pytest.approx([2.0, 0.0, 2.0]),
        pytest.approx([-2.0, -2.0, 0.0]),
    ]
    assert over_columns(*arguments, handle_zero_tail=False)[0].tolist() == [
        pytest.approx([2.0, 0.0, 0.0], abs=1e-6),
        pytest.approx([-2.0, 0.0, 0.0], abs=1e-6),
    ]


@BOTH
def test_equal_totals_at_different_tokens_are_compared(estimator) -> None:
    # W: 1, 2, 3 in both rows. Rewards to go 1, 0, 0 and 1, 1, 1: baselines 1, 1/2, 1/2.
    rewards = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    advantages, _ = estimator(rewards, torch.ones(2, 3), np.zeros(2), *energies([[1.0] * 3] * 2))
    assert advantages.tolist() == [pytest.approx([0.0, -0.5, -0.5]), pytest.approx([0.0, 0.5, 0.5])]
    assert (advantages[:, 0] == 0).all()
    # the same rewards at the same tokens are no signal, nor is one number at every token, whatever the
    # weights
    for rewards, mask in (
        ([[1.0, 0.0, 1.0]] * 2, [[1, 1, 1]] * 2),
        ([[0.0, 0.0, 0.7], [0.7, 0.0, 0.0]], [[1, 1, 1], [1, 0, 0]]),
    ):
        arguments = (
            torch.tensor(rewards),
            torch.tensor(mask),
            np.zeros(2),
            *energies([[1.0, 0.3, 0.2], [0.7, 0.1, 0.4]]),
        )
        assert (estimator(*arguments)[0] == 0).all()


@BOTH
def test_groups_without_a_signal_and_padding(rows, estimator) -> None:
    rewards, mask = rows([3.0, 0.1, 0.1, 0.1, 9.0], [3, 3, 2, 1, 0])
    noise = torch.rand(5, 3)
    noise[4] = float("nan")
    arguments = (rewards, mask, np.array([0, 1, 1, 1, 1]), -noise, noise)
    assert (estimator(*arguments)[0] == 0).all()
    raw, returns = estimator(*arguments, config=SimpleNamespace(singleton="raw"))
    assert raw[:, 0].tolist() == [3.0, 0.0, 0.0, 0.0, 0.0]
    assert (returns[4] == 0).all()


@BOTH
def test_groups_and_the_order_of_rows(estimator) -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, log_probs, squares = (torch.rand(30, 5, generator=generator) for _ in range(3))
    mask = (torch.arange(5) < torch.randint(1, 6, (30, 1), generator=generator)).long()
    index = np.arange(30) % 4
    whole, _ = estimator(rewards, mask, index, -log_probs, squares)
    order = torch.randperm(30, generator=generator)
    shuffled, _ = estimator(
        rewards[order], mask[order], index[order.numpy()], -log_probs[order], squares[order]
    )
    assert torch.equal(whole[order], shuffled)
    inside = torch.as_tensor(index == 2)
    alone, _ = estimator(
        rewards[inside], mask[inside], np.zeros(inside.sum()), -log_probs[inside], squares[inside]
    )
    assert torch.equal(whole[inside], alone)


@BOTH
def test_bad_input_is_named(estimator) -> None:
    ones = torch.ones(2, 2)
    with pytest.raises(ValueError, match="sum_pi_squared: 1 of 2 rows are not finite"):
        estimator(ones, ones, np.zeros(2), -ones, torch.tensor([[0.5, 0.5], [0.5, float("nan")]]))
    with pytest.raises(ValueError, match=r"old_log_probs \(2, 1\)"):
        estimator(ones, ones, np.zeros(2), -ones[:, :1], ones)


@BOTH
def test_confident_tokens_keep_their_digits(estimator) -> None:
    # Probabilities 1 - 2e-4 and 1 - 1e-4: 1 - 2 pi + pi^2 = (1 - pi)^2 = 4e-8 and 1e-8, less than fp32
    # resolves beside 1, in ratio 4.
    probabilities = torch.tensor([[1 - 2e-4], [1 - 1e-4]], dtype=torch.float64)
    rewards = torch.tensor([[1.0], [0.0]])
    advantages, _ = estimator(
        rewards, torch.ones(2, 1), np.zeros(2), probabilities.log(), probabilities**2, epsilon=0.0
    )
    assert advantages[:, 0].tolist() == pytest.approx([1 - 0.8, -0.8], abs=1e-5)
