"""Optimizer steps of any model: mini-batches of rows, each normalised as a whole, independent of
micro-batches and ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from typing import Any

import torch

from verl.trainer.config import ActorConfig, CriticConfig
from verl.workers.engine.forward import INPUT_KEYS, check_rows
from verl.workers.engine.fsdp_engine import FSDPEngine, Rows, select
from verl.workers.engine.micro_batch import MicroBatchRule
from verl.workers.engine.ranks import GroupRanks
from verl.workers.engine.update_metrics import UpdateMetrics, fold

# What a model returns for a micro-batch, each `[bsz, ...]`.
Outputs = tuple[torch.Tensor, ...]
# Maps a micro-batch, the model's outputs for it and the counts that `agg_loss` takes to loss and
# metrics. Without rows the loss is 0, connected to every parameter.
MicroLoss = Callable[[Rows, Outputs, dict[str, Any]], tuple[torch.Tensor, dict[str, Any]]]
# Maps micro-batches, a function that returns the model's outputs for them without gradients, and
# the ranks to the micro-batches that are trained on.
Prepare = Callable[
    [list[dict[str, torch.Tensor]], Callable[[], list[Outputs]], GroupRanks], list[dict[str, torch.Tensor]]
]


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
    prepare: Prepare | None = None
    zero_loss: Callable[[Rows], torch.Tensor] | None = None


@dataclass(frozen=True)
class Training:
    """What one model, or one adapter, is trained on in an update.

    Attributes:
        config: of its losses and steps.
        rows: `columns` are read, and `row_weights` `[bsz]` if present; rows without a response
            token are left out.
        columns: of the rows.
        plan: of its steps.
        objective: its loss.
        adapter: that is trained; None for the engine's `trainable`.
    """

    config: ActorConfig | CriticConfig
    rows: Rows
    columns: Sequence[str]
    plan: StepPlan
    objective: Objective
    adapter: str | None = None


def take_steps(
    engine: FSDPEngine,
    trainings: Sequence[Training],
    run: Callable[[Rows], Outputs],
    rule: MicroBatchRule,
) -> list[dict[str, float]]:
    """Run all mini-batches of all epochs and return the metrics of each training, the same on every
    rank.

    Several trainings are of adapters, whose rows are run together: step j of each that has one is
    one pass, and then each clips, steps and counts alone.

    Args:
        engine: within `mixing`, for several trainings.
        trainings: all with rows of one width.
        run: returns the outputs for rows with `INPUT_KEYS`, and with the index of their training as
            `part` if there are several.
        rule: of the micro-batches.

    Raises:
        ValueError: a row cannot be scored.
    """
    ranks = GroupRanks(engine.group, engine.device)
    progress = [_Progress(engine, training, ranks) for training in trainings]
    with engine.training([training.adapter for training in trainings if training.adapter is not None]):
        for step in range(max(len(part.steps) for part in progress)):
            due = [(number, part) for number, part in enumerate(progress) if step < len(part.steps)]
            minis = {number: part.mini_batch(step) for number, part in due}
            metrics = _step(engine, trainings, minis, run, rule, ranks)
            for number, part in due:
                part.totals.add(metrics.get(number, {}))
    return [part.metrics() for part in progress]


class _Progress:
    """The steps of one training and their metrics."""

    def __init__(self, engine: FSDPEngine, training: Training, ranks: GroupRanks) -> None:
        rows = training.rows
        real = rows["response_mask"].bool().any(dim=1).nonzero().squeeze(1)
        weighted = ("row_weights",) if "row_weights" in rows else ()
        self._rows = engine.to_device({name: rows[name][real] for name in (*training.columns, *weighted)})
        check_rows(self._rows)
        self._engine = engine
        self._training = training
        config = training.config
        plan = training.plan
        self.totals = UpdateMetrics(ranks, f"{training.objective.prefix}/skipped_steps")
        self._adaptive = config.ppo_mini_update_num is not None
        sizes = _sizes(len(real), plan.num_mini_batches, self._adaptive, ranks)
        # Of each step: its index in the update, and its rows.
        self.steps = [
            (epoch * plan.num_mini_batches + number, index)
            for epoch in range(config.ppo_epochs)
            for number, index in enumerate(
                _order(len(real), config.shuffle, plan.shuffle_seed + epoch).split(sizes)
            )
        ]

    def mini_batch(self, step: int) -> dict[str, torch.Tensor]:
        """Return the rows of a step, and set its number in the schedule."""
        number, index = self.steps[step]
        if self._training.plan.first_update is not None:
            trainable = self._engine.trainable_of(self._training.adapter)
            trainable.steps = self._training.plan.first_update + number
        return select(self._rows, index.to(self._engine.device))

    def metrics(self) -> dict[str, float]:
        """Return the metrics of all steps."""
        prefix = self._training.objective.prefix
        count_metric = {f"{prefix}/updates": float(self.totals.count)} if self._adaptive else {}
        tokens = sum(self._engine.lengths(self._rows)) * self._training.config.ppo_epochs
        return self.totals.result(tokens=tokens) | count_metric


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


@dataclass
class _Share:
    """The rows of one training in the micro-batches of a step.

    Attributes:
        training: see `Training`.
        mini: its mini-batch.
        rows: those of the mini-batch that are computed.
        places: indices of its rows in each micro-batch; None where all are its own.
        micros: its rows of each micro-batch.
        tokens: on all ranks.
        info: what the loss needs to know of all ranks.
        metrics: of the step, this rank's share.
    """

    training: Training
    mini: Rows
    rows: Rows
    places: list[torch.Tensor | None] = field(default_factory=list)
    micros: list[dict[str, torch.Tensor]] = field(default_factory=list)
    tokens: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def of(self, outputs: Outputs, micro: int) -> Outputs:
        """Return its part of the outputs of a micro-batch."""
        place = self.places[micro]
        return outputs if place is None else tuple(values[place] for values in outputs)

    def prepare(self, outputs: Callable[[], list[Outputs]], ranks: GroupRanks) -> None:
        """Let the objective prepare its micro-batches."""
        if self.training.objective.prepare is not None:

            def own_outputs() -> list[Outputs]:
                return [self.of(values, micro) for micro, values in enumerate(outputs())]

            self.micros = self.training.objective.prepare(self.micros, own_outputs, ranks)

    def counts(self) -> torch.Tensor:
        """Return `_counts` of the rows that are computed and of the others, `[2, 3]`."""
        of_rows = torch.stack([_counts(micro) for micro in self.micros]).sum(dim=0)
        return torch.stack([of_rows, _counts(self.mini) - _counts(self.rows)])

    def set_counts(self, counts: Sequence[Sequence[float]], ranks: GroupRanks) -> None:
        """Set what depends on `counts` of all ranks."""
        (weighted_tokens, size, self.tokens), skipped = counts
        plan = self.training.plan
        self.info = {
            "dp_size": ranks.size,
            "batch_num_tokens": weighted_tokens + skipped[0],
            "global_batch_size": size + skipped[1],
            "loss_scale_factor": plan.loss_scale_factor or float(self.mini["response_mask"].shape[1]),
        }

    def loss(self, outputs: Outputs, micro: int, ranks: GroupRanks) -> torch.Tensor:
        """Return the loss of a micro-batch, and add its metrics."""
        rows = self.micros[micro]
        objective = self.training.objective
        weight_info = {"row_weights": rows["row_weights"]} if "row_weights" in rows else {}
        loss, parts = objective.loss(rows, self.of(outputs, micro), self.info | weight_info)
        own_tokens = float(rows["response_mask"].sum())
        if own_tokens:
            fold(
                self.metrics,
                {name: parts[name] for name in parts if name not in objective.summed},
                own_tokens / self.tokens * ranks.size,
            )
            fold(self.metrics, {name: parts[name] for name in parts if name in objective.summed}, 1.0)
        return loss

    def step(self, engine: FSDPEngine) -> None:
        """Take the optimizer step, and add its metrics."""
        training = self.training
        lr = engine.trainable_of(training.adapter).lr
        norm, updated = engine.step(training.config.grad_clip, training.adapter)
        step_metrics = {
            "grad_norm": norm,
            "lr": lr,
            "skipped_steps": float(not updated),
            "shared_tokens": engine.shared_tokens(self.micros),
        }
        self.metrics |= {f"{training.objective.prefix}/{name}": value for name, value in step_metrics.items()}


def _step(
    engine: FSDPEngine,
    trainings: Sequence[Training],
    minis: Mapping[int, Rows],
    run: Callable[[Rows], Outputs],
    rule: MicroBatchRule,
    ranks: GroupRanks,
) -> dict[int, dict[str, float]]:
    """Take one optimizer step of every training that has tokens on any rank, and return this rank's
    share of their metrics, to be averaged over ranks; others take none, and are left out.

    Args:
        minis: mini-batches by index of the training.
    """
    tokens = ranks.sum(torch.stack([mini["response_mask"].sum().double() for mini in minis.values()]))
    shares: dict[int, _Share] = {}
    for number, count in zip(minis, tokens.tolist(), strict=True):
        if count:
            mini = minis[number]
            zero_loss = trainings[number].objective.zero_loss
            rows = mini if zero_loss is None else _computed_rows(mini, zero_loss(mini), ranks)
            shares[number] = _Share(trainings[number], mini, rows)
    if not shares:
        return {}
    micros = _micro_batches(engine, shares, any(t.adapter is not None for t in trainings), rule)

    @cache
    @torch.no_grad()
    def outputs_before() -> list[Outputs]:
        return [run(micro) for micro in micros]

    for share in shares.values():
        share.prepare(outputs_before, ranks)
    micros = [_with_masks(micro, shares.values(), place) for place, micro in enumerate(micros)]
    counts = ranks.sum(torch.stack([share.counts() for share in shares.values()]))
    for share, of_share in zip(shares.values(), counts.tolist(), strict=True):
        share.set_counts(of_share, ranks)
    # `prepare` may have masked every token, on all ranks.
    due = {number: share for number, share in shares.items() if share.tokens}
    if not due:
        return {}
    engine.connect(shares)
    for place, micro in enumerate(micros):
        outputs = run(micro)
        losses = [
            share.loss(outputs, place, ranks)
            for share in due.values()
            # The parameters of an adapter without rows here are connected by the engine.
            if share.places[place] is None or len(share.micros[place]["response_mask"])
        ]
        (reduce(torch.add, losses) if losses else outputs[0][:0].sum()).backward()
    for number, share in shares.items():
        if number in due:
            share.step(engine)
        else:
            # AdamW would move weights whose gradient is 0.
            engine.trainable_of(share.training.adapter).optimizer.zero_grad(set_to_none=True)
    return {number: share.metrics for number, share in due.items()}


def _micro_batches(
    engine: FSDPEngine, shares: Mapping[int, _Share], several: bool, rule: MicroBatchRule
) -> list[dict[str, torch.Tensor]]:
    """Return the micro-batches of all shares, with `INPUT_KEYS`, and `part` with `several`
    trainings; set the `micros` and `places` of each.
    """
    inputs = {name: torch.cat([share.rows[name] for share in shares.values()]) for name in INPUT_KEYS}
    sizes = torch.tensor([len(share.rows["response_mask"]) for share in shares.values()])
    inputs["row"] = torch.cat([torch.arange(size) for size in sizes.tolist()]).to(engine.device)
    if several:
        inputs["part"] = torch.tensor(list(shares)).repeat_interleave(sizes).to(engine.device)
    micros = engine.micro_batches(inputs, rule)
    for number, share in shares.items():
        for micro in micros:
            place = (micro["part"] == number).nonzero().squeeze(1) if several else None
            share.places.append(place)
            share.micros.append(select(share.rows, micro["row"] if place is None else micro["row"][place]))
    return micros


def _with_masks(
    micro: Mapping[str, torch.Tensor], shares: Iterable[_Share], number: int
) -> dict[str, torch.Tensor]:
    """Return a micro-batch with the response masks that shares have prepared."""
    mask = micro["response_mask"]
    for share in shares:
        place = share.places[number]
        own_mask = share.micros[number]["response_mask"]
        mask = own_mask if place is None else mask.index_copy(0, place, own_mask)
    return {**micro, "response_mask": mask}


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
