"""Samples of one training step: run episodes of its tasks, with dynamic sampling or greedy baselines if
configured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verl.protocol import DataProto
from verl.trainer.config import RewardConfig, RunConfig
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.collect.protocol import EpisodeBatch, EpisodeCollector, FinishedEpisode
from verl.utils.dataset import TaskLoader

if TYPE_CHECKING:
    from verl.trainer.ppo.collect.dynamic_sampling import FilteredSamples


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
    """

    batch: DataProto | None
    episodes: Sequence[FinishedEpisode]
    metrics: dict[str, float]
    generated_tokens: int
    no_batch_reason: str = "no episode has a sample to train on"


async def collect_step(
    config: RunConfig, plan: RunPlan, collector: EpisodeCollector, loader: TaskLoader, step: int
) -> StepSamples:
    """Take the step's tasks from `loader` and run their episodes.

    Errors of the collector are raised.
    """
    if config.algorithm.filter_groups.enable:
        from verl.trainer.ppo.collect.dynamic_sampling import draw_until_full  # of this key alone

        return filtered_samples(
            await draw_until_full(config.algorithm, config.data, config.env, collector, loader, step)
        )
    rows = [loader.source[place] for place in loader.take(config.data.train_batch_size)]
    result = await collector.collect(rows, config.env.rollout.n, step=step)
    if result.batch is None or not plan.greedy_episodes:
        return samples_of(config.reward, result)
    return samples_of(config.reward, result, await collector.collect(rows, 1, step=step, greedy=True))


def filtered_samples(samples: FilteredSamples) -> StepSamples:
    """Return the samples of dynamic sampling."""
    metrics = dict(samples.result.metrics) | samples.metrics
    return StepSamples(
        samples.batch, samples.result.episodes, metrics, _tokens(samples.result), samples.no_batch_reason
    )


def samples_of(reward: RewardConfig, result: EpisodeBatch, greedy: EpisodeBatch | None = None) -> StepSamples:
    """Return the samples of one collection, with the baselines of its greedy episodes."""
    if result.batch is None or greedy is None:
        return StepSamples(result.batch, result.episodes, dict(result.metrics), _tokens(result))
    from verl.trainer.ppo.collect.greedy_baseline import reward_baselines  # of ReMax alone

    baselines, metrics = reward_baselines(result.batch, greedy, reward.alpha)
    result.batch.non_tensor_batch["reward_baselines"] = baselines
    episodes = [*result.episodes, *greedy.episodes]
    return StepSamples(
        result.batch, episodes, dict(result.metrics) | metrics, _tokens(result) + _tokens(greedy)
    )


def _tokens(result: EpisodeBatch) -> int:
    return sum(episode.reply_tokens for episode in result.episodes if episode.failure is None)
