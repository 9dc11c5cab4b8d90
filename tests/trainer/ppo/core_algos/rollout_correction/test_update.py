"""The correction arrives in the gradient of a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.engine.builders import ONE_PIECE, gradients, largest_difference, make_engine, make_rows
from verl.protocol import DataProto
from verl.trainer.config import ActorConfig, RolloutCorrectionConfig
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.trainer.ppo.core_algos.rollout_correction import (
    apply_m2po_mask,
    compute_rollout_correction_and_add_to_batch,
)
from verl.workers.engine import UpdatePlan, update_policy

Rows = dict[str, torch.Tensor]


def perturbed(model: Path) -> Rows:
    """Rows whose old log-probs are the model's own and whose sampler is off by noise."""
    rows = make_rows(6)
    rows["old_log_probs"] = make_engine(model).score_all(rows, 0.8, ONE_PIECE).log_probs
    noise = 1.5 * torch.randn(rows["old_log_probs"].shape, generator=torch.Generator().manual_seed(1))
    rows["rollout_log_probs"] = rows["old_log_probs"] + noise
    return rows


def corrected(rows: Rows, config: RolloutCorrectionConfig) -> Rows:
    batch, _ = compute_rollout_correction_and_add_to_batch(DataProto.from_dict(tensors=dict(rows)), config)
    if config.m2po_tau is not None:
        apply_m2po_mask(batch, config.m2po_tau)
    return dict(batch.batch.items())


def hand_weighted(
    model: Path, rows: Rows, weights: torch.Tensor, mask: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Gradient of `-mean(w A r)` over the kept tokens, with plain transformers; r = 1, so that nothing is
    clipped.
    """
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    logits = plain(
        input_ids=rows["input_ids"], attention_mask=rows["attention_mask"], position_ids=rows["position_ids"]
    ).logits
    log_probs = torch.log_softmax(logits[:, 6:-1] / 0.8, -1).gather(-1, rows["responses"][..., None])[..., 0]
    ratio = torch.exp(log_probs - log_probs.detach())
    (-(weights * rows["advantages"] * ratio * mask).sum() / mask.sum()).backward()
    return {name: p.grad for name, p in plain.named_parameters()}


def test_the_gradient_with_token_weights_is_the_hand_weighted_one(tiny_model_dir: Path) -> None:
    rows = perturbed(tiny_model_dir)
    found, _ = gradients(
        make_engine(tiny_model_dir),
        corrected(rows, RolloutCorrectionConfig.decoupled_token_is(1.5)),
        config=plain_loss(),
    )
    weights = torch.exp(rows["old_log_probs"] - rows["rollout_log_probs"]).clamp(max=1.5)
    assert (
        largest_difference(found, hand_weighted(tiny_model_dir, rows, weights, rows["response_mask"])) < 1e-6
    )
    unweighted, _ = gradients(make_engine(tiny_model_dir), rows, config=plain_loss())
    assert largest_difference(found, unweighted) > 1e-3


def test_rejected_tokens_and_replies_have_no_part_in_the_gradient(tiny_model_dir: Path) -> None:
    rows = perturbed(tiny_model_dir)
    config = RolloutCorrectionConfig(
        rollout_rs="token_k1,seq_mean_k2", rollout_rs_threshold="0.2_4.0,1.5", m2po_tau=0.6
    )
    narrowed = corrected(rows, config)
    kept = narrowed["response_mask"]
    assert 0 < kept.sum() < rows["response_mask"].sum() and (kept.sum(dim=1) == 0).sum() > 1
    narrowed["advantages"] = torch.where(kept.bool(), rows["advantages"], 1e6)
    found, metrics = gradients(make_engine(tiny_model_dir), narrowed, config=plain_loss())
    assert (
        largest_difference(
            found, hand_weighted(tiny_model_dir, rows, torch.ones_like(rows["advantages"]), kept)
        )
        < 1e-6
    )
    assert abs(metrics["actor/pg_loss"]) < 10


@pytest.mark.parametrize("bypass", [False, True])
def test_m2po_bounds_the_moment_once_a_step_and_in_bypass_mode_before_each_update(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, bypass: bool
) -> None:
    config = RolloutCorrectionConfig(bypass_mode=bypass, m2po_tau=0.6)
    rows = perturbed(tiny_model_dir)
    seen: list[tuple[float, int]] = []
    vanilla = POLICY_LOSS_REGISTRY["vanilla"]

    def spied(
        old_log_prob: torch.Tensor, log_prob: torch.Tensor, response_mask: torch.Tensor, **rest: Any
    ) -> Any:
        kept = response_mask.bool()
        x = log_prob.detach()[kept] - torch.tensor([sampler_of[old] for old in old_log_prob[kept].tolist()])
        seen.append((float(x[x * rest["advantages"][kept] > 0].square().mean()), int(kept.sum())))
        return vanilla(old_log_prob=old_log_prob, log_prob=log_prob, response_mask=response_mask, **rest)

    monkeypatch.setitem(POLICY_LOSS_REGISTRY, "vanilla", spied)
    rows = rows | {"old_log_probs": rows["rollout_log_probs"]} if bypass else corrected(rows, config)
    sampler_of = dict(
        zip(
            rows["old_log_probs"].flatten().tolist(),
            rows["rollout_log_probs"].flatten().tolist(),
            strict=True,
        )
    )
    actor, plan = (
        ActorConfig(ppo_epochs=4, shuffle=False),
        UpdatePlan(temperature=0.8, rollout_correction=config),
    )
    update_policy(make_engine(tiny_model_dir, lr=0.02), actor, rows, plan, ONE_PIECE)
    moments, kept = [moment for moment, _ in seen], [count for _, count in seen]
    assert len(seen) == 4 and moments[0] <= 0.6 + 1e-4
    assert (max(moments) <= 0.6 + 1e-4) == bypass
    assert (len(set(kept)) == 1) != bypass


def test_a_policy_without_a_row_left_takes_no_step(tiny_model_dir: Path) -> None:
    rows = perturbed(tiny_model_dir)
    rows["response_mask"] = torch.zeros_like(rows["response_mask"])
    engine = make_engine(tiny_model_dir)
    before = {name: p.detach().clone() for name, p in engine.model.named_parameters()}
    seen, metrics = gradients(engine, rows, config=plain_loss())
    assert not seen and metrics == {"perf/tokens": 0.0}
    assert all(torch.equal(before[name], p) for name, p in engine.model.named_parameters())


def plain_loss() -> ActorConfig:
    """Nothing but the policy loss."""
    return ActorConfig(grad_clip=1e9)
