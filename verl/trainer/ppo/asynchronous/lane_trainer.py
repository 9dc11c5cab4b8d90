"""Training on the samples of steps lane by lane (`lanes.py`), of several steps at the same time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig, AsyncTrainingConfig
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.asynchronous.lanes import Lanes, lanes_of
from verl.trainer.ppo.asynchronous.source import AsynchronousSource
from verl.trainer.ppo.batching import SubBatch, combine_batches
from verl.trainer.ppo.collect.step_samples import StepSamples
from verl.trainer.ppo.core_algos.per_policy import merged_metrics
from verl.trainer.ppo.group_calls import with_group
from verl.trainer.ppo.train_step import StepTrainer
from verl.utils.timer import Timer

# Columns of estimators, with value and type for the rows of other ones.
OF_SOME = {"row_weights": (1.0, torch.float32), "moving_average": (math.nan, torch.float64)}


@dataclass(frozen=True)
class Trained:
    """What was done with rows of a step: the rows with advantages (None without rows), metrics, and
    seconds of the phases.
    """

    batch: DataProto | None
    metrics: dict[str, float]
    seconds: dict[str, float]


@dataclass(frozen=True)
class OpenStep:
    """A step that has its samples, and that lanes train on.

    Attributes:
        number: of the step, from 1.
        samples: what it trains on.
        meets: no other step begins before this one has ended.
        rows: of each lane, as indices into the batch.
        lanes: results to come.
        began: when it did, by `time.perf_counter`.
        gen_s: seconds in which it waited for its samples.
        idle_s: those of them in which no policy was updated.
        generated_tokens: of the run, with this step.
    """

    number: int
    samples: StepSamples
    meets: bool
    rows: Sequence[np.ndarray]
    lanes: Sequence[Future[Trained]]
    began: float
    gen_s: float
    idle_s: float
    generated_tokens: int


class LaneTrainer:
    """Scores the samples of steps, updates the policies with them and sends their weights to the
    engines, all lane by lane.

    Args:
        algorithm: keys under `algorithm`.
        async_training: keys under `async_training`.
        plan: plan of the run.
        steps: scores and updates.
        source: of the samples; says which weights the engines get.

    Attributes:
        policies: of each lane.
        lanes: run the steps.
    """

    def __init__(
        self,
        algorithm: AlgorithmConfig,
        async_training: AsyncTrainingConfig,
        plan: RunPlan,
        steps: StepTrainer,
        source: AsynchronousSource,
    ) -> None:
        self.async_training = async_training
        self.steps = steps
        self.source = source
        self.policies = lanes_of(algorithm, async_training, plan)
        self.lanes = Lanes(len(self.policies), async_training.max_lead)
        # Names under which metrics are reported: of policies, and of worker groups for their
        # critics.
        self._names = [*{*plan.policy_ids, *(spec.wg_id for spec in plan.groups)}]
        # Of each lane: the last step that it has completed, the last one of these in which it had
        # rows, and whether an update has begun that has not ended, or has failed.
        self._completed = [0] * len(self.policies)
        self._updated = [0] * len(self.policies)
        self._updating = [False] * len(self.policies)

    def start(
        self, step: int, batch: DataProto, everyone: bool
    ) -> tuple[list[np.ndarray], list[Future[Trained]]]:
        """Train on a batch, and return the rows of each lane and its results to come.

        Args:
            step: number of the step.
            batch: its samples.
            everyone: the engines get the weights of all policies, otherwise of those that the
                source wants.
        """
        self.steps.draw(batch)
        parts: list[DataProto | None] = [batch]
        rows = [np.arange(len(batch))]
        if len(self.policies) > 1:
            policy_of = batch.non_tensor_batch["policy_id"]
            rows = [np.flatnonzero(np.isin(policy_of, policies)) for policies in self.policies]
            # A lane without rows has nothing to train, but completes the step.
            parts = [batch.select_idxs(indices) if len(indices) else None for indices in rows]
        jobs = [partial(self._train, step, lane, part, everyone) for lane, part in enumerate(parts)]
        return rows, self.lanes.start(jobs)

    def result(self, step: OpenStep) -> Trained:
        """Return what the lanes have done in a step, after all have ended: rows in the order of the
        batch. Raises the error of a lane.
        """
        wait(step.lanes)
        errors = [error for lane in step.lanes if (error := lane.exception())]
        if errors:
            # A lane is cancelled because another one has failed, whose error says why.
            raise next((error for error in errors if not isinstance(error, CancelledError)), errors[0])
        lanes = [lane.result() for lane in step.lanes]
        # Lanes work at the same time.
        seconds = {
            name: max(lane.seconds.get(name, 0.0) for lane in lanes)
            for name in {name for lane in lanes for name in lane.seconds}
        }
        parts = {
            str(number): SubBatch(lane.batch, step.rows[number])
            for number, lane in enumerate(lanes)
            if lane.batch is not None
        }
        batch = _whole(parts)
        metrics = merged_metrics([lane.metrics for lane in lanes], self._names)
        metrics |= self.steps.value_metrics(batch)
        return Trained(batch, metrics, seconds)

    def completed(self, steps: Iterable[OpenStep], ended: int) -> int | None:
        """Return the last step that all policies have completed, at least `ended`, when the lanes
        of `steps` have ended.

        None if a policy was updated in a later one, or an update began and did not end.
        """
        wait([lane for step in steps for lane in step.lanes])
        # A resumed run has completed the steps of its checkpoint, which no lane has counted.
        completed = min(max(step, ended) for step in self._completed)
        return None if max(self._updated) > completed or any(self._updating) else completed

    def _train(self, step: int, lane: int, batch: DataProto | None, everyone: bool) -> Trained:
        """Train the policies of a lane on their rows, and send to the engines the weights that
        `everyone` gets or the source wants.
        """
        timer = Timer()
        metrics: dict[str, float] = {}
        published: set[str] = set()
        errors: list[tuple[str, Exception]] = []
        engines = self.steps.team.engines

        def publish(policy: str) -> None:
            """Send a policy's weights while other policies of the lane are updated."""
            # Engines load weights at the pace of their policy, unless all need those of this step.
            if not (everyone or self.source.wants(step, policy)):
                return
            try:
                self.source.update_ended(step, [policy])
                engines.publish(policy)
                self.source.published(step, [policy])
                published.add(policy)
            except Exception as error:
                # Raised here it would end the updates, and the step of the lane would be lost.
                errors.append((self.steps.team.learners[policy].wg_id, error))

        # A lane without rows has no update, but completes the step and sends what is due.
        if batch is not None:
            batch, metrics = self.steps.score(batch, step, timer)
            # Another lane may have failed meanwhile: before an update the step can still be taken
            # back.
            self.lanes.check()
            self._updating[lane] = True
            # With `one_step_off` weights are sent below, after the samples of the next step are
            # complete: those are of the weights before this step.
            early = publish if self.async_training.mode == "fully_async" else None
            metrics |= self.steps.update(batch, step, timer, early)
            self._updated[lane] = step
        self._completed[lane] = step
        self._updating[lane] = False
        # Only now that the step counts as completed: its policies are updated, and can be saved,
        # although an engine lacks their weights.
        if errors:
            wg_id, error = errors[0]
            raise with_group(error, wg_id) from error
        # Policies without rows, and those of the critic's warm-up, have not been published after an
        # update.
        due = [
            policy
            for policy in self.policies[lane]
            if policy not in published and (everyone or self.source.wants(step, policy))
        ]
        if due:
            with timer("gen"):
                self.source.update_ended(step, due)
            with timer("sync_weights"):
                engines.sync_weights(step, due)
            self.source.published(step, due)
        return Trained(batch, metrics, timer.seconds)


def _whole(parts: Mapping[str, SubBatch]) -> DataProto:
    """Return the rows of all parts in the order of the step's batch, with the columns that all
    have; estimators of some agents alone set those of `OF_SOME`.
    """
    if len(parts) == 1:
        return next(iter(parts.values())).batch
    for name, (value, dtype) in OF_SOME.items():
        lacking = [part.batch for part in parts.values() if name not in set(part.batch.batch.keys())]
        if len(lacking) < len(parts):
            for batch in lacking:
                batch.batch[name] = torch.full((len(batch),), value, dtype=dtype)
    columns = sorted(set[str].intersection(*(set(part.batch.batch.keys()) for part in parts.values())))
    return combine_batches(
        {lane: SubBatch(part.batch.select(batch_keys=columns), part.rows) for lane, part in parts.items()}
    )
