"""Whitening: by hand, per policy, with weights, and what it refuses."""

import numpy as np
import pytest
import torch

from verl.trainer.ppo.core_algos.estimators.whitening import whiten


def test_by_hand() -> None:
    # unmasked 1, 2, 6: mean 3, variance (4 + 1 + 9) / 2 = 7; the masked NaN is nowhere
    out = whiten(torch.tensor([[1.0, float("nan")], [2.0, 6.0]]), torch.tensor([[1, 0], [1, 1]]))
    assert out.tolist() == [pytest.approx([-2 / 7**0.5, 0.0]), pytest.approx([-1 / 7**0.5, 3 / 7**0.5])]


def test_policies_do_not_see_each_other() -> None:
    values, mask = torch.randn(6, 5), torch.ones(6, 5)
    policy = np.array(["a", "b", "a", "b", "b", "a"], dtype=object)
    whole = whiten(values, mask, policy)
    for name in "ab":
        mine = torch.as_tensor(policy == name)
        assert torch.equal(whole[mine], whiten(values[mine], mask[mine]))
    scaled = torch.where(torch.as_tensor(policy == "b").unsqueeze(1), values * 1e6, values)
    assert torch.equal(whiten(scaled, mask, policy)[0], whole[0])


@pytest.mark.parametrize("entries", [1, 7])
def test_equal_entries_become_exactly_zero(entries: int) -> None:
    assert (whiten(torch.full((1, entries), 0.1), torch.ones(1, entries)) == 0).all()


def test_equal_row_weights_change_nothing_and_zero_weight_is_absence() -> None:
    values, mask = torch.randn(4, 3), torch.ones(4, 3)
    assert torch.allclose(whiten(values, mask, weights=np.full(4, 0.25)), whiten(values, mask), atol=1e-7)
    out = whiten(values, mask, weights=np.array([1.0, 1.0, 0.0, 1.0]))
    assert torch.allclose(out[[0, 1, 3]], whiten(values[[0, 1, 3]], mask[:3]), atol=1e-7)
    assert (out[2] == 0).all()


def test_a_weighted_mean_by_hand() -> None:
    # weights 1, 1, 2 on 0, 4, 8: mean 20 / 4 = 5; variance (25 + 1 + 2 * 9) / (4 - 6 / 4) = 44 / 2.5
    out = whiten(torch.tensor([[0.0], [4.0], [8.0]]), torch.ones(3, 1), weights=np.array([1, 1, 2]))
    assert out[:, 0].tolist() == pytest.approx([-5 / 17.6**0.5, -1 / 17.6**0.5, 3 / 17.6**0.5])


def test_the_order_of_rows_does_not_change_a_bit() -> None:
    values, mask = torch.randn(200, 7) * 1e3, (torch.rand(200, 7) < 0.7).long()
    order = torch.randperm(200)
    assert torch.equal(whiten(values[order], mask[order]), whiten(values, mask)[order])


def test_dtypes() -> None:
    values, mask = torch.randn(3, 4), torch.ones(3, 4)
    assert whiten(values, mask).dtype == torch.float32
    assert whiten(values.bfloat16(), mask).dtype == torch.float32
    assert whiten(values.double(), mask).dtype == torch.float64


def test_nothing_to_whiten() -> None:
    assert whiten(torch.randn(2, 3), torch.zeros(2, 3)).abs().sum() == 0
    assert whiten(torch.zeros(0, 3), torch.zeros(0, 3)).shape == (0, 3)


def test_bad_input_is_named() -> None:
    mask = torch.ones(2, 2)
    with pytest.raises(ValueError, match=r"row 1 .* not finite"):
        whiten(torch.tensor([[1.0, 2.0], [1.0, float("inf")]]), mask)
    with pytest.raises(ValueError, match="differ in shape"):
        whiten(torch.zeros(2, 3), mask)
    with pytest.raises(ValueError, match="policy_index has 3 entries for the 2 rows"):
        whiten(torch.zeros(2, 2), mask, np.zeros(3))
    with pytest.raises(ValueError, match="weights of rows"):
        whiten(torch.zeros(2, 2), mask, weights=np.array([1.0, -1.0]))
    with pytest.raises(ValueError, match="values is on meta, response_mask on cpu"):
        whiten(torch.zeros(2, 2, device="meta"), mask)
