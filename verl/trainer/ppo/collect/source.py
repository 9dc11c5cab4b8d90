"""Where the samples of each training step come from: what every source has, and that of synchronous training.

Those of the other modes are `collect/next_step.py` and `asynchronous/stream.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from verl.trainer.config import RunConfig
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.collect.protocol import EpisodeCollector
from verl.trainer.ppo.collect.step_samples import StepSamples, collect_step
from verl.trainer.ppo.interrupt import StopRequest
from verl.utils.dataset import TaskLoader
from verl.utils.dataset.loader import LoaderState
from verl.utils.loop_thread import LoopThread

# Called with samples and their step as soon as they are complete.
OnCollected = Callable[[StepSamples, int], None]


class SampleSource(Protocol):
    """Samples for one step after the other; its methods block the caller."""

    def take(self, step: int, stop: StopRequest) -> StepSamples:
        """Return the samples of a step. Raises `Interrupted` after a signal, and the errors of the
        collector.
        """
        ...

    def set_validating(self, validating: bool) -> None:
        """Begin no new episodes during a validation."""
        ...

    def rewind(self, step: int) -> None:
        """Undo the take of a step after `step`, which no policy was trained on, for a checkpoint of `step`;
        do nothing if there is none.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write what a resumed run needs of samples that no step has taken."""
        ...

    def load(self, folder: Path) -> None:
        """Restore `save`."""
        ...


class StepCollection:
    """`async_training.mode=sync`: the samples of a step are collected when it begins."""

    def __init__(
        self,
        config: RunConfig,
        plan: RunPlan,
        collector: EpisodeCollector,
        loader: TaskLoader,
        loop: LoopThread,
        on_collected: OnCollected,
    ) -> None:
        self.config = config
        self.collector = collector
        self.loader = loader
        self.loop = loop
        self.on_collected = on_collected
        self.plan = plan
        # The last step whose tasks were drawn, and the loader before.
        self._drawn: tuple[int, LoaderState] | None = None

    def take(self, step: int, stop: StopRequest) -> StepSamples:
        """As `SampleSource.take`."""
        self._drawn = step, self.loader.state_dict()
        samples = stop.run(self.loop, collect_step(self.config, self.plan, self.collector, self.loader, step))
        self.on_collected(samples, step)
        return samples

    def set_validating(self, validating: bool) -> None:
        """Do nothing."""

    def rewind(self, step: int) -> None:
        """As `SampleSource.rewind`: the tasks of a later step count as not drawn."""
        if self._drawn is not None and self._drawn[0] > step:
            self.loader.load_state_dict(self._drawn[1])

    def save(self, folder: Path) -> None:
        """Write nothing."""

    def load(self, folder: Path) -> None:
        """Read nothing."""
