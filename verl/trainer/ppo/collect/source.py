"""Where the samples of each training step come from: what every source has, and that of synchronous
training.

Those of the other modes are `collect/next_step.py` and `asynchronous/stream.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from verl.trainer.config import RunConfig
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.collect.protocol import EpisodeCollector
from verl.trainer.ppo.collect.step_samples import StepSamples, with_baselines
from verl.trainer.ppo.interrupt import StopRequest
from verl.utils.dataset import TaskLoader
from verl.utils.dataset.loader import LoaderState
from verl.utils.loop_thread import LoopThread

# Called with samples and their step as soon as they are complete.
OnCollected = Callable[[StepSamples, int], None]


async def collect_step(
    config: RunConfig, plan: RunPlan, collector: EpisodeCollector, loader: TaskLoader, step: int
) -> StepSamples:
    """Take the step's tasks from `loader` and run their episodes.

    Errors of the collector are raised.
    """
    if config.algorithm.filter_groups.enable:
        from verl.trainer.ppo.collect.dynamic_sampling import draw_until_full  # of this key alone

        return await draw_until_full(config, collector, loader, step)
    task_indices = loader.take(config.data.train_batch_size)
    tasks = [loader.source[task_index] for task_index in task_indices]
    result = await collector.collect(tasks, config.env.rollout.n, step=step)
    if config.data.tail_window:
        from verl.utils.dataset.tail_loader import note_lengths  # of this key alone

        note_lengths(loader, task_indices, result.episodes)
    play_greedy = partial(collector.collect, tasks, 1, step=step, greedy=True)
    return await with_baselines(config.reward, result, play_greedy if plan.greedy_episodes else None)


@dataclass(eq=False)
class SampleSource:
    """Samples for one step after the other; its methods block the caller.

    Attributes:
        config: configuration of the run.
        plan: plan of the run.
        collector: plays episodes.
        loader: of the tasks.
        loop: event loop of the collector.
        on_collected: called with the samples of every step.
    """

    config: RunConfig
    plan: RunPlan
    collector: EpisodeCollector
    loader: TaskLoader
    loop: LoopThread
    on_collected: OnCollected

    def take(self, step: int, stop: StopRequest) -> StepSamples:
        """Return the samples of a step. Raises `Interrupted` after a signal, and the errors of the
        collector.
        """
        samples = stop.run(self.loop, self._collect(step))
        self.on_collected(samples, step)
        return samples

    async def _collect(self, step: int) -> StepSamples:
        """Return the samples of a step, on the event loop."""
        raise NotImplementedError

    @property
    def has_next(self) -> bool:
        """Whether it has the samples of the next step, as after `load`."""
        return False

    def set_validating(self, validating: bool) -> None:
        """Begin no new episodes during a validation: there are none between two steps."""

    def rewind(self, step: int) -> None:
        """Undo the take of a step after `step`, which no policy was trained on, for a checkpoint of
        `step`; do nothing if there is none.
        """

    def save(self, folder: Path) -> None:
        """Write what a resumed run needs of samples that no step has taken: nothing."""

    def load(self, folder: Path) -> None:
        """Restore `save`."""


@dataclass(eq=False)
class StepCollection(SampleSource):
    """`async_training.mode=sync`: the samples of a step are collected when it begins."""

    # The last step whose tasks were drawn, and the loader before.
    _before_draw: tuple[int, LoaderState] | None = field(default=None, init=False)

    async def _collect(self, step: int) -> StepSamples:
        self._before_draw = (step, self.loader.state_dict())
        return await collect_step(self.config, self.plan, self.collector, self.loader, step)

    def rewind(self, step: int) -> None:
        """As `SampleSource.rewind`: the tasks of a later step count as not drawn."""
        if self._before_draw is not None and self._before_draw[0] > step:
            self.loader.load_state_dict(self._before_draw[1])
