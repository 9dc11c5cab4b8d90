"""The training loop of `async_training.mode` one_step_off and fully_async: samples are collected beside
updates.

    step s:      take samples ──► every lane: score, update, send weights ──► report, save, validate
    step s + 1:      as soon as a lane is free and samples are complete: take samples ──► ...

A step is open from when it has its samples until all lanes have trained on them. At most
`async_training.max_lead` steps are open beside the oldest one, with one lane none. Steps end in their order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import suppress
from dataclasses import dataclass

from verl.trainer.ppo.asynchronous.lane_trainer import LaneTrainer, OpenStep
from verl.trainer.ppo.asynchronous.source import AsynchronousSource
from verl.trainer.ppo.checkpointer import torn_step
from verl.trainer.ppo.collect.step_samples import NoSamplesError
from verl.trainer.ppo.interrupt import Interrupted, StopRequest
from verl.trainer.ppo.loop import TrainingLoop
from verl.utils.timer import Timer

# Period in which a lane that has nothing to do looks for samples, in seconds.
READY_S = 0.02


@dataclass(eq=False)
class AsynchronousLoop(TrainingLoop):
    """Trains until the run is finished, on samples that may be of older weights."""

    source: AsynchronousSource

    def __post_init__(self) -> None:
        self.trainer = LaneTrainer(
            self.team.config.algorithm,
            self.team.config.async_training,
            self.team.plan,
            self.steps,
            self.source,
        )
        # Oldest first.
        self._open = deque[OpenStep]()
        self._last_end = 0.0

    def train(self, stop: StopRequest) -> None:
        """As `TrainingLoop.train`; a signal lets steps that are open end first."""
        self.source.published(self.progress.global_step, self.team.learners)
        try:
            while not self.progress.finished:
                self._open.append(self._begin_step(stop))
                while self._open and (len(self._open) > self.trainer.lanes.lead or self._open[-1].meets):
                    self._conclude(self._end_step(), stop)
        except Interrupted:
            # Their updates may have begun, which cannot be undone.
            self._end_steps()
            raise

    def _begin_step(self, stop: StopRequest) -> OpenStep:
        """Take the samples of the next step, and let the lanes train on them."""
        step = self.progress.global_step + len(self._open) + 1
        timer = Timer()
        began = time.perf_counter()
        # While other steps are open, what has been measured is theirs, and credit has no state
        # between steps.
        if not self._open:
            self._begin()
        self.team.engines.allow_restarts()
        self._await_lane(stop)
        with timer("gen"):
            samples = self.source.take(step, stop)
        idle_s = self.trainer.lanes.idle_seconds(began)
        if samples.batch is None:
            # The steps before have samples, and their metrics come first.
            self._end_steps()
            self.report.log(samples.metrics, step)
            raise NoSamplesError(step, samples.no_batch_reason)
        before = self._open[-1].generated_tokens if self._open else self.progress.generated_tokens
        tokens = before + samples.generated_tokens
        last = self.progress.ends_with(step, tokens)
        self.source.update_begins(step, last)
        # A validation is one of this step's weights, of every policy.
        everyone = last or self.validator.due(step)
        # Nothing else may change weights that are saved or validated.
        meets = everyone or self.checkpointer.due(step)
        rows, lanes = self.trainer.start(step, samples.batch, everyone)
        return OpenStep(
            number=step,
            samples=samples,
            meets=meets,
            rows=rows,
            lanes=lanes,
            began=began,
            gen_s=timer.seconds["gen"],
            idle_s=idle_s,
            generated_tokens=tokens,
        )

    def _await_lane(self, stop: StopRequest) -> None:
        """Wait until a lane has ended all open steps and the next one's samples are complete; end
        steps that all lanes have ended.
        """
        while self._open:
            oldest = self._open[0].lanes
            newest = self._open[-1].lanes
            if all(lane.done() for lane in oldest):
                # Neither saved nor validated: a step for which that is due is the only one that is
                # open, and `train` has concluded it.
                self.report.log(self._end_step())
            elif stop.requested:
                # `take` raises Interrupted.
                return
            elif any(lane.done() for lane in newest) and self.source.ready():
                # Not before samples are complete: while `take` waits for them, no step that ends is
                # reported.
                return
            else:
                # With a time limit, since no lane tells when samples are complete.
                running = [lane for lane in (*oldest, *newest) if not lane.done()]
                wait(running, READY_S, FIRST_COMPLETED)

    def _end_step(self) -> dict[str, float]:
        """Wait for the oldest open step, and return its metrics. Raises the error of a lane."""
        step = self._open[0]
        trained = self.trainer.result(step)
        # Only now: a step with an error stays open, for the rescue.
        self._open.popleft()
        self.progress.complete(step.number, step.generated_tokens)
        # Steps overlap: the time of one begins when the one before it has ended, so that their sum
        # is that of the run.
        began = max(step.began, self._last_end)
        self._last_end = time.perf_counter()
        step_s = self._last_end - began
        # With `one_step_off` the step also waits for the next one's samples, before weights are
        # sent.
        waited_s = trained.seconds.get("gen", 0.0)
        seconds = trained.seconds | {"gen": step.gen_s + waited_s, "step": step_s}
        # No step begins without samples, though a lane may have none of them.
        assert trained.batch is not None
        metrics = self.report.of_step(step.samples, trained.batch, trained.metrics, seconds)
        metrics["trainer/idle_ratio"] = (step.idle_s + waited_s) / step_s
        metrics |= self.source.metrics(step.number, step_s)
        # Of the agent whose samples are the oldest.
        staleness = [value for name, value in metrics.items() if name.endswith("/staleness/max")]
        metrics["trainer/staleness"] = max(staleness, default=0.0)
        return metrics

    def _end_steps(self) -> None:
        """End all open steps. Raises the error of a lane."""
        while self._open:
            self.report.log(self._end_step())

    def rescue(self) -> str:
        """As `TrainingLoop.rescue`, after the lanes have ended what they have begun."""
        # Now, because more episodes end while the lanes do.
        tasks = self.thread.named()
        # The error that ends the run has been raised; it may be the one of a lane, which comes
        # again here.
        with suppress(Exception):
            self._end_steps()
        completed = self.trainer.completed(self._open, self.progress.global_step)
        # Some policies have a step that others lack, and no checkpoint can be of both.
        if completed is None:
            return self._rescue_groups(tasks)
        # A step stays open with an error although all policies are updated: their weights were not
        # sent.
        for step in self._open:
            if step.number <= completed:
                self.progress.complete(step.number, step.generated_tokens)
        return self.checkpointer.rescue()

    def _rescue_groups(self, tasks: Sequence[str]) -> str:
        """Save the groups that are complete beside the checkpoint of the last completed step, if
        they are of weights that still exist, and return the note of `rescue`.

        Args:
            tasks: as for `torn_step`.
        """
        number = self.progress.global_step + 1
        why, fate = torn_step(number, (step.samples for step in self._open), tasks)
        # A checkpoint of `one_step_off` has the samples of its next step already.
        if self.team.config.async_training.mode != "fully_async":
            return self.checkpointer.where_to_continue(why, fate)
        # Groups may be of the newest weights that an engine has. If no checkpoint has those, they
        # are lost, and their groups with them.
        newest = self.team.engines.newest
        if not self.checkpointer.up_to_date or newest > self.progress.global_step:
            fate = f", without the groups that were complete{fate}"
        # With the models that the checkpoint has, of which it gets links: those of the policies are
        # torn.
        elif failure := self.checkpointer.try_to_save():
            why = failure
        else:
            fate = f", with the groups that were complete{fate}"
        return self.checkpointer.where_to_continue(why, fate)

    def close(self) -> None:
        """Begin no more updates."""
        self.trainer.lanes.end()
