"""What the trainer does with the samples of a step: credit, updates and transfers of weights, lane by lane
(`asynchronous/lanes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from functools import partial

import numpy as np

from verl.protocol import DataProto
from verl.trainer.config import RunConfig
from verl.trainer.plan.learners import is_on_policy
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.asynchronous.lanes import Lanes, lanes_of
from verl.trainer.ppo.batching import SubBatch, combine_batches
from verl.trainer.ppo.collect.source import SampleSource
from verl.trainer.ppo.collect.step_samples import StepSamples
from verl.trainer.ppo.core_algos.rollout_correction import merged_metrics
from verl.trainer.ppo.credit.step_credit import CreditAssigner
from verl.trainer.ppo.critic import value_metrics
from verl.trainer.ppo.group_calls import with_group
from verl.trainer.ppo.team import TeamWorkers
from verl.trainer.ppo.traces import RECORDED, recorded_steps
from verl.utils.names import listed
from verl.utils.timer import Timer


@dataclass(frozen=True)
class Trained:
    """What was done with rows of a step: the rows with advantages, metrics, and seconds of the phases."""

    batch: DataProto | None
    metrics: dict[str, float]
    seconds: dict[str, float]


@dataclass(frozen=True)
class OpenStep:
    """A step that has its samples.

    Attributes:
        number: of the step, from 1.
        samples: what it trains on.
        meets: no other step begins before this one has ended.
        rows: of each lane, as indices into the batch.
        lanes: results to come.
        began: when it did, by `time.perf_counter`.
        seconds: those in which it waited for its samples (`gen`), and in which no policy was updated
            meanwhile (`idle`).
        generated_tokens: of the run, with this step.
    """

    number: int
    samples: StepSamples
    meets: bool
    rows: Sequence[np.ndarray]
    lanes: Sequence[Future[Trained]]
    began: float
    seconds: dict[str, float]
    generated_tokens: int


class StepTrainer:
    """Scores the samples of steps, updates the policies with them and sends their weights to the engines.

    Args:
        config: configuration of the run.
        plan: plan of the run.
        team: worker groups.

    Attributes:
        credit: scores samples.
        policies: of each lane.
        lanes: run the steps.
    """

    def __init__(self, config: RunConfig, plan: RunPlan, team: TeamWorkers) -> None:
        self.config = config
        self.team = team
        self.on_policy = is_on_policy(config, team.learners)
        self.credit = CreditAssigner(config, plan, team, self.on_policy)
        self.policies = lanes_of(config, plan)
        # of policies and critics
        self._names = [*{*plan.policy_ids, *(spec.wg_id for spec in plan.groups)}]
        self.lanes = Lanes(len(self.policies), config.async_training.max_lead)
        self._completed = [0] * len(self.policies)  # last step whose updates have ended, by lane
        self._updated = [0] * len(self.policies)  # last step with rows of the lane
        self._updating = [False] * len(self.policies)

    def start(
        self, source: SampleSource, step: int, batch: DataProto, everyone: bool
    ) -> tuple[list[np.ndarray], list[Future[Trained]]]:
        """Train on a batch, and return the rows of each lane and its results to come.

        With `everyone` the engines get the weights of all policies, otherwise of those that `source` wants.
        """
        policy_of = batch.non_tensor_batch["policy_id"]
        rows = (
            [np.flatnonzero(np.isin(policy_of, own)) for own in self.policies]
            if len(self.policies) > 1
            else [np.arange(len(batch))]
        )
        parts = [batch.select_idxs(own) if len(own) else None for own in rows] if len(rows) > 1 else [batch]
        jobs = [partial(self._train, source, step, lane, part, everyone) for lane, part in enumerate(parts)]
        return rows, self.lanes.start(jobs)

    def result(self, step: OpenStep) -> Trained:
        """Return what the lanes have done in a step, after all have ended: rows in the order of the batch.
        Raises the error of a lane.
        """
        wait(step.lanes)
        errors = [error for lane in step.lanes if (error := lane.exception())]
        if errors:
            raise next((error for error in errors if not isinstance(error, CancelledError)), errors[0])
        lanes = [lane.result() for lane in step.lanes]
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
        if self.team.uses_critic:
            metrics |= value_metrics(self.credit.critic_rows(batch), self.team.critic_agents)
        return Trained(batch, metrics, seconds)

    def completed(self, steps: Iterable[OpenStep], ended: int) -> int | None:
        """Return the last step that all policies have completed, at least `ended`, when the lanes of `steps`
        have ended.

        None if a policy was updated in a later one, or an update began and did not end.
        """
        wait([lane for step in steps for lane in step.lanes])
        completed = min(max(own, ended) for own in self._completed)
        return None if max(self._updated) > completed or any(self._updating) else completed

    def _train(
        self, source: SampleSource, step: int, lane: int, batch: DataProto | None, everyone: bool
    ) -> Trained:
        """Train the policies of a lane on their rows, and send to the engines the weights that `everyone`
        gets or the source wants.
        """
        timer = Timer()
        metrics = dict[str, float]()
        published = set[str]()
        errors: list[tuple[str, Exception]] = []

        def publish(policy: str) -> None:
            """Send a policy's weights while other policies are updated, which an error must not prevent."""
            if self.config.async_training.mode != "fully_async" or not (
                everyone or source.wants(step, policy)
            ):
                return
            try:
                source.update_ended(step, [policy])
                self.team.engines.publish(policy)
                source.published(step, [policy])
                published.add(policy)
            except Exception as error:
                errors.append((self.team.learners[policy].wg_id, error))

        if batch is not None:
            if steps := recorded_steps(self.config.global_profiler, step):
                batch.meta_info[RECORDED] = steps
            batch, metrics = self.credit.score(batch, timer, step - 1)
            if self.config.async_training.mode == "sync":
                self.team.engines.free_caches()
            self.lanes.check()
            self._updating[lane] = True
            metrics |= self._update(batch, step, timer, publish)
            self._updated[lane] = step
        self._completed[lane], self._updating[lane] = step, False
        if errors:
            raise with_group(errors[0][1], errors[0][0]) from errors[0][1]
        due = [
            policy
            for policy in self.policies[lane]
            if policy not in published and (everyone or source.wants(step, policy))
        ]
        if due:
            with timer("gen"):
                source.update_ended(step, due)
            with timer("sync_weights"):
                self.team.engines.sync_weights(step, due)
            source.published(step, due)
        return Trained(batch, metrics, timer.seconds)

    def _update(
        self, batch: DataProto, step: int, timer: Timer, updated: Callable[[str], None]
    ) -> dict[str, float]:
        """Update every critic and, after `trainer.critic_warmup` steps, every policy; `updated` is that of
        `TeamWorkers.update_actor`.
        """
        before = step - 1
        warmup = self.config.trainer.critic_warmup
        seed = (self.config.data.seed, step)
        metrics: dict[str, float] = {}
        if self.team.uses_critic:
            rows = self.credit.critic_rows(batch)
            with timer("update_critic"):
                metrics |= self.team.update_critic(rows, before, seed)
        if before >= warmup:
            with timer("update_actor"):
                metrics |= self.team.update_actor(batch, self.on_policy, before - warmup, seed, updated)
        return metrics


def uids_of(steps: Iterable[OpenStep]) -> str:
    """Return the groups of steps, for messages."""
    return listed(
        str(uid)
        for step in steps
        if step.samples.batch is not None
        for uid in step.samples.batch.non_tensor_batch["uid"]
    )


def _whole(parts: Mapping[str, SubBatch]) -> DataProto:
    """Return the rows of all parts in the order of the step's batch, with the columns that all have."""
    if len(parts) == 1:
        return next(iter(parts.values())).batch
    columns = sorted(set[str].intersection(*(set(part.batch.batch.keys()) for part in parts.values())))
    return combine_batches(
        {lane: SubBatch(part.batch.select(batch_keys=columns), part.rows) for lane, part in parts.items()}
    )
