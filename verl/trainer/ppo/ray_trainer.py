"""The training loop: collect -> split -> log-prob -> combine -> credit -> split -> update -> sync.

Where the samples of a step come from depends on `async_training.mode` (`SampleSource`): they are collected
when the step begins, during the step before it, or all the time.

One controller process drives the worker groups of a team (`TeamWorkers`) and a collector of episodes. The
loop is independent of the backend of workers (Ray actors or objects in this process) and of agents.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from verl.protocol.template_time import TEMPLATE_TIME
from verl.trainer.checkpoint.given_models import fingerprints, groups_with_fixed_models
from verl.trainer.checkpoint.store import (
    CONFIG_FILE,
    CheckpointStore,
    find_checkpoint,
    link_models,
    read_state,
)
from verl.trainer.config import RunConfig
from verl.trainer.config.entry import save_config
from verl.trainer.derived import steps_of_run
from verl.trainer.placement.table import Placement
from verl.trainer.ppo.asynchronous.pace import paces
from verl.trainer.ppo.asynchronous.saved_groups import check_checkpoint
from verl.trainer.ppo.collect.protocol import Collector, Episode
from verl.trainer.ppo.collect.source import SampleSource, StepCollection
from verl.trainer.ppo.collect.step_samples import StepSamples
from verl.trainer.ppo.credit.advantage import compute_advantage, compute_response_mask
from verl.trainer.ppo.critic import critic_signature, need_critic
from verl.trainer.ppo.gap_watch import GapWatch
from verl.trainer.ppo.interrupt import Interrupted, StopRequest
from verl.trainer.ppo.registry import AdvantageEstimator
from verl.trainer.ppo.report import step_metrics
from verl.trainer.ppo.reward import apply_kl_penalty
from verl.trainer.ppo.team import TeamWorkers
from verl.trainer.ppo.timeline import Span, append_spans
from verl.trainer.ppo.train_step import OpenStep, StepTrainer, uids_of
from verl.trainer.ppo.validation import ValidationResult, validation_result
from verl.trainer.ppo.verl_arguments import refuse_verl_arguments
from verl.utils.checkpoint import CheckpointError
from verl.utils.dataset import RLHFDataset, TaskLoader
from verl.utils.dataset.files import write_rows
from verl.utils.disk import writing
from verl.utils.loop_thread import LoopThread
from verl.utils.names import listed
from verl.utils.timer import Timer
from verl.utils.tracking import Tracking

if TYPE_CHECKING:
    from verl.single_controller.ray.base import RayClassWithInitArgs, RayWorkerGroup, ResourcePoolManager
    from verl.trainer.ppo.utils import Role, WorkerType, need_reference_policy

logger = logging.getLogger(__name__)
# Period in which a lane that has nothing to do looks for samples, in seconds.
READY_S = 0.02

__all__ = [
    "AdvantageEstimator", "CheckpointError", "RayClassWithInitArgs", "RayPPOTrainer", "RayWorkerGroup",
    "ResourcePoolManager", "Role",
    "WorkerType", "apply_kl_penalty", "compute_advantage", "compute_response_mask", "need_critic",
    "need_reference_policy",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # on demand: the local controller needs no Ray
    if name in (
        "RayClassWithInitArgs",
        "RayWorkerGroup",
        "ResourcePoolManager",
    ):
        from verl.single_controller.ray import base

        return getattr(base, name)
    # on demand: names of verl's that a run does not use
    if name in ("Role", "WorkerType", "need_reference_policy"):
        from verl.trainer.ppo import utils

        return getattr(utils, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class NoSamplesError(RuntimeError):
    """A step without a trainable sample."""


class RayPPOTrainer:
    """Trains the policies of one placement.

    Args:
        config: the whole run's configuration.
        placement: agent -> policy -> worker group.
        team: worker groups, not yet initialised.
        collector: runs episodes (`agent_system`).
        train_dataset: training tasks; None with `trainer.val_only`.
        val_dataset: validation tasks; None skips validation.
        tracking: destination of metrics.
        run_dir: output folder, `outputs/<project>/<experiment>`.
    """

    @refuse_verl_arguments
    def __init__(
        self,
        config: RunConfig,
        placement: Placement,
        team: TeamWorkers,
        collector: Collector,
        train_dataset: RLHFDataset | None,
        val_dataset: RLHFDataset | None,
        tracking: Tracking,
        run_dir: Path,
    ) -> None:
        self.config, self.placement, self.team, self.collector = config, placement, team, collector
        self.val_dataset, self.tracking, self.run_dir = val_dataset, tracking, run_dir
        self.store = CheckpointStore(run_dir / "checkpoints")
        self.loader = None
        if train_dataset is not None:
            self.loader = TaskLoader(
                train_dataset,
                config.data.train_batch_size,
                seed=config.data.seed,
                shuffle=config.data.shuffle,
            )
        self.steps = StepTrainer(config, placement, team)
        self._watch = GapWatch(team)
        self.credit = self.steps.credit
        self._critics = critic_signature(config, placement)
        self._models: dict[str, str] = {}
        self.global_step = 0
        self.before: ValidationResult | None = None
        self.after: ValidationResult | None = None
        self.timer = Timer()
        self.stopped_by: int | None = None
        self.generated_tokens = 0
        self._loop = LoopThread("collector", config.rollout.episode_timeout_s, "rollout.episode_timeout_s")
        self._open, self._ended = deque[OpenStep](), 0.0
        self._source: SampleSource | None = None
        self._saved_step = -1
        self._saved: Path | None = None
        # the last completed step when one began, and the state of credit then
        self._begun: tuple[int, dict[str, Any]] = (
            -1,
            {},
        )

    @property
    def total_training_steps(self) -> int:
        """Training steps of the run: `trainer.total_training_steps`, or those of all epochs."""
        return steps_of_run(self.config.trainer, len(self.loader) if self.loader else 0)

    @property
    def finished(self) -> bool:
        """Whether all steps are done, or training episodes have reached `trainer.total_generated_tokens`."""
        budget = self.config.trainer.total_generated_tokens
        return self.global_step >= self.total_training_steps or 0 < budget <= self.generated_tokens

    def fit(self) -> None:
        """Train until the total number of steps or tokens; after a signal, save a checkpoint, stop, and set
        `stopped_by`.

        Errors are raised, with a note about the checkpoint of the last completed step, which is saved first
        if its state still exists.
        """
        steps, warmup = self.total_training_steps, self.config.trainer.critic_warmup
        self.team.init_model(steps - warmup, steps)
        from verl.trainer.ppo.engine_check import EngineCheck  # begins with the workers, not before

        check = EngineCheck(self.team, updated=self.loader is not None)
        check.of_loaded()
        # Only now are models of the hub on this machine.
        self._models = fingerprints(self.placement.groups)
        self._source = self._build_source(self.loader) if self.loader is not None else None
        self._resume()
        self.tracking.start(self.total_training_steps)
        check.of_changed()
        self.team.engines.sync_weights(self.global_step)
        check.of_sent()
        if self._source is not None:
            self._source.published(self.global_step, self.team.learners)
        with StopRequest() as stop:
            try:
                try:
                    self._fit(stop)
                except Interrupted:
                    self._end_steps()
                    logger.warning(
                        "stopped by a signal after step %d of %d", self.global_step, self.total_training_steps
                    )
                    self.stopped_by = stop.number
                    self._save_last_step()
            except Exception as error:
                if note := self._rescue():
                    error.add_note(note)
                raise
            finally:
                self.steps.lanes.end()
                self._loop.close()
        if not self.config.trainer.val_only:
            self._write_timeline()  # requests in progress have ended with the loop

    def _fit(self, stop: StopRequest) -> None:
        trainer = self.config.trainer
        if self.before is None and (trainer.val_before_train or trainer.val_only):
            self.before = self._validate(stop)
            self._adapt_theta(self.before)
        if trainer.val_only or self.loader is None or self._source is None:
            return
        while not self.finished:
            self._open.append(self._begin_step(self.loader, self._source, stop))
            while self._open and (len(self._open) > self.steps.lanes.lead or self._open[-1].meets):
                self._conclude(self._end_step(self._source), stop)
        # the run was interrupted between the last step and its validation
        if self.after is None and self.global_step > 0:
            self.after = self._validate(stop)
            self._save_validation()

    def _conclude(self, metrics: dict[str, float], stop: StopRequest) -> None:
        """Save and validate after a step if that is due, and log its metrics. Raises Interrupted after a
        signal.
        """
        last = self.finished
        try:
            if last or self._saves(self.global_step):
                with self.timer("save_checkpoint"):
                    self._save_if_new()
                metrics["timing_s/save_checkpoint"] = self.timer.seconds["save_checkpoint"]
            if last or self._validates(self.global_step):
                with self.timer("testing"):
                    self.after = self._validate(stop, log=False)
                self._adapt_theta(self.after)
                metrics |= self.after.metrics if self.after else {}
                metrics["timing_s/testing"] = self.timer.seconds["testing"]
        finally:
            self._log(metrics)
        if stop.requested and not last:
            raise Interrupted("stop requested")
        if last:
            self._save_validation()

    def _begin_step(self, loader: TaskLoader, source: SampleSource, stop: StopRequest) -> OpenStep:
        """Take the samples of the next step, and begin to train on them."""
        step, timer, began = self.global_step + len(self._open) + 1, Timer(), time.perf_counter()
        if not self._open:
            self._write_timeline()
            self.team.engines.take_metrics()  # discard those of a validation
            self._begun = self.global_step, self.credit.state_dict()
        self.team.engines.allow_restarts()
        self._await_lane(source, stop)
        with timer("gen"):
            samples = source.take(step, stop)
        idle_s = self.steps.lanes.idle_seconds(began)
        if samples.batch is None:
            self._end_steps()
            self._log(samples.metrics, step)
            raise NoSamplesError(
                f"step {step}: {samples.no_batch_reason}; the episodes are in "
                f"trajectories/train_{step:06d}.jsonl"
            )
        tokens = (
            self._open[-1].generated_tokens if self._open else self.generated_tokens
        ) + samples.generated_tokens
        last = step >= self.total_training_steps or 0 < self.config.trainer.total_generated_tokens <= tokens
        source.update_begins(step, last)
        everyone = last or self._validates(step)
        rows, lanes = self.steps.start(source, step, samples.batch, everyone)
        seconds = timer.seconds | {"idle": idle_s}
        return OpenStep(step, samples, everyone or self._saves(step), rows, lanes, began, seconds, tokens)

    def _await_lane(self, source: SampleSource, stop: StopRequest) -> None:
        """Wait until a lane has ended all open steps and the next one's samples are complete; end steps that
        all lanes have ended.
        """
        while self._open:
            oldest, newest = self._open[0].lanes, self._open[-1].lanes
            if all(lane.done() for lane in oldest):
                self._log(self._end_step(source))
            elif stop.requested or (any(lane.done() for lane in newest) and source.ready()):
                return
            else:
                wait([lane for lane in (*oldest, *newest) if not lane.done()], READY_S, FIRST_COMPLETED)

    def _end_step(self, source: SampleSource) -> dict[str, float]:
        """Wait for the oldest open step, and return its metrics."""
        step = self._open[0]
        trained = self.steps.result(step)
        self._open.popleft()
        self.global_step, self.generated_tokens, self.timer = step.number, step.generated_tokens, Timer()
        began, self._ended = max(step.began, self._ended), time.perf_counter()
        gen_s = trained.seconds.get("gen", 0.0)
        seconds = trained.seconds | {"gen": step.seconds["gen"] + gen_s, "step": self._ended - began}
        assert trained.batch is not None
        spans = self._write_timeline()
        metrics = step_metrics(
            trained.batch,
            step.samples,
            self.config.algorithm,
            seconds=seconds,
            spans=spans,
            team=self.team.engines.take_metrics(),
            trained=self.team.trained,
            n_devices=self.team.n_devices,
        )
        self._watch.look(trained.batch, step.number, trained.metrics)
        # with lanes the spans are those of a time, in which two steps may have updated a policy
        metrics |= trained.metrics
        if self.config.async_training.mode != "sync":
            metrics["trainer/idle_ratio"] = (step.seconds["idle"] + gen_s) / seconds["step"]
            metrics |= source.metrics(step.number, seconds["step"])
            metrics["trainer/staleness"] = max(
                (value for name, value in metrics.items() if name.endswith("/staleness/max")), default=0.0
            )
        metrics["training/generated_tokens"] = float(self.generated_tokens)
        metrics["training/engine_restarts"] = float(self.team.engines.restarts)
        return metrics | {
            "training/global_step": float(step.number),
            "training/epoch": float(self.loader.epoch if self.loader else 0),
        }

    def _end_steps(self) -> None:
        """End all open steps."""
        while self._open and self._source is not None:
            self._log(self._end_step(self._source))

    def _build_source(self, loader: TaskLoader) -> SampleSource:
        arguments = (self.config, self.collector, loader, self._loop, self._collected)
        if self.config.async_training.mode == "fully_async":
            from verl.trainer.ppo.asynchronous.stream import GroupStream  # of this mode alone

            learners = self.team.learners
            engines = {
                policy: (self.team.engines.clients[learner.wg_id], learner.adapter)
                for policy, learner in learners.items()
            }
            adapters = [policy for policy, learner in learners.items() if learner.adapter is not None]
            return GroupStream(
                *arguments,
                self.total_training_steps,
                paces(self.config.async_training, learners, adapters),
                engines,
            )
        if self.config.async_training.mode == "one_step_off":
            from verl.trainer.ppo.collect.next_step import NextStep  # of this mode alone

            return NextStep(*arguments)
        return StepCollection(*arguments)

    def _collected(self, samples: StepSamples, step: int) -> None:
        """Write the episodes of a step."""
        self._write_trajectories(samples.episodes, f"train_{step:06d}", self.config.trainer.log_trajectories)

    def _validates(self, step: int) -> bool:
        test_freq = self.config.trainer.test_freq
        return self.val_dataset is not None and test_freq > 0 and step % test_freq == 0

    def _saves(self, step: int) -> bool:
        return self.config.trainer.save_freq > 0 and step % self.config.trainer.save_freq == 0

    def _write_timeline(self) -> list[Span]:
        """Append the spans of the worker groups since the last call to `timeline.jsonl`, with the current
        step.
        """
        spans = self.team.calls.timeline.take()
        path = self.run_dir / "timeline.jsonl"
        with writing(path):
            append_spans(path, self.global_step, spans)
        return spans

    def _validate(self, stop: StopRequest, log: bool = True) -> ValidationResult | None:
        if self.val_dataset is None:
            return None
        n, size = self.config.env.rollout.val_n, self.config.data.val_batch_size
        loader = TaskLoader(self.val_dataset, size, shuffle=False, drop_last=False)
        if self._source is not None:
            self._source.set_validating(True)
        try:
            chunks = [
                stop.run(self._loop, self.collector.collect(rows, n, step=self.global_step, validate=True))
                for rows in loader
            ]
        finally:
            if self._source is not None:
                self._source.set_validating(False)
        for i, chunk in enumerate(chunks):
            name = f"val_{self.global_step:06d}" + (f"_{i}" if len(chunks) > 1 else "")
            self._write_trajectories(chunk.episodes, name, -1 if self.config.trainer.log_trajectories else 0)
        result = validation_result(chunks, n)
        if log:
            self._log(result.metrics)
        return result

    def _adapt_theta(self, validation: ValidationResult | None) -> None:
        """Adapt the threshold of propagation to a validation, and add it to the step's checkpoint, which was
        written before.
        """
        if self.credit.theta.adapts and validation is not None:
            self.credit.theta.update(validation.metrics)
            self.collector.set_theta(self.credit.theta.value)
            self.store.amend(self.global_step, {"credit": self.credit.state_dict()})

    def _log(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.tracking.log(metrics, self.global_step if step is None else step)

    def _write_trajectories(self, episodes: Sequence[Episode], name: str, limit: int) -> None:
        episodes = episodes if limit < 0 else episodes[:limit]
        if not episodes:
            return
        path = self.run_dir / "trajectories" / f"{name}.jsonl"
        with writing(path):
            write_rows((episode.to_json() for episode in episodes), path)

    def _save_if_new(self, samples: bool = False) -> None:
        """Save the last completed step unless that has been done; with `samples` save those, and link the
        models, if it has.
        """
        saved = self._saved if self._saved_step == self.global_step else None
        if (saved is not None and not samples) or self.loader is None:
            return
        loader_state, hf_model = self.loader.state_dict(), self.config.trainer.save_hf_model

        def fill(folder: Path) -> None:
            save_config(self.config, folder / CONFIG_FILE)
            self.team.save_checkpoint(folder, hf_model) if saved is None else link_models(saved, folder)
            torch.save(loader_state, folder / "data.pt")
            if self._source is not None:
                self._source.save(folder)

        state = {
            "global_step": self.global_step,
            "generated_tokens": self.generated_tokens,
            "placement": self.placement.signature(),
            "bases": self._models,
            "critic": self._critics,
            "async_training": self.config.async_training.mode,
            "credit": self.credit.state_dict(),
            "before": self.before.to_json() if self.before else None,
            "template_time": TEMPLATE_TIME.state(),
        }
        self._saved = self.store.write(self.global_step, fill, state, self.config.trainer.max_ckpt_to_keep)
        self._saved_step = self.global_step

    def _save_last_step(self) -> None:
        """Save the last completed step, with the samples that no step was trained on, unless that has been
        done.
        """
        if self._source is not None:
            self._source.rewind(self.global_step)
        if self._begun[0] == self.global_step:
            self.credit.load_state_dict(self._begun[1])
        # which has completed groups since the last checkpoint
        self._save_if_new(self.config.async_training.mode == "fully_async")

    def _rescue(self) -> str:
        """Save the last completed step after an error, if its state still exists, and return where to
        continue; raises no error.
        """
        if self.loader is None:
            return ""
        why, fate, playing = "", "", [name.rpartition("#")[0] for name in self._loop.named() if "#" in name]
        try:
            with suppress(Exception):
                self._end_steps()
            completed = self.steps.completed(self._open, self.global_step)
            if completed is None:
                why = f"step {self.global_step + 1} was being updated, so the policies have not all completed the same step; "
                fate = (
                    f"; groups of that step: {uids_of(self._open)}; in progress: {listed(playing) or 'none'}"
                )
                if self.config.async_training.mode == "fully_async":
                    # else samples are of weights that are lost
                    kept = self._saved_step == self.global_step >= self.team.engines.newest
                    if kept:
                        self._save_last_step()
                    fate = f", {'with' if kept else 'without'} the groups that were complete{fate}"
            else:
                for step in self._open:
                    if step.number <= completed:
                        self.global_step, self.generated_tokens = step.number, step.generated_tokens
                if self.global_step == 0:
                    return ""
                self._save_last_step()
        except Exception as error:
            why = f"step {self.global_step} could not be saved: {' '.join(str(error).split())}; "
        if self._saved is None:
            return f"{why}no earlier step was saved, see trainer.save_freq"
        found = None
        with suppress(CheckpointError, OSError):
            found = find_checkpoint(self.config.trainer, self.store)
        how = (
            "the same command continues from it"
            if found == self._saved
            else "continue from it with trainer.resume_mode=auto"
        )
        return f"{why}{'the last checkpoint is' if why else f'step {self.global_step} is saved in'} {self._saved}; {how}{fate}"

    def _save_validation(self) -> None:
        """Add the validation of the last step to its checkpoint, for a finished run that is started again."""
        if self.after is not None:
            self.store.amend(self.global_step, {"after": self.after.to_json()})

    def _resume(self) -> None:
        folder = find_checkpoint(self.config.trainer, self.store)
        if folder is None:
            return
        val_only = self.config.trainer.val_only
        kept = {
            spec.wg_id for spec in groups_with_fixed_models(self.placement, None if val_only else self.config)
        }
        bases = {wg_id: fingerprint for wg_id, fingerprint in self._models.items() if wg_id in kept}
        state = read_state(folder, self.placement, None if val_only else self._critics, bases)
        # fingerprints from the start of the run, also of models that are not needed now
        self._models |= state.get("bases", {})
        if not val_only:
            check_checkpoint(folder, state, self.config)
        self.team.load_checkpoint(folder)
        if self.loader is not None:
            self.loader.load_state_dict(torch.load(folder / "data.pt", weights_only=True))
        if self._source is not None and not val_only:
            self._source.load(folder)
        self.global_step = self._saved_step = int(state["global_step"])
        self._saved = folder
        self.generated_tokens = int(state["generated_tokens"])
        self.credit.load_state_dict(state["credit"])
        if self.credit.theta.adapts:
            self.collector.set_theta(self.credit.theta.value)
        if not self.config.trainer.val_only:
            self.before = ValidationResult.from_json(state["before"]) if state["before"] else None
            self.after = (
                ValidationResult.from_json(state["after"]) if state.get("after") and self.finished else None
            )
        self.tracking.resume(self.global_step)
        if self.config.trainer.val_only:
            logger.warning("evaluating %s (step %d)", folder, self.global_step)
        else:
            logger.warning(
                "continuing from %s (step %d of %d)", folder, self.global_step, self.total_training_steps
            )
