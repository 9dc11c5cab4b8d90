"""PPO-style update of one policy: mini-batches of rows, each normalised as a whole however it is cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from verl.trainer.config import ActorConfig
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty, masked_mean
from verl.workers.engine.forward import INPUT_KEYS
from verl.workers.engine.fsdp_engine import FSDPEngine, Rows
from verl.workers.engine.micro_batch import MicroBatchRule
from verl.workers.engine.steps import MicroLoss, Objective, StepPlan, take_steps


@dataclass(frozen=True, kw_only=True)
class UpdatePlan(StepPlan):
    """What a call says about one update of a policy.

    Attributes:
        temperature: of the sampler.
        on_policy: the rows were sampled with the current weights, so that old log-probs may be left out.
    """

    temperature: float
    on_policy: bool = False


@dataclass
class LossConfig(ActorConfig):
    """`ActorConfig` with the counts of the mini-batch at hand, the way verl's policy losses expect them."""

    global_batch_info: dict[str, Any] = field(default_factory=dict)  # type: ignore[misc]


def update_policy(engine: FSDPEngine, config: ActorConfig, rows: Rows, plan: UpdatePlan, rule: MicroBatchRule) -> dict[str, float]:
    """Run all mini-batches of all epochs and return the metrics, the same on every rank.

    Args:
        rows: `INPUT_KEYS`, `advantages`, `old_log_probs` unless on policy, `ref_log_prob` with the KL loss, and optionally
            `rollout_is_weights`; all `[bsz, response_len]`. Optionally `row_weights` `[bsz]`. Rows without a response token are left out.

    Raises:
        ValueError: a column is missing, or on-policy rows are to be used for more than one optimizer step.
    """

    def begin(mini: Rows, info: Mapping[str, Any]) -> MicroLoss:
        return lambda micro, counts: _loss(engine, _loss_config(config, counts), micro, plan)

    objective = Objective("actor", begin, summed=("actor/pg_loss", "actor/kl_loss"))
    return take_steps(engine, config, rows, _needed(config, rows, plan), plan, rule, objective)


def _needed(config: ActorConfig, rows: Rows, plan: UpdatePlan) -> list[str]:
    needed = [*INPUT_KEYS, "advantages"]
    if "old_log_probs" in rows:
        needed.append("old_log_probs")
    elif not plan.on_policy:
        raise ValueError("update_actor needs old_log_probs; call compute_log_prob first, or set meta_info['on_policy'] for fresh samples")
    elif plan.num_mini_batches * config.ppo_epochs > 1:
        raise ValueError(
            f"on-policy rows without old_log_probs serve one optimizer step, not {plan.num_mini_batches} mini-batches x "
            f"{config.ppo_epochs} epochs; call compute_log_prob first"
        )
    if config.use_kl_loss:
        needed.append("ref_log_prob")
    needed += [name for name in ("rollout_is_weights", "rollout_log_probs") if name in rows]
    missing = [name for name in needed if name not in rows]
    if missing:
        raise ValueError(f"update_actor: the batch has no {missing}; it has {sorted(rows)}")
    return needed


def _loss_config(config: ActorConfig, counts: dict[str, Any]) -> LossConfig:
    return LossConfig(**{f.name: getattr(config, f.name) for f in fields(ActorConfig)}, global_batch_info=counts)


def _loss(engine: FSDPEngine, config: LossConfig, micro: Rows, plan: UpdatePlan) -> tuple[torch.Tensor, dict[str, Any]]:
    """Loss of one micro-batch and its metrics; a micro-batch without rows has loss 0, connected to every parameter."""
    scores = engine.score(micro, plan.temperature)
    mask, info, mode = micro["response_mask"], config.global_batch_info, config.loss_agg_mode
    old = micro["old_log_probs"] if "old_log_probs" in micro else scores.log_probs.detach()
    loss, metrics = get_policy_loss_fn(config.policy_loss.loss_mode)(
        old_log_prob=old,
        log_prob=scores.log_probs,
        advantages=micro["advantages"],
        response_mask=mask,
        loss_agg_mode=mode,
        config=config,
        rollout_is_weights=micro.get("rollout_is_weights"),
    )
    metrics["actor/pg_loss"] = loss.detach()
    with torch.no_grad():
        metrics["actor/entropy"] = scores.entropy.sum() / mask.sum().clamp(min=1)
        if plan.on_policy and "rollout_log_probs" in micro:
            gap = (scores.log_probs - micro["rollout_log_probs"]).abs()
            metrics["training/rollout_probs_diff_mean"] = masked_mean(gap, mask)
    if config.entropy_coeff:
        loss = loss - config.entropy_coeff * agg_loss(scores.entropy, mask, mode, **info)
    if config.use_kl_loss:
        kl = agg_loss(kl_penalty(scores.log_probs, micro["ref_log_prob"], config.kl_loss_type), mask, mode, **info)
        loss = loss + config.kl_loss_coef * kl
        metrics["actor/kl_loss"] = kl.detach()
    return loss, metrics
