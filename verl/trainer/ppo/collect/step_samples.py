"""Samples of one training step, with greedy baselines if they are played."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from verl.protocol import DataProto
from verl.trainer.config import RewardConfig
from verl.trainer.ppo.collect.protocol import EpisodeBatch, FinishedEpisode

NO_SAMPLE = "no episode has a sample to train on"


class NoSamplesError(RuntimeError):
    """A step without a trainable sample.

    Args:
        step: its number.
        reason: why it has none.
    """

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(f"step {step}: {reason}; the episodes are in trajectories/train_{step:06d}.jsonl")


@dataclass(frozen=True)
class StepSamples:
    """Rows to train on, and their episodes.

    Attributes:
        batch: rows; None if no episode has a sample.
        episodes: all episodes, including filtered and greedy ones.
        metrics: metrics of all sampled episodes, including filtered ones.
        generated_tokens: reply tokens of all episodes that did not fail.
        no_batch_reason: message if `batch` is None.
        left_out: why a group is not in the batch, by its id, where it is not plain from the episodes:
            `no signal`, `surplus` or `dropped`.
    """

    batch: DataProto | None
    episodes: Sequence[FinishedEpisode]
    metrics: dict[str, float]
    generated_tokens: int
    no_batch_reason: str = NO_SAMPLE
    left_out: Mapping[str, str] = field(default_factory=dict)


def samples_of(result: EpisodeBatch) -> StepSamples:
    """Return the samples of one collection."""
    tokens = _tokens(result)
    reason = NO_SAMPLE if tokens else f"{NO_SAMPLE}: no call of an agent reached an engine of the run"
    return StepSamples(result.batch, result.episodes, dict(result.metrics), tokens, reason)


async def with_baselines(
    reward: RewardConfig, result: EpisodeBatch, play_greedy: Callable[[], Awaitable[EpisodeBatch]] | None
) -> StepSamples:
    """Return the samples of one collection, with the baselines of its greedy episodes if they are
    played.
    """
    samples = samples_of(result)
    if samples.batch is None or play_greedy is None:
        return samples
    from verl.trainer.ppo.collect.greedy_baseline import reward_baselines  # of ReMax alone

    greedy = await play_greedy()
    baselines, metrics = reward_baselines(samples.batch, greedy, reward.alpha)
    samples.batch.non_tensor_batch["reward_baselines"] = baselines
    return replace(
        samples,
        episodes=[*samples.episodes, *greedy.episodes],
        metrics=samples.metrics | metrics,
        generated_tokens=samples.generated_tokens + _tokens(greedy),
    )


def _tokens(result: EpisodeBatch) -> int:
    return sum(episode.reply_tokens for episode in result.episodes if episode.failure is None)
