"""Samples of one training step: run episodes of its tasks, with dynamic sampling or greedy baselines if
configured.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from verl.protocol import DataProto
from verl.trainer.config import RewardConfig, RunConfig
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.collect.protocol import EpisodeBatch, EpisodeCollector, FinishedEpisode
from verl.utils.dataset import TaskLoader


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

        return await draw_until_full(config, collector, loader, step)
    tasks = [loader.source[task_index] for task_index in loader.take(config.data.train_batch_size)]
    result = await collector.collect(tasks, config.env.rollout.n, step=step)
    play_greedy = partial(collector.collect, tasks, 1, step=step, greedy=True)
    return await with_baselines(config.reward, result, play_greedy if plan.greedy_episodes else None)


def samples_of(result: EpisodeBatch) -> StepSamples:
    """Return the samples of one collection."""
    return StepSamples(result.batch, result.episodes, dict(result.metrics), _tokens(result))


async def with_baselines(
    reward: RewardConfig, result: EpisodeBatch, play_greedy: Callable[[], Awaitable[EpisodeBatch]] | None
) -> StepSamples:
    """Return the samples of one collection, with the baselines of its greedy episodes if they are played."""
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
