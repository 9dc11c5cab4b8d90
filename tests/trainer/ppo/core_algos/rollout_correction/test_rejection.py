"""Which tokens and replies leave, mode by mode."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.trainer.ppo.core_algos.rollout_correction import (
    RS_MODES,
    compute_rollout_rejection_mask,
    compute_rs_metrics,
)

# Row 0: x = 0.1, 0.4 (sum 0.5, mean 0.25); row 1: x = -0.2; masked entries hold what must not matter.
X = torch.tensor([[0.1, 0.4, math.nan], [-0.2, 9.0, math.inf]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


def k2(x: float) -> float:
    return x * x / 2


def k3(x: float) -> float:
    return math.exp(x) - 1 - x


# The statistic of the first row's second token, or of the first row; of the second row's first token, or of
# the second row.
STATISTICS = {
    "token_k1": (-0.4, 0.2), "token_k2": (k2(0.4), k2(-0.2)), "token_k3": (k3(0.4), k3(-0.2)),
    "seq_sum_k1": (-0.5, 0.2), "seq_sum_k2": (k2(0.1) + k2(0.4), k2(-0.2)),
    "seq_sum_k3": (k3(0.1) + k3(0.4), k3(-0.2)),
    "seq_mean_k1": (-0.25, 0.2), "seq_mean_k2": ((k2(0.1) + k2(0.4)) / 2, k2(-0.2)),
    "seq_mean_k3": ((k3(0.1) + k3(0.4)) / 2, k3(-0.2)),
    "seq_max_k2": (k2(0.4), k2(-0.2)), "seq_max_k3": (k3(0.4), k3(-0.2)),
}  # fmt: skip


@pytest.mark.parametrize("mode", RS_MODES)
def test_each_mode_rejects_just_above_its_statistic_and_keeps_just_below(mode: str) -> None:
    first, second = STATISTICS[mode]
    rejected = [[1, 0, 0], [1, 0, 0]] if mode.startswith("token") else [[0, 0, 0], [1, 0, 0]]

    def threshold(factor: float) -> str | float:
        # k1 of the first row is negative: its lower bound, the exponential of it, is what rejects
        return (
            f"{math.exp(first * factor)}_{math.exp(abs(second) * 2)}"
            if mode.endswith("k1")
            else first * factor
        )

    slack = 1e-9 if mode.endswith("k1") else -1e-9
    assert (
        compute_rollout_rejection_mask(X, MASK, mode, threshold(1 + abs(slack)))[0].tolist() == MASK.tolist()
    )
    kept, metrics = compute_rollout_rejection_mask(X, MASK, mode, threshold(1 - abs(slack)))
    assert kept.tolist() == rejected and kept.dtype == MASK.dtype
    assert (
        metrics[f"rollout_rs_{mode}_masked_fraction"]
        == metrics["rollout_rs_masked_fraction"]
        == pytest.approx(1 / 3 if mode.startswith("token") else 2 / 3)
    )
    assert metrics["rollout_rs_seq_masked_fraction"] == 0.5


@pytest.mark.parametrize("mode", ["token_k1", "seq_sum_k1", "seq_mean_k1"])
def test_the_band_of_k1_is_of_sampler_over_trainer(mode: str) -> None:
    """A token that the trainer finds three times likelier is below 0.5..4, one that the sampler does is
    inside; 0.25..2 turns it round.
    """
    likelier_to = torch.tensor([[math.log(3.0)], [-math.log(3.0)]], dtype=torch.float64)
    kept, _ = compute_rollout_rejection_mask(likelier_to, torch.ones(2, 1), mode, "0.5_4.0")
    assert kept.tolist() == [[0.0], [1.0]]
    kept, _ = compute_rollout_rejection_mask(likelier_to, torch.ones(2, 1), mode, "0.25_2.0")
    assert kept.tolist() == [[1.0], [0.0]]


def test_metrics_of_a_mode_by_hand() -> None:
    _, metrics = compute_rollout_rejection_mask(X, MASK, "seq_mean_k1", "0.8_1.2")
    prefix = "rollout_rs_seq_mean_k1_"
    own = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
    low, high = math.log(0.8), math.log(1.2)
    # tokens carry their row's statistic: -0.25, -0.25, 0.2
    assert own["mean"] == pytest.approx(-0.1)
    assert (own["max"], own["min"]) == pytest.approx((0.2, -0.25))
    assert (own["fraction_high"], own["fraction_low"]) == (0.5, 0.5)
    bounded = [low, low, high]
    centre = sum(bounded) / 3
    assert own["std"] == pytest.approx(math.sqrt(sum((b - centre) ** 2 for b in bounded) / 3))
    assert own["seq_mean"] == pytest.approx(-0.025) and own["seq_std"] == pytest.approx(0.45 / math.sqrt(2))
    assert own["seq_max_deviation"] == pytest.approx(0.25)
    assert own["masked_fraction"] == own["seq_masked_fraction"] == 1.0


def test_every_mode_must_keep_a_token_and_bounds_belong_to_modes_in_order() -> None:
    both, metrics = compute_rollout_rejection_mask(
        X, MASK, "token_k2, seq_sum_k1, token_k2", f"{k2(0.3)},0.5_1.1"
    )
    assert both.tolist() == [[1, 0, 0], [0, 0, 0]]
    assert metrics["rollout_rs_masked_fraction"] == pytest.approx(2 / 3)
    assert "rollout_rs_token_k2_mean" in metrics and "rollout_rs_seq_sum_k1_seq_fraction_low" in metrics


def test_a_single_ratio_bound_stands_for_its_reciprocal_as_well() -> None:
    log_ratio = torch.log(torch.tensor([[2.1, 1.9, 1 / 1.9, 1 / 2.1]]))
    assert compute_rollout_rejection_mask(log_ratio, torch.ones(1, 4), "token_k1", 2.0)[0].tolist() == [
        [0, 1, 1, 0]
    ]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), mode=st.sampled_from(RS_MODES))
def test_row_order_and_padding_rows_change_nothing(seed: int, mode: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, mask = torch.randn(5, 4, generator=generator), (torch.rand(5, 4, generator=generator) < 0.7).long()
    mask[:, 0] = 1
    bound = "0.6_1.5" if mode.endswith("k1") else 0.3
    kept, metrics = compute_rollout_rejection_mask(x, mask, mode, bound)
    order = torch.randperm(5, generator=generator)
    padded, again = compute_rollout_rejection_mask(
        torch.cat([x[order], torch.full((1, 4), 99.0)]),
        torch.cat([mask[order], torch.zeros(1, 4, dtype=torch.long)]),
        mode,
        bound,
    )
    assert torch.equal(padded[:-1], kept[order]) and not padded[-1].any()
    assert again == pytest.approx(metrics)
    assert torch.equal(kept * mask, kept), "nothing comes back"


@pytest.mark.parametrize(
    ("modes", "bounds", "message"),
    [
        ("token_k4", 1.0, "Invalid rollout_rs option 'token_k4'"),
        ("seq_max_k1", 1.0, "Invalid rollout_rs option"),
        (" , ", 1.0, "contains no mode"),
        ("token_k1", None, "rollout_rs_threshold must be provided"),
        ("token_k1,token_k2", "1,2,3", "has 3 bounds; expected one, or 2"),
        ("token_k3", "0.1_0.2", "single upper bound"),
        ("token_k3", "0", "must be positive"),
        ("token_k1", "0", "must be positive"),
        ("token_k1", "2_1", "above the upper"),
        ("token_k1", "0.5_2_3", "expected a number"),
        ("token_k1", ",", "has 0 bounds"),
    ],
)
def test_a_rejection_that_means_nothing_is_one_clear_error(modes: str, bounds: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compute_rollout_rejection_mask(X, MASK, modes, bounds)  # type: ignore[arg-type]


def test_bounds_that_are_no_number_name_their_type_and_no_rows_are_no_error() -> None:
    with pytest.raises(TypeError, match="rollout_rs_threshold="):
        compute_rollout_rejection_mask(X, MASK, "token_k1", [1.0])  # type: ignore[arg-type]
    assert compute_rollout_rejection_mask(X[:0], MASK[:0], "token_k1", 2.0)[1] == {}
    with pytest.raises(ValueError, match="at least one valid token"):
        compute_rs_metrics(
            "token_k1", X, torch.zeros_like(MASK), torch.zeros(2), level="token", per_sequence_values=None,
            rollout_rs_threshold=1.0, rollout_rs_threshold_lower=0.0, apply_lower_threshold=False,
        )  # fmt: skip
