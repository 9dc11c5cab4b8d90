"""Optimizer steps of any model: mini-batches of rows, each normalised as a whole, independent of
micro-batches and ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from verl.trainer.config import ActorConfig, CriticConfig
from verl.workers.engine.forward import check_rows
from verl.workers.engine.fsdp_engine import FSDPEngine, Rows, select
from verl.workers.engine.micro_batch import MicroBatchRule
from verl.workers.engine.ranks import GroupRanks
from verl.workers.engine.update_metrics import UpdateMetrics, fold

# Maps one micro-batch and the counts that `agg_loss` takes to loss and metrics. Without rows the
# loss is 0, connected to every parameter.
MicroLoss = Callable[[Rows, dict[str, Any]], tuple[torch.Tensor, dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Arguments of the optimizer steps of one update.

    Attributes:
        num_mini_batches: optimizer steps of one pass over the rows; fewer are taken if there are
            fewer rows.
        shuffle_seed: seed of the row order; epoch e uses `shuffle_seed + e`.
        loss_scale_factor: the constant of `seq-mean-token-sum-norm`.
        first_update: index of the first optimizer step in the run's schedule, which also counts
            steps without rows for this model. None continues from the engine's last step.
    """

    num_mini_batches: int = 1
    shuffle_seed: int = 0
    loss_scale_factor: float | None = None
    first_update: int | None = None


@dataclass(frozen=True)
class Objective:
    """The minimised loss.

    Attributes:
        prefix: of the metrics made here: `actor` or `critic`.
        loss: of one micro-batch.
        summed: metrics that are summed over micro-batches; all others are means over tokens, or
            extremes (see `fold`).
        prepare: called before each step with this rank's micro-batches, on all ranks; it may add
            columns to them and remove tokens from their `response_mask`, which then count neither
            in the loss nor in the normalisation.
        zero_loss: rows of a mini-batch with loss 0 for any weights, `[bsz]` bool; they count in the
            mean, but are not computed.
    """

    prefix: str
    loss: MicroLoss
    summed: Sequence[str]
    prepare: Callable[[list[dict[str, torch.Tensor]], GroupRanks], list[dict[str, torch.Tensor]]] | None = (
        None
    )
    zero_loss: Callable[[Rows], torch.Tensor] | None = None


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
        rows: `columns` are read, and `row_weights` `[bsz]` if present; rows without a response
            token are left out.

    Raises:
        ValueError: a row cannot be scored.
    """
    real = rows["response_mask"].bool().any(dim=1).nonzero().squeeze(1)
    weighted = ("row_weights",) if "row_weights" in rows else ()
    rows_with_response = engine.to_device({name: rows[name][real] for name in (*columns, *weighted)})
    check_rows(rows_with_response)
    ranks = GroupRanks(engine.group, engine.device)
    totals = UpdateMetrics(ranks, f"{objective.prefix}/skipped_steps")
    adaptive = config.ppo_mini_update_num is not None
    sizes = _sizes(len(real), plan.num_mini_batches, adaptive, ranks)
    with engine.training():
        for epoch in range(config.ppo_epochs):
            for number, index in enumerate(
                _order(len(real), config.shuffle, plan.shuffle_seed + epoch).split(sizes)
            ):
                if plan.first_update is not None:
                    engine.steps = plan.first_update + epoch * plan.num_mini_batches + number
                mini = select(rows_with_response, index.to(engine.device))
                totals.add(_step(engine, mini, plan, rule, objective, config.grad_clip, ranks))
    count_metric = {f"{objective.prefix}/updates": float(totals.count)} if adaptive else {}
    return totals.result(tokens=sum(engine.lengths(rows_with_response)) * config.ppo_epochs) | count_metric


def _order(count: int, shuffle: bool, seed: int) -> torch.Tensor:
    return (
        torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        if shuffle
        else torch.arange(count)
    )


def _sizes(count: int, num_mini_batches: int, adaptive: bool, ranks: GroupRanks) -> list[int]:
    """Return how many of this rank's `count` rows each mini-batch has: `even_sizes` if `adaptive`,
    else even on each rank alone.
    """
    if adaptive:
        return even_sizes(
            torch.cat(ranks.gather(torch.tensor([count]))).tolist(), ranks.rank, num_mini_batches
        )
    return [len(part) for part in torch.tensor_split(torch.arange(count), num_mini_batches)]


def even_sizes(counts: Sequence[int], rank: int, num_mini_batches: int) -> list[int]:
    """Cut the rows of all ranks into mini-batches whose sizes, over all ranks, differ by one row at
    most.

    Args:
        counts: number of rows of each rank.
        rank: index of this rank in `counts`.
        num_mini_batches: wanted; with fewer rows there are as many as rows, but at least one.

    Returns:
        how many of this rank's rows each mini-batch has.
    """
    owners = torch.tensor(
        [owner for row in range(max(counts)) for owner, count in enumerate(counts) if row < count]
    )
    parts = torch.tensor_split(owners, max(1, min(num_mini_batches, len(owners))))
    return [int((part == rank).sum()) for part in parts]


def _step(
    engine: FSDPEngine,
    mini: Rows,
    plan: StepPlan,
    rule: MicroBatchRule,
    objective: Objective,
    grad_clip: float,
    ranks: GroupRanks,
) -> dict[str, float]:
    """Take one optimizer step and return this rank's share of the metrics, to be averaged over
    ranks; without tokens take none.
    """
    if not float(ranks.sum(mini["response_mask"].sum().double())):
        return {}
    rows = mini if objective.zero_loss is None else _computed_rows(mini, objective.zero_loss(mini), ranks)
    micros = engine.micro_batches(rows, rule)
    if objective.prepare is not None:
        micros = objective.prepare(micros, ranks)
    own_counts = torch.stack(
        [torch.stack([_counts(micro) for micro in micros]).sum(dim=0), _counts(mini) - _counts(rows)]
    )
    (weighted_tokens, size, tokens), skipped = ranks.sum(own_counts).tolist()
    # `prepare` may have masked every token, on all ranks.
    if not tokens:
        return {}
    info: dict[str, Any] = {
        "dp_size": ranks.size,
        "batch_num_tokens": weighted_tokens + skipped[0],
        "global_batch_size": size + skipped[1],
        "loss_scale_factor": plan.loss_scale_factor or float(mini["response_mask"].shape[1]),
    }
    metrics: dict[str, float] = {}
    for micro in micros:
        weight_info = {"row_weights": micro["row_weights"]} if "row_weights" in micro else {}
        loss, parts = objective.loss(micro, info | weight_info)
        loss.backward()
        own_tokens = float(micro["response_mask"].sum())
        if own_tokens:
            fold(
                metrics,
                {name: parts[name] for name in parts if name not in objective.summed},
                own_tokens / tokens * ranks.size,
            )
            fold(metrics, {name: parts[name] for name in parts if name in objective.summed}, 1.0)
    lr = engine.lr
    norm, updated = engine.step(grad_clip)
    step_metrics = {
        "grad_norm": norm,
        "lr": lr,
        "skipped_steps": float(not updated),
        "shared_tokens": engine.shared_tokens(micros),
    }
    return metrics | {f"{objective.prefix}/{name}": value for name, value in step_metrics.items()}


def _computed_rows(mini: Rows, zero_loss: torch.Tensor, ranks: GroupRanks) -> Rows:
    """Return the rows with a loss; if no rank has any, one row per rank, so that the optimizer step
    is still taken.
    """
    index = (~zero_loss).nonzero().squeeze(1)
    some = float(ranks.sum(torch.tensor(float(len(index)), dtype=torch.double)))
    return select(mini, index if some else torch.arange(min(1, len(zero_loss)), device=zero_loss.device))


def _counts(micro: Rows) -> torch.Tensor:
    """Return the weighted number of tokens, the weighted number of rows with tokens, and the number
    of tokens, `[3]` float64.
    """
    lengths = micro["response_mask"].sum(dim=1).double()
    weights = micro["row_weights"].double() if "row_weights" in micro else torch.ones_like(lengths)
    return torch.stack([(lengths * weights).sum(), (weights * (lengths > 0)).sum(), lengths.sum()])
