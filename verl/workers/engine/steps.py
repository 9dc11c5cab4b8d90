"""Optimizer steps of any model: mini-batches of rows, each normalised as a whole however it is cut into micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from verl.trainer.config import ActorConfig, CriticConfig
from verl.workers.engine.forward import check_rows
from verl.workers.engine.fsdp_engine import FSDPEngine, Rows, select
from verl.workers.engine.micro_batch import MicroBatchRule

# Loss of one micro-batch, given the counts that `agg_loss` takes, and metrics. Without rows it is 0, connected to every parameter.
MicroLoss = Callable[[Rows, dict[str, Any]], tuple[torch.Tensor, dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """What a call says about the steps of one update.

    Attributes:
        num_mini_batches: optimizer steps of one pass over the rows.
        shuffle_seed: seed of the row order; epoch e uses `shuffle_seed + e`.
        loss_scale_factor: the constant of `seq-mean-token-sum-norm`.
        first_update: place of the first optimizer step in the run's schedule; steps that this model had no rows for count there as
            well. None goes on from the engine's last step.
    """

    num_mini_batches: int = 1
    shuffle_seed: int = 0
    loss_scale_factor: float | None = None
    first_update: int | None = None


@dataclass(frozen=True)
class Objective:
    """What is minimised.

    Attributes:
        prefix: of the metrics made here: `actor` or `critic`.
        begin: called with each whole mini-batch and its counts; returns the loss of its micro-batches.
        summed: metrics whose micro-batches add up; all others are means over tokens.
    """

    prefix: str
    begin: Callable[[Rows, Mapping[str, Any]], MicroLoss]
    summed: Sequence[str]


def take_steps(
    engine: FSDPEngine,
    config: ActorConfig | CriticConfig,
    rows: Rows,
    columns: Sequence[str],
    plan: StepPlan,
    rule: MicroBatchRule,
    objective: Objective,
) -> dict[str, float]:
    """Run all mini-batches of all epochs and return the metrics, the same on every rank.

    Args:
        rows: `columns` are read, and `row_weights` `[bsz]` where there are any; rows without a response token are left out.

    Raises:
        ValueError: a row cannot be scored.
    """
    real = rows["response_mask"].bool().any(dim=1).nonzero().squeeze(1)
    weighted = ("row_weights",) if "row_weights" in rows else ()
    chosen = engine.to_device({name: rows[name][real] for name in (*columns, *weighted)})
    check_rows(chosen)
    totals = _Totals(engine, objective.prefix)
    with engine.training():
        for epoch in range(config.ppo_epochs):
            for number, index in enumerate(_mini_batches(len(real), config.shuffle, plan, epoch)):
                if plan.first_update is not None:
                    engine.steps = plan.first_update + epoch * plan.num_mini_batches + number
                mini = select(chosen, index.to(engine.device))
                totals.add(_step(engine, mini, plan, rule, objective, config.grad_clip))
    return totals.result(tokens=sum(engine.lengths(chosen)) * config.ppo_epochs)


def _mini_batches(count: int, shuffle: bool, plan: StepPlan, epoch: int) -> Iterator[torch.Tensor]:
    """Row indices of each mini-batch, of nearly equal size."""
    order = torch.arange(count)
    if shuffle:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(plan.shuffle_seed + epoch))
    yield from torch.tensor_split(order, plan.num_mini_batches)


def _step(engine: FSDPEngine, mini: Rows, plan: StepPlan, rule: MicroBatchRule, objective: Objective, grad_clip: float) -> dict[str, float]:
    """One optimizer step; metrics are this rank's share, to be averaged over ranks."""
    ranks = dist.get_world_size(engine.group)
    lengths = mini["response_mask"].sum(dim=1).double()
    weights = mini["row_weights"].double() if "row_weights" in mini else torch.ones_like(lengths)
    counts = torch.stack([(lengths * weights).sum(), weights.sum(), lengths.sum()])
    if ranks > 1:
        dist.all_reduce(counts, group=engine.group)
    weighted_tokens, size, tokens = counts.tolist()
    if not tokens:
        return {}
    info: dict[str, Any] = {
        "dp_size": ranks,
        "batch_num_tokens": weighted_tokens,
        "global_batch_size": size,
        "loss_scale_factor": plan.loss_scale_factor or float(mini["response_mask"].shape[1]),
    }
    loss_of = objective.begin(mini, info)
    metrics: dict[str, float] = {}
    for micro in engine.micro_batches(mini, rule):
        own = {"row_weights": micro["row_weights"]} if "row_weights" in micro else {}
        loss, parts = loss_of(micro, info | own)
        loss.backward()
        share = float(micro["response_mask"].sum()) / tokens * ranks
        for name, value in parts.items():
            weight = 1.0 if name in objective.summed else share
            metrics[name] = metrics.get(name, 0.0) + float(value) * weight
    lr = engine.lr
    norm, updated = engine.step(grad_clip)
    made = {"grad_norm": norm, "lr": lr, "skipped_steps": float(not updated)}
    return metrics | {f"{objective.prefix}/{name}": value for name, value in made.items()}


class _Totals:
    """Metrics of several mini-batches, averaged over mini-batches and ranks."""

    def __init__(self, engine: FSDPEngine, prefix: str) -> None:
        self._engine, self._skipped, self._sums, self._count = engine, f"{prefix}/skipped_steps", dict[str, float](), 0

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
        if self._skipped in metrics:
            metrics[self._skipped] *= self._count
        return metrics | {"perf/tokens": all_tokens}
