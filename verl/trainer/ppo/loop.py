"""The training loop of `async_training.mode=sync`: one step after the other.

    step s:  take samples ──► score ──► update ──► send weights ──► report ──► save, validate when due

Every step trains on samples of the weights that it updates. The loop of the other modes, in which samples are
collected beside the updates, is `asynchronous/loop.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from verl.trainer.ppo.checkpointer import Checkpointer, torn_step
from verl.trainer.ppo.collect.source import SampleSource
from verl.trainer.ppo.collect.step_samples import NoSamplesError, StepSamples
from verl.trainer.ppo.interrupt import Interrupted, StopRequest
from verl.trainer.ppo.progress import Progress
from verl.trainer.ppo.report import RunReport
from verl.trainer.ppo.team import TeamWorkers
from verl.trainer.ppo.train_step import StepTrainer
from verl.trainer.ppo.validator import Validator
from verl.utils.loop_thread import LoopThread
from verl.utils.timer import Timer


@dataclass(eq=False)
class TrainingLoop:
    """Trains until the run is finished.

    Attributes:
        team: worker groups.
        thread: of the collector's event loop.
        source: of the samples of each step.
        steps: scores samples, and updates with them.
        validator: validates when due.
        checkpointer: saves when due.
        report: writes metrics.
        progress: of the run.
    """

    team: TeamWorkers
    thread: LoopThread
    source: SampleSource
    steps: StepTrainer
    validator: Validator
    checkpointer: Checkpointer
    report: RunReport
    progress: Progress
    # Samples of a step whose update has begun, and has not ended or has failed.
    _in_update: StepSamples | None = field(default=None, init=False)

    def train(self, stop: StopRequest) -> None:
        """Train up to the last step.

        Raises:
            Interrupted: a signal stopped the run, after a step or while samples were collected.
            NoSamplesError: a step has no sample to train on.
        """
        while not self.progress.finished:
            metrics = self._step(self.progress.global_step + 1, stop)
            self._conclude(metrics, stop)

    def _step(self, step: int, stop: StopRequest) -> dict[str, float]:
        """Collect samples and train on them, and return the metrics of the step."""
        began = time.perf_counter()
        timer = Timer()
        self._begin()
        # Of each engine once in a step: one that dies again ends the run.
        self.team.engines.allow_restarts()
        with timer("gen"):
            samples = self.source.take(step, stop)
        if samples.batch is None:
            self.report.log(samples.metrics, step)
            raise NoSamplesError(step, samples.no_batch_reason)
        self.steps.draw(samples.batch)
        batch, metrics = self.steps.score(samples.batch, step, timer)
        # Updates need the memory; the caches are allocated again when weights are sent.
        self.team.engines.free_caches()
        self._in_update = samples
        metrics |= self.steps.update(batch, step, timer)
        self._in_update = None
        # Before weights are sent: a step whose policies are updated is saved although an engine is
        # lost.
        self.progress.complete(step, self.progress.generated_tokens + samples.generated_tokens)
        with timer("sync_weights"):
            self.team.engines.sync_weights(step)
        metrics |= self.steps.value_metrics(batch)
        seconds = timer.seconds | {"step": time.perf_counter() - began}
        return self.report.of_step(samples, batch, metrics, seconds)

    def _begin(self) -> None:
        """Prepare for a step that begins when no other one is trained."""
        # What has been measured since the last step, as of a validation, is no part of this one.
        self.report.write_timeline()
        self.team.engines.take_metrics()
        self.checkpointer.remember_credit()

    def _conclude(self, metrics: dict[str, float], stop: StopRequest) -> None:
        """Save and validate after a step if that is due, and log its metrics.

        Raises:
            Interrupted: there was a signal, and more steps are to come.
        """
        step = self.progress.global_step
        last = self.progress.finished
        timer = Timer()
        try:
            if last or self.checkpointer.due(step):
                with timer("save_checkpoint"):
                    self.checkpointer.save_if_new()
                metrics["timing_s/save_checkpoint"] = timer.seconds["save_checkpoint"]
            if last or self.validator.due(step):
                with timer("testing"):
                    self.progress.after = self.validator.run(stop, log=False)
                self.validator.adapt_theta(self.progress.after)
                metrics |= self.progress.after.metrics if self.progress.after else {}
                metrics["timing_s/testing"] = timer.seconds["testing"]
        finally:
            # The step is trained, whatever became of its checkpoint or validation.
            self.report.log(metrics, step)
        # A run that is finished does not end as one that was stopped.
        if stop.requested and not last:
            raise Interrupted("stop requested")
        if last:
            self.checkpointer.add_validation()

    def rescue(self) -> str:
        """Save the last completed step after an error, if its state still exists, and return a note
        on where to continue; raises no error.
        """
        if self._in_update is None:
            return self.checkpointer.rescue()
        # Some policies may have the weights of the step and others not: no run could go on from
        # that.
        why, fate = torn_step(self.progress.global_step + 1, [self._in_update], self.thread.named())
        return self.checkpointer.where_to_continue(why, fate)

    def close(self) -> None:
        """Begin no more updates; nothing to do, as all of them run in the caller's thread."""
