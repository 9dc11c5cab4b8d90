"""PPO-style update of one policy: mini-batches of rows, each normalised as a whole however it is cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import torch
import torch.distributed as dist

from verl.trainer.config import ActorConfig
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty, masked_mean
from verl.workers.engine.forward import INPUT_KEYS, check_rows
from verl.workers.engine.fsdp_engine import FSDPEngine, Rows, select
from verl.workers.engine.micro_batch import MicroBatchRule


@dataclass(frozen=True)
class UpdatePlan:
    """What a call says about one update.

    Attributes:
        temperature: of the sampler.
        num_mini_batches: optimizer steps of one pass over the rows.
        on_policy: the rows were sampled with the current weights, so that old log-probs may be left out.
        shuffle_seed: seed of the row order; epoch e uses `shuffle_seed + e`.
        loss_scale_factor: the constant of `seq-mean-token-sum-norm`.
        first_update: place of the first optimizer step in the run's schedule; steps that this policy had no rows for count there as
            well. None goes on from the engine's last step.
    """

    temperature: float
    num_mini_batches: int = 1
    on_policy: bool = False
    shuffle_seed: int = 0
    loss_scale_factor: float | None = None
    first_update: int | None = None


@dataclass
class LossConfig(ActorConfig):
    """`ActorConfig` with the counts of the mini-batch at hand, the way verl's policy losses expect them."""

    global_batch_info: dict[str, Any] = field(default_factory=dict)  # type: ignore[misc]


def update_policy(engine: FSDPEngine, config: ActorConfig, rows: Rows, plan: UpdatePlan, rule: MicroBatchRule) -> dict[str, float]:
    """Run all mini-batches of all epochs and return the metrics, the same on every rank.

    Args:
        rows: `INPUT_KEYS`, `advantages`, `old_log_probs` unless on policy, `ref_log_prob` with the KL loss, and optionally
            `rollout_is_weights`; all `[bsz, response_len]`. Rows without a response token are left out.

    Raises:
        ValueError: a column is missing, or on-policy rows are to be used for more than one optimizer step.
    """
    needed = _needed(config, rows, plan)
    real = rows["response_mask"].bool().any(dim=1).nonzero().squeeze(1)
    chosen = engine.to_device({name: rows[name][real] for name in needed})
    check_rows(chosen)
    totals = _Totals(engine)
    with engine.training():
        for epoch in range(config.ppo_epochs):
            for number, index in enumerate(_mini_batches(len(real), config, plan, epoch)):
                if plan.first_update is not None:
                    engine.steps = plan.first_update + epoch * plan.num_mini_batches + number
                mini = select(chosen, index.to(engine.device))
                totals.add(_update_once(engine, config, mini, plan, rule))
    return totals.result(tokens=sum(engine.lengths(chosen)) * config.ppo_epochs)


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


def _mini_batches(count: int, config: ActorConfig, plan: UpdatePlan, epoch: int) -> Iterator[torch.Tensor]:
    """Row indices of each mini-batch, of nearly equal size."""
    order = torch.arange(count)
    if config.shuffle:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(plan.shuffle_seed + epoch))
    yield from torch.tensor_split(order, plan.num_mini_batches)


def _update_once(engine: FSDPEngine, config: ActorConfig, mini: Rows, plan: UpdatePlan, rule: MicroBatchRule) -> dict[str, float]:
    """One optimizer step; metrics are this rank's share, to be averaged over ranks."""
    ranks = dist.get_world_size(engine.group)
    counts = torch.tensor([float(mini["response_mask"].sum()), float(len(mini["response_mask"]))], dtype=torch.double, device=engine.device)
    if ranks > 1:
        dist.all_reduce(counts, group=engine.group)
    tokens, size = counts.tolist()
    if not size:
        return {}
    width = float(mini["response_mask"].shape[1])
    info = {
        "dp_size": ranks,
        "batch_num_tokens": tokens,
        "global_batch_size": size,
        "loss_scale_factor": plan.loss_scale_factor or width,
    }
    loss_config = LossConfig(**{f.name: getattr(config, f.name) for f in fields(ActorConfig)}, global_batch_info=info)
    metrics: dict[str, float] = {}
    for micro in engine.micro_batches(mini, rule):
        loss, parts = _loss(engine, loss_config, micro, plan)
        loss.backward()
        share = float(micro["response_mask"].sum()) / tokens * ranks
        for name, value in parts.items():
            weight = 1.0 if name in ("actor/pg_loss", "actor/kl_loss") else share
            metrics[name] = metrics.get(name, 0.0) + float(value) * weight
    lr = engine.lr
    norm, updated = engine.step(config.grad_clip)
    return metrics | {"actor/grad_norm": norm, "actor/lr": lr, "actor/skipped_steps": float(not updated)}


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


class _Totals:
    """Metrics of several mini-batches, averaged over mini-batches and ranks."""

    def __init__(self, engine: FSDPEngine) -> None:
        self._engine, self._sums, self._count = engine, dict[str, float](), 0

    def add(self, metrics: dict[str, float]) -> None:
        if metrics:
            self._count += 1
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def result(self, tokens: int) -> dict[str, float]:
        names = sorted(self._sums)
        values = torch.tensor([*(self._sums[n] for n in names), float(tokens)], dtype=torch.double, device=self._engine.device)
        ranks = dist.get_world_size(self._engine.group)
        if ranks > 1:
            dist.all_reduce(values, group=self._engine.group)
        *sums, all_tokens = values.tolist()
        metrics = {name: value / ranks / max(1, self._count) for name, value in zip(names, sums, strict=True)}
        if "actor/skipped_steps" in metrics:
            metrics["actor/skipped_steps"] *= self._count
        return metrics | {"perf/tokens": all_tokens}
