"""When a run validates, and what it does with the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from verl.trainer.config import RunConfig
from verl.trainer.ppo.checkpointer import Checkpointer
from verl.trainer.ppo.collect.protocol import EpisodeCollector
from verl.trainer.ppo.collect.source import SampleSource
from verl.trainer.ppo.interrupt import StopRequest
from verl.trainer.ppo.progress import Progress
from verl.trainer.ppo.report import RunReport
from verl.utils.dataset import RLHFDataset, TaskLoader
from verl.utils.loop_thread import LoopThread

if TYPE_CHECKING:
    from verl.trainer.ppo.validation import ValidationResult


@dataclass(kw_only=True, eq=False)
class Validator:
    """Plays the validation tasks with the current weights.

    Attributes:
        config: configuration of the run.
        dataset: validation tasks; None for a run without validations.
        collector: plays them.
        thread: of the collector's event loop.
        source: of training samples, which begins no episodes meanwhile; None if nothing is trained.
        report: writes episodes and metrics.
        progress: of the run.
        checkpointer: of the run.
    """

    config: RunConfig
    dataset: RLHFDataset | None
    collector: EpisodeCollector
    thread: LoopThread
    source: SampleSource | None
    report: RunReport
    progress: Progress
    checkpointer: Checkpointer

    def due(self, step: int) -> bool:
        """Return whether `trainer.test_freq` asks for a validation after a step."""
        test_freq = self.config.trainer.test_freq
        return self.dataset is not None and test_freq > 0 and step % test_freq == 0

    def run(self, stop: StopRequest, log: bool = True) -> ValidationResult | None:
        """Validate the last completed step, and return the result; None without validation tasks.

        Args:
            stop: cancels the validation.
            log: log the metrics.

        Raises:
            Interrupted: a signal stopped it.
        """
        if self.dataset is None:
            return None
        from verl.trainer.ppo.validation import validation_result  # of data.val_files alone

        n = self.config.env.rollout.val_n
        step = self.progress.global_step
        loader = TaskLoader(self.dataset, self.config.data.val_batch_size, shuffle=False, drop_last=False)
        if self.source is not None:
            self.source.set_validating(True)
        try:
            chunks = [
                stop.run(self.thread, self.collector.collect(tasks, n, step=step, validate=True))
                for tasks in loader
            ]
        finally:
            if self.source is not None:
                self.source.set_validating(False)
        if self.config.trainer.log_trajectories != 0:
            for i, chunk in enumerate(chunks):
                suffix = f"_{i}" if len(chunks) > 1 else ""
                self.report.write_episodes(chunk.episodes, f"val_{step:06d}{suffix}")
            self.report.log_episodes([e for chunk in chunks for e in chunk.episodes], step)
        # Means, maxima and counts of parts are none of the whole.
        whole = chunks[0] if len(chunks) == 1 else self.collector.join(chunks, validate=True)
        result = validation_result(whole, n)
        if log:
            self.report.log(result.metrics)
        return result

    def adapt_theta(self, result: ValidationResult | None) -> None:
        """Adapt the threshold of propagation (`reward.propagation.theta`) to a validation."""
        credit = self.checkpointer.credit
        if credit.theta.adapts and result is not None:
            credit.theta.update(result.metrics)
            self.collector.set_theta(credit.theta.value)
            # The checkpoint of the step was written before its validation, so that an error in the
            # latter does not cost the step.
            self.checkpointer.amend({"credit": credit.state_dict()})
