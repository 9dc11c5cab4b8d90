"""A team's batch: every policy corrected on its own, rejected rows, bypass and staleness."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.trainer.config import RolloutCorrectionConfig
from verl.trainer.ppo.core_algos.per_policy import aggregate_policies, staleness_metrics
from verl.trainer.ppo.core_algos.rollout_correction import (
    apply_bypass_mode,
    apply_m2po_mask,
    compute_m2po_mask,
    compute_rollout_correction_and_add_to_batch,
    compute_rollout_correction_and_rejection_mask,
    mask_metrics,
    sampler_gap_metrics,
)

# Log-ratios of four rows with two tokens each; the third row has one.
X = torch.tensor([[0.1, 0.2], [1.0, 1.5], [-0.3, 0.0], [2.5, 3.0]])
MASK = torch.tensor([[1, 1], [1, 1], [1, 0], [1, 1]])
POLICIES = ["a", "b", "a", "b"]


def make_batch(x: torch.Tensor = X, mask: torch.Tensor = MASK, **columns: Any) -> DataProto:
    old = torch.full(x.shape, -2.0)
    tensors = {"old_log_probs": old, "rollout_log_probs": old - x, "response_mask": mask.clone()}
    return DataProto.from_dict(
        tensors=tensors,
        non_tensors={name: np.array(values, dtype=object) for name, values in columns.items()},
    )


def test_means_never_cross_policies() -> None:
    config = RolloutCorrectionConfig(
        rollout_is="token", rollout_is_threshold=100.0, rollout_is_batch_normalize=True
    )
    batch, metrics = compute_rollout_correction_and_add_to_batch(make_batch(policy_id=POLICIES), config)
    means = {
        "a": (math.exp(0.1) + math.exp(0.2) + math.exp(-0.3)) / 3,
        "b": sum(math.exp(v) for v in (1, 1.5, 2.5, 3)) / 4,
    }
    weights = batch.batch["rollout_is_weights"]
    for row, policy in enumerate(POLICIES):
        assert torch.allclose(weights[row], torch.exp(X[row]) * MASK[row] / means[policy])
    factor = "rollout_corr/rollout_is_batch_norm_factor"
    assert metrics[f"wg/a/{factor}"] == pytest.approx(means["a"]) and metrics[factor] == pytest.approx(
        sum(means.values()) / 2
    )


def test_m2po_bounds_the_second_moment_of_every_policy() -> None:
    batch = make_batch(policy_id=POLICIES)
    batch.batch["advantages"] = torch.sign(X)
    metrics = apply_m2po_mask(batch, 1.7)
    # policy a: all squares below 0.1; policy b: 1, 2.25, 6.25, 9: the two smallest have mean 1.625
    assert batch.batch["response_mask"].tolist() == [[1, 1], [1, 1], [1, 0], [0, 0]]
    assert (
        metrics["wg/a/rollout_corr/m2po_masked_fraction"] == 0.0
        and metrics["wg/b/rollout_corr/m2po_masked_fraction"] == 0.5
    )
    assert "rollout_is_weights" not in set(batch.batch.keys())


def test_m2po_looks_at_what_rejection_has_kept() -> None:
    config = RolloutCorrectionConfig(rollout_rs="token_k2", rollout_rs_threshold=4.0, m2po_tau=1.7)
    batch, metrics = compute_rollout_correction_and_add_to_batch(make_batch(), config)
    batch.batch["advantages"] = torch.sign(X)
    apply_m2po_mask(batch, 1.7)
    rejected = MASK * (0.5 * X.square() <= 4.0)
    assert torch.equal(
        batch.batch["response_mask"], compute_m2po_mask(X.double(), rejected, 1.7, torch.sign(X))[0]
    )
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1 / 7)


def test_a_policy_that_loses_every_row_keeps_them_empty_and_harms_no_other() -> None:
    config = RolloutCorrectionConfig.decoupled_seq_is_rs(rs_threshold="0.5_2.0")
    batch, metrics = compute_rollout_correction_and_add_to_batch(make_batch(policy_id=POLICIES), config)
    assert len(batch) == 4 and batch.batch["response_mask"].sum(dim=1).tolist() == [2, 0, 1, 0]
    assert metrics["wg/b/rollout_corr/rollout_rs_seq_masked_fraction"] == 1.0
    assert metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == 0.5
    again, metrics = compute_rollout_correction_and_add_to_batch(batch, config)
    assert again.batch["response_mask"].sum(dim=1).tolist() == [2, 0, 1, 0]
    assert not any(name.startswith("wg/b") for name in metrics), "no token, no metric"


def test_a_batch_without_a_token_is_left_as_it_is() -> None:
    empty = make_batch(mask=torch.zeros_like(MASK), policy_id=POLICIES)
    batch, metrics = compute_rollout_correction_and_add_to_batch(
        empty, RolloutCorrectionConfig.decoupled_seq_is_rs()
    )
    assert metrics == {} and not batch.batch["rollout_is_weights"].any()


def test_one_policy_is_what_the_function_on_tensors_gives() -> None:
    config = RolloutCorrectionConfig.decoupled_k3_rs_token_tis(rs_threshold=0.5)
    batch, metrics = compute_rollout_correction_and_add_to_batch(make_batch(), config)
    given = make_batch().batch
    weights, kept, expected = compute_rollout_correction_and_rejection_mask(
        given["old_log_probs"], given["rollout_log_probs"], MASK, "token", 2.0, False, "seq_mean_k3", 0.5
    )
    assert weights is not None and torch.equal(
        batch.batch["rollout_is_weights"], weights.batch["rollout_is_weights"]
    )
    assert torch.equal(batch.batch["response_mask"], kept) and metrics == expected


def test_shuffled_rows_are_corrected_alike_to_the_bit() -> None:
    config = RolloutCorrectionConfig("token", 2.0, True, "seq_mean_k3", 0.6, 2.0)
    order = np.array([3, 1, 0, 2])
    plain, metrics = compute_rollout_correction_and_add_to_batch(make_batch(policy_id=POLICIES), config)
    shuffled, again = compute_rollout_correction_and_add_to_batch(
        make_batch(policy_id=POLICIES).select_idxs(order), config
    )
    for name in ("rollout_is_weights", "response_mask"):
        assert torch.equal(shuffled.batch[name], plain.batch[name][order])
    assert again == pytest.approx(metrics)


def test_bypass_takes_the_samplers_log_probs_and_needs_them() -> None:
    batch = make_batch()
    apply_bypass_mode(batch, RolloutCorrectionConfig.bypass_ppo_clip())
    assert torch.equal(batch.batch["old_log_probs"], batch.batch["rollout_log_probs"])
    with pytest.raises(ValueError, match="needs rollout_log_probs"):
        apply_bypass_mode(DataProto.from_dict(tensors={"response_mask": MASK}))
    with pytest.raises(ValueError, match=r"needs \['old_log_probs', 'rollout_log_probs'\]"):
        sampler_gap_metrics(DataProto.from_dict(tensors={"response_mask": MASK}))


def test_the_gap_is_measured_for_every_policy_and_averaged() -> None:
    metrics = sampler_gap_metrics(make_batch(policy_id=POLICIES))
    assert metrics["rollout_corr/log_prob_diff_mean"] == pytest.approx((0.2 + 2.0) / 2)
    assert (
        metrics["rollout_corr/log_prob_diff_max"]
        == metrics["wg/b/rollout_corr/log_prob_diff_max"]
        == pytest.approx(3.0)
    )
    assert metrics["wg/a/rollout_corr/log_prob_diff_mean"] == pytest.approx(0.2)
    assert metrics["wg/a/rollout_corr/rollout_is_ratio_fraction_high"] == 0.0
    assert metrics["wg/b/rollout_corr/rollout_is_ratio_fraction_high"] == 1.0


def test_aggregate_policies_takes_the_mean_but_the_largest_of_a_maximum_and_the_smallest_of_a_minimum() -> (
    None
):
    per_policy = {
        "a": {"x/mean": 1.0, "x/is_max": 1.0, "x/diff_min": 1.0},
        "b": {"x/mean": 3.0, "x/is_max": 3.0, "x/diff_min": 3.0, "x/own": 5.0},
    }
    together = aggregate_policies(per_policy)
    assert {name: value for name, value in together.items() if not name.startswith("wg/")} == {
        "x/mean": 2.0, "x/is_max": 3.0, "x/diff_min": 1.0, "x/own": 5.0,
    }  # fmt: skip
    assert together["wg/b/x/own"] == 5.0 and "wg/a/x/own" not in together


def test_staleness_counts_versions_of_rows_that_have_a_token() -> None:
    mask = MASK.clone()
    mask[3] = 0
    batch = make_batch(
        mask=mask, agent_id=["Solver Agent", "Solver Agent", "Critic", "Critic"], version=[7, 5, 8, 0]
    )
    assert staleness_metrics(batch, 8) == {
        "agent/solver_agent/staleness/mean": 2.0, "agent/solver_agent/staleness/max": 3.0,
        "agent/critic/staleness/mean": 0.0, "agent/critic/staleness/max": 0.0,
    }  # fmt: skip


def test_masks_cut_off_what_the_policy_would_have_sampled() -> None:
    # mass of the tokens that may follow
    allowed = torch.tensor([[0.5, 0.25], [0.1, 0.1], [0.9, 0.1], [1.0, 1.0]])
    agents = ["Solver Agent", "Solver Agent", "Solver Agent", "Critic"]
    metrics = mask_metrics(make_batch(allowed.log(), agent_id=agents, masked=[True, False, True, False]))
    assert metrics == {
        "gateway/solver_agent/masked_calls": 2.0,
        "gateway/solver_agent/mass_cut_off_mean": pytest.approx((0.5 + 0.75 + 0.1) / 3),
        "gateway/critic/masked_calls": 0.0,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rollout_log_probs": torch.zeros(1, 3)}, "does not match the others"),
        ({"response_mask": torch.zeros(1, 2)}, "at least one valid token"),
    ],
)
def test_tensors_that_do_not_belong_together_are_refused(
    change: dict[str, torch.Tensor], message: str
) -> None:
    tensors = {
        "old_log_prob": torch.zeros(1, 2),
        "rollout_log_prob": torch.zeros(1, 2),
        "response_mask": torch.ones(1, 2),
    }
    tensors |= {name.replace("log_probs", "log_prob"): value for name, value in change.items()}
    with pytest.raises(ValueError, match=message):
        compute_rollout_correction_and_rejection_mask(**tensors)
