"""Where the samples of each training step come from: one source for each `async_training.mode`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from verl.trainer.config import RunConfig
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.collect.protocol import Collector
from verl.trainer.ppo.collect.step_samples import StepSamples, collect_step
from verl.trainer.ppo.interrupt import StopRequest
from verl.utils.dataset import TaskLoader
from verl.utils.dataset.loader import LoaderState
from verl.utils.loop_thread import LoopThread

# Called with samples and their step as soon as they are complete.
OnCollected = Callable[[StepSamples, int], None]


class SampleSource(Protocol):
    """Samples for one step after the other; its methods block the caller.

    The training loop calls them. `wants`, `update_ended` and `published` come from the thread that trains the
    policies, for each lane of policies in this order: with several lanes at the same time, and also beside
    `take` of the next step.
    """

    def take(self, step: int, stop: StopRequest) -> StepSamples:
        """Return the samples of a step. Raises `Interrupted` after a signal, and the errors of the
        collector.
        """
        ...

    def update_begins(self, step: int, last: bool) -> None:
        """Do what runs beside the updates of a step, which is the last one or not."""
        ...

    def wants(self, step: int, policy: str) -> bool:
        """Return whether the engines get the weights of a policy after its update in a step."""
        ...

    def update_ended(self, step: int, policies: Collection[str]) -> None:
        """Prepare for new weights of policies; called in any thread."""
        ...

    def published(self, version: int, policies: Collection[str]) -> None:
        """Use weights of policies that the engines now have; called in any thread."""
        ...

    def set_validating(self, validating: bool) -> None:
        """Begin no new episodes during a validation."""
        ...

    def ready(self) -> bool:
        """Return whether the samples of the next step are complete."""
        ...

    def metrics(self, step: int, step_s: float) -> dict[str, float]:
        """Return metrics of a step that has ended after `step_s` seconds."""
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
        collector: Collector,
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
        self._drawn: tuple[int, LoaderState] | None = (
            None  # the last step whose tasks were drawn, and the loader before
        )

    def take(self, step: int, stop: StopRequest) -> StepSamples:
        """As `SampleSource.take`."""
        self._drawn = step, self.loader.state_dict()
        samples = stop.run(self.loop, collect_step(self.config, self.plan, self.collector, self.loader, step))
        self.on_collected(samples, step)
        return samples

    def update_begins(self, step: int, last: bool) -> None:
        """Do nothing."""

    def wants(self, step: int, policy: str) -> bool:
        """Return True."""
        return True

    def update_ended(self, step: int, policies: Collection[str]) -> None:
        """Do nothing."""

    def published(self, version: int, policies: Collection[str]) -> None:
        """Do nothing."""

    def set_validating(self, validating: bool) -> None:
        """Do nothing."""

    def ready(self) -> bool:
        """Return False."""
        return False

    def metrics(self, step: int, step_s: float) -> dict[str, float]:
        """Return none."""
        return {}

    def rewind(self, step: int) -> None:
        """As `SampleSource.rewind`: the tasks of a later step count as not drawn."""
        if self._drawn is not None and self._drawn[0] > step:
            self.loader.load_state_dict(self._drawn[1])

    def save(self, folder: Path) -> None:
        """Write nothing."""

    def load(self, folder: Path) -> None:
        """Read nothing."""
