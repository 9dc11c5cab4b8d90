"""M2PO keeps as many tokens as the bound allows, whatever their order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.trainer.ppo.core_algos.rollout_correction import compute_m2po_mask


def test_the_largest_squares_leave_until_the_mean_is_under_tau() -> None:
    # squares 0.01, 0.04, 0.09, 0.16, 1; means of the smallest 1..5: 0.01, 0.025, 0.0467, 0.075, 0.26
    log_ratio = torch.tensor([[0.1, -0.2, 9.0], [1.0, 0.3, -0.4]], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    kept, metrics = compute_m2po_mask(log_ratio, mask, 0.05, log_ratio)
    assert kept.tolist() == [[1, 1, 0], [0, 1, 0]] and kept.dtype == mask.dtype
    assert metrics == pytest.approx({"m2po_m2": 0.26, "m2po_m2_kept": 0.14 / 3, "m2po_masked_fraction": 0.4})
    assert compute_m2po_mask(log_ratio, mask, 0.3, log_ratio)[0].tolist() == mask.tolist()


def test_tokens_of_the_same_value_leave_together() -> None:
    # squares 1/4, 1, 1: two of three would have mean 0.625, but nothing tells the two ones apart
    log_ratio = torch.tensor([[0.5, 1.0, -1.0]])
    kept, _ = compute_m2po_mask(log_ratio, torch.ones(1, 3), 0.7, log_ratio)
    assert kept.tolist() == [[1.0, 0.0, 0.0]]


def test_a_bound_that_no_token_meets_keeps_none() -> None:
    kept, metrics = compute_m2po_mask(torch.full((1, 2), 3.0), torch.ones(1, 2), 0.04, torch.ones(1, 2))
    assert not kept.any() and metrics["m2po_m2_kept"] == 0.0 and metrics["m2po_masked_fraction"] == 1.0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), tau=st.floats(0.001, 2.0))
def test_it_is_the_largest_set_of_smallest_squares_for_any_order_of_rows(seed: int, tau: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    # rounded: some values are the same
    log_ratio = torch.randn(4, 5, generator=generator).round(decimals=1).double()
    mask = (torch.rand(4, 5, generator=generator) < 0.8).long()
    mask[0, 0] = 1
    advantages = torch.randn(4, 5, generator=generator).round()
    kept, _ = compute_m2po_mask(log_ratio, mask, tau, advantages)
    squares, bounded = log_ratio.square(), mask.bool() & (advantages * log_ratio > 0)
    own = squares[bounded]
    allowed = [bound for bound in own.unique().tolist() if own[own <= bound].mean() <= tau + 1e-12]
    assert torch.equal(kept.bool(), mask.bool() & ~(bounded & (squares > max(allowed, default=-1.0))))
    order = torch.randperm(4, generator=generator)
    assert torch.equal(
        compute_m2po_mask(log_ratio[order], mask[order], tau, advantages[order])[0], kept[order]
    )


@pytest.mark.parametrize(
    ("log_ratio", "advantages", "tau", "kept"),
    [
        ([0.5, -0.5, 0.0, 0.0], [1.0] * 4, 0.1, [0, 1, 1, 1]),
        ([0.5, -0.5, 0.0, 0.0], [-1.0] * 4, 0.1, [1, 0, 1, 1]),
        ([0.25] + [0.0] * 9, [1.0] * 10, 0.04, [0] + [1] * 9),
        ([3.0, -3.0, 3.0], [-1.0, 1.0, 0.0], 0.04, [1, 1, 1]),
        ([3.0, 0.1, -3.0], [1e-30, 1e-30, 1.0], 0.04, [0, 1, 1]),
    ],
)
def test_only_tokens_that_the_update_drives_from_the_sampler_are_bounded(
    log_ratio: list[float], advantages: list[float], tau: float, kept: list[int]
) -> None:
    found, metrics = compute_m2po_mask(
        torch.tensor([log_ratio]), torch.ones(1, len(kept)), tau, torch.tensor([advantages])
    )
    assert found.tolist() == [kept]
    assert metrics["m2po_masked_fraction"] == pytest.approx(1 - sum(kept) / len(kept))


@pytest.mark.parametrize("tau", [0.0, -1.0, float("nan")])
def test_a_bound_must_be_positive(tau: float) -> None:
    with pytest.raises(ValueError, match="m2po_tau="):
        compute_m2po_mask(torch.zeros(1, 1), torch.ones(1, 1), tau, torch.ones(1, 1))


def test_a_mean_of_exactly_tau_keeps_every_token() -> None:
    """0.2^2 is a little more than 0.04 in floating point."""
    log_ratio = torch.full((1, 7), 0.2, dtype=torch.float64)
    mask, metrics = compute_m2po_mask(log_ratio, torch.ones(1, 7), 0.04, torch.ones(1, 7))
    assert mask.all() and metrics["m2po_masked_fraction"] == 0.0
