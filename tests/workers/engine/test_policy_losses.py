"""Every registered loss gives one gradient however its mini-batch is cut, packed or weighted."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.workers.engine.builders import (
    ONE_PIECE,
    gradients,
    largest_difference,
    loss_settings,
    make_engine,
    make_rows,
)
from verl.trainer.config import RolloutCorrectionConfig
from verl.trainer.plan.registry import POLICY_LOSSES
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.workers.engine import MicroBatchRule, UpdatePlan

BUILT_IN = sorted(name for name, fn in POLICY_LOSS_REGISTRY.items() if fn.__module__.startswith("verl."))
USES_EVERY_ROW = [name for name in BUILT_IN if POLICY_LOSSES.traits(name).uses_every_row]


def rows_near_the_policy(model: Path, count: int = 10) -> dict[str, torch.Tensor]:
    """Rows whose old log-probs are 0.3 from the model's, with weights."""
    rows = make_rows(count)
    scores = make_engine(model).score_all(rows, 0.8, ONE_PIECE)
    generator = torch.Generator().manual_seed(1)
    rows["old_log_probs"] = scores.log_probs + 0.3 * torch.randn(scores.log_probs.shape, generator=generator)
    rows["row_weights"] = torch.randint(1, 4, (count,), generator=generator) / 2
    return rows


@pytest.mark.parametrize("name", BUILT_IN)
def test_cuts_and_padding_change_no_gradient(tiny_model_dir: Path, name: str) -> None:
    rows, (config, plan) = rows_near_the_policy(tiny_model_dir), loss_settings(name)
    whole, metrics = gradients(make_engine(tiny_model_dir), rows, ONE_PIECE, config, plan)
    assert max(float(g.abs().max()) for g in whole.values()) > 1e-4, (
        "a loss without a gradient proves nothing"
    )
    for packed, budget, count in ((True, None, 5), (True, 25, 1), (False, None, 1)):
        engine = make_engine(tiny_model_dir, use_remove_padding=packed)
        cut, cut_metrics = gradients(engine, rows, MicroBatchRule(budget, count, packed), config, plan)
        assert largest_difference(whole, cut) < 1e-6
        assert metrics == pytest.approx(cut_metrics, abs=1e-5)


@pytest.mark.parametrize("mode", ["token-mean", "token-sum", "seq-mean-token-mean"])
def test_a_row_of_weight_k_trains_like_k_rows(tiny_model_dir: Path, mode: str) -> None:
    """Entropy bonus and KL to the reference are weighted as well."""
    rows, (config, plan) = make_rows(7), loss_settings("vanilla", mode)
    config = replace(config, entropy_coeff=0.01, kl_loss_coef=0.1)
    repeats = torch.tensor([1, 3, 0, 2, 1, 1, 1])
    copies = {key: value.repeat_interleave(repeats, dim=0) for key, value in rows.items()}
    expected, _ = gradients(make_engine(tiny_model_dir), copies, ONE_PIECE, config, plan)
    found, _ = gradients(
        make_engine(tiny_model_dir),
        rows | {"row_weights": repeats.float()},
        MicroBatchRule(None, 2, True),
        config,
        plan,
    )
    scale = max(1.0, *(float(g.abs().max()) for g in expected.values()))
    assert largest_difference(expected, found) < 1e-6 * scale


@pytest.mark.parametrize("weights", [[1.0, -1.0, 1.0, 1.0], [1.0, float("nan"), 1.0, 1.0]])
def test_invalid_row_weights_are_refused(tiny_model_dir: Path, weights: list[float]) -> None:
    with pytest.raises(ValueError, match="row_weights"):
        gradients(make_engine(tiny_model_dir), make_rows(4) | {"row_weights": torch.tensor(weights)})


def test_rows_of_weight_zero_alone_change_nothing(tiny_model_dir: Path) -> None:
    found, metrics = gradients(make_engine(tiny_model_dir), make_rows(4) | {"row_weights": torch.zeros(4)})
    assert not any(g.any() for g in found.values())
    assert metrics["actor/pg_loss"] == 0.0


def on_policy_rows(model: Path) -> dict[str, torch.Tensor]:
    """Rows whose sampler log-probs are 0.1, 0.2, ... above the model's, row by row."""
    rows = make_rows(6)
    scores = make_engine(model).score_all(rows, 0.8, ONE_PIECE)
    rows["rollout_log_probs"] = scores.log_probs + 0.1 * torch.arange(1, 7)[:, None]
    del rows["old_log_probs"]
    return rows


def test_on_policy_updates_measure_the_gap_to_the_sampler(tiny_model_dir: Path) -> None:
    rows = on_policy_rows(tiny_model_dir)
    tokens = rows["response_mask"].sum(dim=1).double()
    gaps = 0.1 * torch.arange(1, 7)
    weights = torch.exp(-gaps.double())
    for rule in (ONE_PIECE, MicroBatchRule(None, 1, packed=True)):
        plan = UpdatePlan(
            temperature=0.8,
            on_policy=True,
            rollout_correction=RolloutCorrectionConfig(rollout_is_threshold=1.5),
        )
        _, metrics = gradients(
            make_engine(tiny_model_dir), rows, rule, plan=plan, config=loss_settings("vanilla")[0]
        )
        assert metrics["rollout_corr/log_prob_diff_mean"] == pytest.approx(
            float((tokens * gaps).sum() / tokens.sum()), abs=1e-5
        )
        assert metrics["rollout_corr/log_prob_diff_max"] == pytest.approx(
            float(gaps[tokens > 0].max()), abs=1e-5
        )
        size = (tokens * weights).sum() ** 2 / (tokens.sum() * (tokens * weights**2).sum())
        assert metrics["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(float(size), abs=1e-5)
        low = tokens[weights < 1 / 1.5].sum() / tokens.sum()
        assert metrics["rollout_corr/rollout_is_ratio_fraction_low"] == pytest.approx(float(low))


def test_recomputed_log_probs_need_no_second_measurement(tiny_model_dir: Path) -> None:
    rows = make_rows(4)
    rows["rollout_log_probs"] = rows["old_log_probs"]
    assert not any(
        name.startswith("rollout_corr/") for name in gradients(make_engine(tiny_model_dir), rows)[1]
    )


def test_bypass_measures_the_gap_and_what_it_rejects(tiny_model_dir: Path) -> None:
    rows = on_policy_rows(tiny_model_dir)
    rows["old_log_probs"] = rows["rollout_log_probs"]
    correction = RolloutCorrectionConfig(
        bypass_mode=True, rollout_rs="token_k1", rollout_rs_threshold="0.71_1.4"
    )
    config, _ = loss_settings("bypass_mode")
    found, metrics = gradients(
        make_engine(tiny_model_dir),
        rows,
        ONE_PIECE,
        config,
        UpdatePlan(temperature=0.8, rollout_correction=correction),
    )
    tokens = rows["response_mask"].sum(dim=1).double()
    rejected = tokens[3:].sum() / tokens.sum()
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(float(rejected))
    assert metrics["rollout_corr/log_prob_diff_max"] == pytest.approx(0.5, abs=1e-5)
    kept = {name: value[:3] for name, value in rows.items()}
    plain = UpdatePlan(temperature=0.8)
    assert (
        largest_difference(found, gradients(make_engine(tiny_model_dir), kept, ONE_PIECE, config, plain)[0])
        < 1e-6
    )


def test_a_batch_rejected_whole_takes_no_step(tiny_model_dir: Path) -> None:
    rows = on_policy_rows(tiny_model_dir)
    rows["old_log_probs"] = rows["rollout_log_probs"] + 50.0
    correction = RolloutCorrectionConfig(bypass_mode=True, rollout_rs="token_k1", rollout_rs_threshold=2.0)
    engine = make_engine(tiny_model_dir)
    found, metrics = gradients(
        engine,
        rows,
        config=loss_settings("vanilla")[0],
        plan=UpdatePlan(temperature=0.8, rollout_correction=correction),
    )
    assert not found and engine.steps == 0
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == 1.0


def test_the_bypass_loss_needs_bypass_mode(tiny_model_dir: Path) -> None:
    config, plan = loss_settings("bypass_mode")
    config = replace(config, policy_loss=replace(config.policy_loss, loss_mode="bypass_mode"))
    with pytest.raises(ValueError, match="needs algorithm"):
        gradients(
            make_engine(tiny_model_dir),
            make_rows(4),
            ONE_PIECE,
            config,
            replace(plan, rollout_correction=RolloutCorrectionConfig()),
        )


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - set(USES_EVERY_ROW)))
def test_rows_without_advantage_may_be_left_out(tiny_model_dir: Path, name: str) -> None:
    """They still count in the mean; the tokens of the micro-batches show how many are not computed."""
    rows, (config, plan) = rows_near_the_policy(tiny_model_dir), loss_settings(name)
    rows["advantages"][[0, 3, 4, 7]] = 0.0
    whole, _ = gradients(make_engine(tiny_model_dir), rows, ONE_PIECE, config, plan)
    skipping = replace(config, skip_zero_advantages=True)
    found, metrics = gradients(make_engine(tiny_model_dir), rows, ONE_PIECE, skipping, plan)
    assert largest_difference(whole, found) < 1e-6
    kept = {key: value[[1, 2, 5, 6, 8, 9]] for key, value in rows.items()}
    _, expected = gradients(make_engine(tiny_model_dir), kept, ONE_PIECE, config, plan)
    assert metrics["actor/entropy"] == pytest.approx(expected["actor/entropy"], abs=1e-6)


@pytest.mark.parametrize("name", USES_EVERY_ROW)
def test_losses_with_a_gradient_at_zero_advantage_are_computed(name: str) -> None:
    assert name in BUILT_IN


def test_a_step_in_which_no_row_has_an_advantage_is_still_a_step(tiny_model_dir: Path) -> None:
    rows, (config, plan) = make_rows(5), loss_settings("vanilla")
    rows["advantages"] = torch.zeros_like(rows["advantages"])
    engine = make_engine(tiny_model_dir)
    found, metrics = gradients(engine, rows, ONE_PIECE, replace(config, skip_zero_advantages=True), plan)
    assert not any(g.any() for g in found.values())
    assert (metrics["actor/grad_norm"], metrics["actor/pg_loss"]) == (0.0, 0.0)
    assert engine.steps == 1
