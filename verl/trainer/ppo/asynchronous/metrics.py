"""Metrics of the samples of a step in `async_training.mode=fully_async`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from verl.protocol import DataProto
from verl.trainer.ppo.asynchronous.group_queue import GroupQueue
from verl.trainer.ppo.collect.protocol import FinishedEpisode
from verl.trainer.ppo.collect.step_samples import StepSamples

# Period of the timer whose delay is the lag of the event loop, in seconds.
TICK_S = 0.05


class BusyTime:
    """Seconds in which groups were in progress, and the largest lag of the event loop, in an
    interval.

    Attributes:
        lag_s: the lag so far.
    """

    def __init__(self) -> None:
        self._groups = 0
        self._busy_s = 0.0
        # When that number, or the interval, began.
        self._since = time.perf_counter()
        self.begin()

    def begin(self) -> None:
        """Begin an interval: what was before is in no metrics."""
        self.add(0)
        self._began = self._since
        self._busy_s = 0.0
        self.lag_s = 0.0

    def add(self, groups: int) -> None:
        """Count so many more groups, or fewer, as in progress."""
        now = time.perf_counter()
        self._busy_s += now - self._since if self._groups else 0.0
        self._since = now
        self._groups += groups

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the interval, and begin another one."""
        self.add(0)
        metrics = {
            "rollouter/idle_ratio": max(1 - self._busy_s / (self._since - self._began), 0.0),
            "rollouter/loop_lag_s": self.lag_s,
        }
        self.begin()
        return metrics

    async def measure_lag(self) -> None:
        """Note how late a timer is: what delays it delays all episodes."""
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            self.lag_s = max(self.lag_s, time.perf_counter() - due)


def partial_metrics(batch: DataProto) -> dict[str, float]:
    """Return verl's `fully_async/partial/*`, of replies whose weights changed while they were
    sampled.

    These are their number, their share of all replies, and the largest difference of the versions
    of one reply.

    Args:
        batch: samples of a step, with the columns `replies` and `partial_replies` of their number
            in a row, and `partial_span`.
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


def count_metrics(queue: GroupQueue) -> dict[str, float]:
    """Return `fully_async/count/*`, numbers of groups: the ledger of the queue, and what verl
    counts as samples.
    """
    ledger = queue.counts()
    verl = {
        "total_generated_samples": ledger["trained"] + ledger["training"] + ledger["complete"],
        "staleness_samples": queue.bounded,
        "stale_samples_processed": queue.stale,
        "dropped_stale_samples": ledger.pop("dropped"),
    }
    return {f"fully_async/count/{name}": float(value) for name, value in (ledger | verl).items()}


def length_ratio(trained: Sequence[FinishedEpisode], dropped: Sequence[FinishedEpisode]) -> float:
    """Return the mean tokens of the replies of an episode over trained ones / over trained and
    dropped ones; failed ones do not count.

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
    """Return the samples with dropped episodes, which no step trains on, and their tokens, and with
    the metrics of this mode.
    """
    tokens = sum(episode.reply_tokens for episode in dropped if episode.failure is None)
    partial = partial_metrics(samples.batch) if samples.batch is not None else {}
    return replace(
        samples,
        episodes=[*samples.episodes, *dropped],
        generated_tokens=samples.generated_tokens + tokens,
        left_out={**samples.left_out, **{episode.uid: "dropped" for episode in dropped}},
        metrics={
            **samples.metrics,
            **partial,
            "fully_async/trained_length_ratio": length_ratio(trained, dropped),
        },
    )
