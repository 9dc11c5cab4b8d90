"""Metrics of the samples of a step in `async_training.mode=fully_async`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from verl.protocol import DataProto
from verl.trainer.ppo.asynchronous.group_queue import GroupQueue
from verl.trainer.ppo.collect.protocol import FinishedEpisode
from verl.trainer.ppo.collect.step_samples import StepSamples


def partial_metrics(batch: DataProto) -> dict[str, float]:
    """Return verl's `fully_async/partial/*`, of replies whose weights changed while they were sampled.

    These are their number, their share of all replies, and the largest difference of the versions of one
    reply.

    Args:
        batch: samples of a step, with the columns `replies` and `partial_replies` of their number in a row,
            and `partial_span`.
    """
    replies, partial, spans = (
        batch.non_tensor_batch[name].astype(np.int64)
        for name in ("replies", "partial_replies", "partial_span")
    )
    numbers = {
        "total_partial_num": partial.sum(),
        "partial_ratio": partial.sum() / replies.sum(),
        "max_partial_span": spans.max(),
    }
    return {f"fully_async/partial/{name}": float(value) for name, value in numbers.items()}


def count_metrics(queue: GroupQueue[Any], training: int) -> dict[str, float]:
    """Return `fully_async/count/*`, numbers of groups: the ledger of the queue, and what verl counts as
    samples.

    Args:
        queue: of the run.
        training: groups that have been taken by steps which have not ended.
    """
    ledger = queue.counts()
    verl = {
        "total_generated_samples": ledger["trained"] + ledger["complete"],
        "staleness_samples": queue.bounded,
        "stale_samples_processed": queue.stale,
        "dropped_stale_samples": ledger.pop("dropped"),
    }
    ledger |= {"trained": ledger["trained"] - training, "training": training}
    return {f"fully_async/count/{name}": float(value) for name, value in (ledger | verl).items()}


def length_ratio(trained: Sequence[FinishedEpisode], dropped: Sequence[FinishedEpisode]) -> float:
    """Return the mean tokens of the replies of an episode over trained ones / over trained and dropped ones;
    failed ones do not count.

    1 if nothing was dropped; below 1 if long episodes were.
    """
    lengths, left_out = (
        [e.reply_tokens for e in episodes if e.failure is None] for episodes in (trained, dropped)
    )
    every = sum(lengths) + sum(left_out)
    return sum(lengths) / len(lengths) * (len(lengths) + len(left_out)) / every if lengths and every else 1.0


def with_dropped(
    samples: StepSamples, dropped: Sequence[FinishedEpisode], trained: Sequence[FinishedEpisode]
) -> StepSamples:
    """Return the samples with dropped episodes, which no step trains on, and their tokens, and with the
    metrics of this mode.
    """
    tokens = sum(episode.reply_tokens for episode in dropped if episode.failure is None)
    partial = partial_metrics(samples.batch) if samples.batch is not None else {}
    return replace(
        samples,
        episodes=[*samples.episodes, *dropped],
        generated_tokens=samples.generated_tokens + tokens,
        metrics={
            **samples.metrics,
            **partial,
            "fully_async/trained_length_ratio": length_ratio(trained, dropped),
        },
    )
