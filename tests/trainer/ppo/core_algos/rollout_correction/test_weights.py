"""Importance weights by hand, their bounds, and what they do not depend on."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.trainer.ppo.core_algos.rollout_correction import (
    Band,
    compute_is_metrics,
    compute_rollout_correction_weights,
)

# Two rows; ratios 1, e, 1/e and e^3; masked entries hold what must not matter.
LOG_RATIO = torch.tensor([[0.0, 1.0, -1.0], [3.0, math.nan, math.inf]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])
E = math.e


def drawn(seed: int, rows: int = 6, width: int = 5, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random log-ratios and a mask whose rows have at least one token."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, width + 1, (rows, 1), generator=generator)
    return scale * torch.randn(rows, width, generator=generator), (torch.arange(width) < lengths).long()


def test_token_weights_are_ratios_cut_at_the_threshold() -> None:
    weights, metrics = compute_rollout_correction_weights(LOG_RATIO, MASK, "token", 2.0)
    assert weights.tolist() == [pytest.approx([1.0, 2.0, 1 / E]), [2.0, 0.0, 0.0]]
    applied = [1.0, 2.0, 1 / E, 2.0]
    mean = sum(applied) / 4
    assert metrics["rollout_is_mean"] == pytest.approx(mean)
    assert (metrics["rollout_is_max"], metrics["rollout_is_min"]) == pytest.approx((2.0, 1 / E))
    assert metrics["rollout_is_ratio_fraction_high"] == 0.5  # e and e^3
    assert metrics["rollout_is_ratio_fraction_low"] == 0.25  # 1/e < 1/2
    assert metrics["rollout_is_std"] == pytest.approx(math.sqrt(sum((w - mean) ** 2 for w in applied) / 4))
    assert metrics["rollout_is_eff_sample_size"] == pytest.approx(
        sum(applied) ** 2 / (4 * sum(w * w for w in applied))
    )
    rows = [(1.0 + 2.0 + 1 / E) / 3, 2.0]
    assert metrics["rollout_is_seq_mean"] == pytest.approx(sum(rows) / 2)
    assert metrics["rollout_is_seq_max_deviation"] == pytest.approx(1.0)
    assert metrics["rollout_is_seq_fraction_high"] == 0.5  # raw row means 1.36 and e^3


def test_a_sequence_weighs_the_product_of_its_ratios() -> None:
    weights, metrics = compute_rollout_correction_weights(
        torch.tensor([[0.5, 0.5], [-1.0, 9.0]]), torch.tensor([[1, 1], [1, 0]]), "sequence", 2.0
    )
    assert weights.tolist() == [[2.0, 2.0], pytest.approx([1 / E, 0.0])]  # exp(1) is cut at 2
    assert metrics["rollout_is_max"] == pytest.approx(E) and metrics["rollout_is_min"] == pytest.approx(1 / E)
    assert (
        metrics["rollout_is_ratio_fraction_high"] == 0.5 and metrics["rollout_is_ratio_fraction_low"] == 0.5
    )


def test_outside_a_band_the_weight_is_zero() -> None:
    weights, metrics = compute_rollout_correction_weights(LOG_RATIO, MASK, "token", "0.5_3.0")
    assert weights.tolist() == [pytest.approx([1.0, E, 0.0]), [0.0, 0.0, 0.0]]
    assert metrics["rollout_is_oob_ratio"] == 0.5


def test_log_ratios_are_clamped_before_they_are_exponentiated() -> None:
    weights, _ = compute_rollout_correction_weights(
        torch.tensor([[80.0, -80.0]]), torch.ones(1, 2), "token", 1e12
    )
    assert weights.tolist() == [pytest.approx([math.exp(20), math.exp(-20)])]


@pytest.mark.parametrize(
    ("level", "factor"), [("token", (1 + 2 + 1 / E + 2) / 4), ("sequence", (1.0 + 2.0) / 2)]
)
def test_normalised_weights_have_mean_one_over_tokens_or_over_rows(level: str, factor: float) -> None:
    weights, metrics = compute_rollout_correction_weights(
        LOG_RATIO, MASK, level, 2.0, rollout_is_batch_normalize=True
    )
    plain, _ = compute_rollout_correction_weights(LOG_RATIO, MASK, level, 2.0)
    assert metrics["rollout_is_batch_norm_factor"] == pytest.approx(factor)
    assert torch.allclose(weights, plain / factor)


def test_weights_carry_no_gradient() -> None:
    log_ratio = torch.zeros(1, 2, requires_grad=True)
    assert not compute_rollout_correction_weights(log_ratio, torch.ones(1, 2))[0].requires_grad


def test_weights_that_are_all_cut_away_have_no_effective_sample() -> None:
    weights, metrics = compute_rollout_correction_weights(
        torch.full((1, 2), 5.0), torch.ones(1, 2), "token", "0.5_2.0", True
    )
    assert (
        not weights.any()
        and metrics["rollout_is_eff_sample_size"] == 0.0
        and metrics["rollout_is_batch_norm_factor"] == 1.0
    )


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    level=st.sampled_from(["token", "sequence"]),
    bounds=st.sampled_from([2.0, "0.5_2.0"]),
)
def test_row_order_and_padding_rows_change_nothing(seed: int, level: str, bounds: str | float) -> None:
    log_ratio, mask = drawn(seed)
    weights, metrics = compute_rollout_correction_weights(log_ratio, mask, level, bounds, True)
    order = torch.randperm(len(mask), generator=torch.Generator().manual_seed(seed))
    shuffled, shuffled_metrics = compute_rollout_correction_weights(
        log_ratio[order], mask[order], level, bounds, True
    )
    assert torch.equal(shuffled, weights[order]), "to the bit"
    assert shuffled_metrics == pytest.approx(metrics)
    filler = torch.full((2, mask.shape[1]), 7.0)
    padded, padded_metrics = compute_rollout_correction_weights(
        torch.cat([log_ratio, filler]), torch.cat([mask, torch.zeros(2, mask.shape[1])]), level, bounds, True
    )
    assert torch.equal(padded[:-2], weights) and not padded[-2:].any()
    assert padded_metrics == pytest.approx(metrics)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "expected a number"), ("x", "expected a number"), ("1_2_3", "expected a number"),
        ("nan", "expected a number"),
        (0, "must be positive"), ("-1_2", "must be positive"), ("3_2", "lower bound 3 is above the upper 2"),
    ],
)  # fmt: skip
def test_a_malformed_threshold_is_one_clear_error(spec: object, message: str) -> None:
    with pytest.raises(ValueError, match=rf"rollout_is_threshold=.*{message}"):
        compute_rollout_correction_weights(LOG_RATIO, MASK, "token", spec)  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", [True, None, [1.0]])
def test_a_threshold_that_is_no_number_names_its_type(spec: object) -> None:
    with pytest.raises(TypeError, match="rollout_is_threshold="):
        Band.parse(spec)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("log_ratio", "mask", "message"),
    [
        (torch.zeros(1, 2), torch.ones(1, 3), "do not match response_mask"),
        (torch.zeros(1, 2, device="meta"), torch.ones(1, 2), "move both to one device"),
        (torch.zeros(1, 2), torch.zeros(1, 2), "at least one valid token"),
        (
            torch.tensor([[0.0, math.nan]]),
            torch.ones(1, 2),
            "rollout_log_probs is not finite for 1 of 2 tokens",
        ),
    ],
)
def test_tensors_that_do_not_belong_together_are_named(
    log_ratio: torch.Tensor, mask: torch.Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        compute_rollout_correction_weights(log_ratio, mask)


def test_an_unknown_level_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"rollout_is='turn'.*token.*sequence"):
        compute_rollout_correction_weights(LOG_RATIO, MASK, "turn")
    with pytest.raises(ValueError, match="at least one valid token"):
        compute_is_metrics(LOG_RATIO, LOG_RATIO, LOG_RATIO, torch.zeros_like(MASK), "token", 2.0)
