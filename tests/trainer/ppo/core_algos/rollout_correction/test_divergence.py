"""Diagnostics of the gap between two policies, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from verl.trainer.ppo.core_algos.rollout_correction import (
    compute_offpolicy_metrics,
    compute_rollout_corr_metrics_from_logprobs,
)

# Row means -1.5 and -3 (trainer), -2 and -2.5 (sampler); x = 0, 1 in the first row and -0.5 in the second;
# the last row is padding.
OLD = torch.tensor([[-1.0, -2.0], [-3.0, math.nan], [5.0, 5.0]])
MU = torch.tensor([[-1.0, -3.0], [-2.5, 7.0], [9.0, 9.0]])
MASK = torch.tensor([[1, 1], [1, 0], [0, 0]])


def test_diagnostics_by_hand_leave_padding_rows_out() -> None:
    metrics = compute_offpolicy_metrics(OLD, MU, MASK)
    x = [0.0, 1.0, -0.5]
    assert metrics == pytest.approx(
        {
            "training_ppl": (math.exp(1.5) + math.exp(3)) / 2,
            "training_log_ppl": 2.25,
            "kl": -sum(x) / 3,
            "k3_kl": sum(math.exp(v) - v - 1 for v in x) / 3,
            "rollout_ppl": (math.exp(2) + math.exp(2.5)) / 2,
            "rollout_log_ppl": 2.25,
            "log_ppl_diff": 0.0,  # -0.5 and 0.5
            "log_ppl_abs_diff": 0.5,
            "log_ppl_diff_max": 0.5,
            "log_ppl_diff_min": -0.5,
            "ppl_ratio": (math.exp(-0.5) + math.exp(0.5)) / 2,
            "chi2_token": sum(math.exp(2 * v) for v in x) / 3 - 1,
            "chi2_seq": (math.exp(2) + math.exp(-1)) / 2 - 1,
        }
    )


def test_without_a_sampler_there_is_the_trainers_perplexity_alone() -> None:
    assert set(compute_offpolicy_metrics(OLD, None, MASK)) == {"training_ppl", "training_log_ppl"}


def test_the_update_reports_them_under_verls_prefix() -> None:
    named = compute_rollout_corr_metrics_from_logprobs(OLD, MU, MASK)
    assert named == {
        f"rollout_corr/{name}": value for name, value in compute_offpolicy_metrics(OLD, MU, MASK).items()
    }


def test_a_far_token_does_not_overflow() -> None:
    metrics = compute_offpolicy_metrics(torch.tensor([[0.0]]), torch.tensor([[-1000.0]]), torch.tensor([[1]]))
    assert metrics["k3_kl"] == pytest.approx(math.exp(20) - 21) and math.isfinite(metrics["chi2_seq"])


def test_an_empty_mask_is_refused() -> None:
    with pytest.raises(AssertionError, match="at least one valid token"):
        compute_offpolicy_metrics(OLD, MU, torch.zeros_like(MASK))
