"""The gap between trainer and sampler, measured in parts and as a whole."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from verl.trainer.ppo.core_algos.rollout_correction import SamplerGap, compute_offpolicy_metrics, sampler_gap

MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])
OLD = torch.tensor([[-1.0, -2.0, math.nan], [-0.5, math.nan, math.nan]])
MU = torch.tensor([[-1.0, -3.0, 7.0], [-2.5, 7.0, 7.0]])


def test_metrics_of_three_tokens_by_hand() -> None:
    # log-ratios 0, 1, 2; ratios 1, e, e^2; weights under C = 2: 1, 2, 2
    metrics = sampler_gap(OLD, MU, MASK, 2.0).metrics()
    assert metrics["rollout_corr/log_prob_diff_mean"] == pytest.approx(1.0)
    assert metrics["rollout_corr/log_prob_diff_max"] == pytest.approx(2.0)
    assert metrics["rollout_corr/kl"] == pytest.approx(-1.0)
    assert metrics["rollout_corr/k3_kl"] == pytest.approx(((math.e - 2) + (math.e**2 - 3)) / 3)
    assert metrics["rollout_corr/chi2_token"] == pytest.approx((1 + math.e**2 + math.e**4) / 3 - 1)
    assert metrics["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(25 / 27)
    assert metrics["rollout_corr/rollout_is_ratio_fraction_high"] == pytest.approx(2 / 3)
    assert metrics["rollout_corr/rollout_is_ratio_fraction_low"] == 0.0
    gaps = [0.0, math.exp(-2) - math.exp(-3), math.exp(-0.5) - math.exp(-2.5)]
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(sum(gaps) / 3)
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(max(gaps))
    assert metrics["training/rollout_probs_diff_std"] == pytest.approx(statistics.stdev(gaps))
    probabilities = [[math.exp(-x) for x in row] for row in ((1, 2, 0.5), (1, 3, 2.5))]
    assert metrics["training/rollout_actor_probs_pearson_corr"] == pytest.approx(
        statistics.correlation(*probabilities)
    )


def test_one_token_has_no_spread_and_equal_probabilities_no_correlation() -> None:
    one = sampler_gap(OLD, MU, torch.tensor([[1, 0, 0], [0, 0, 0]])).metrics()
    equal = sampler_gap(torch.full((1, 9), -0.7), torch.full((1, 9), -0.7), torch.ones(1, 9)).metrics()
    assert "training/rollout_probs_diff_std" not in one and equal["training/rollout_probs_diff_std"] == 0.0
    assert "training/rollout_actor_probs_pearson_corr" not in one | equal


def test_parts_add_up_to_the_whole_and_travel_as_sums_and_maxima() -> None:
    whole = sampler_gap(OLD, MU, MASK, "0.5_3.0")
    parts = (
        SamplerGap()
        + sampler_gap(OLD[:1], MU[:1], MASK[:1], "0.5_3.0")
        + sampler_gap(OLD[1:], MU[1:], MASK[1:], "0.5_3.0")
    )
    assert parts.metrics() == pytest.approx(whole.metrics())
    assert SamplerGap.of(whole.sums(), whole.maxima()) == whole


def test_no_token_measures_nothing() -> None:
    gap = sampler_gap(OLD, MU, torch.zeros_like(MASK))
    assert gap == SamplerGap() and gap.metrics() == {}


def test_weights_that_are_all_zero_have_no_effective_sample() -> None:
    gap = sampler_gap(torch.zeros(1, 2), torch.full((1, 2), -9.0), torch.ones(1, 2), "0.5_2.0")
    assert gap.metrics()["rollout_corr/rollout_is_eff_sample_size"] == 0.0


@pytest.mark.parametrize("x", [-100.0, -20.0, 0.5, 100.0])
def test_k3_is_that_of_the_bounded_ratio_wherever_it_is_measured(x: float) -> None:
    bounded = max(-20.0, min(20.0, x))
    ours, theirs, mask = (
        torch.tensor([[min(x, 0.0), 0.0]]),
        torch.tensor([[min(-x, 0.0), 0.0]]),
        torch.ones(1, 2),
    )
    gap, offpolicy = sampler_gap(ours, theirs, mask).metrics(), compute_offpolicy_metrics(ours, theirs, mask)
    assert gap["rollout_corr/k3_kl"] == pytest.approx((math.exp(bounded) - bounded - 1) / 2)
    assert offpolicy["k3_kl"] == pytest.approx(gap["rollout_corr/k3_kl"])
    assert offpolicy["kl"] == pytest.approx(gap["rollout_corr/kl"]) == pytest.approx(-x / 2), (
        "k1 is not bounded"
    )
