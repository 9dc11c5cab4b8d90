"""The trainer: builds the parts of a run out of its configuration, and drives them from start to
end.

One controller process drives the worker groups of a team (`TeamWorkers`) and a collector of
episodes. The steps themselves are in `loop.py`, or in `asynchronous/loop.py` where samples are
collected beside updates (`async_training.mode`). Both are independent of the backend of workers
(Ray actors or objects in this process) and of agents.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl.trainer.config import RunConfig
from verl.trainer.plan.derived_values import steps_of_run
from verl.trainer.plan.registry import AdvantageEstimator
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.checkpointer import Checkpointer
from verl.trainer.ppo.collect.protocol import EpisodeCollector
from verl.trainer.ppo.collect.source import SampleSource, StepCollection
from verl.trainer.ppo.credit.advantage import compute_advantage, compute_response_mask
from verl.trainer.ppo.critic import need_critic
from verl.trainer.ppo.interrupt import Interrupted, StopRequest
from verl.trainer.ppo.loop import TrainingLoop
from verl.trainer.ppo.progress import Progress
from verl.trainer.ppo.report import RunReport
from verl.trainer.ppo.team import TeamWorkers
from verl.trainer.ppo.train_step import StepTrainer
from verl.trainer.ppo.validator import Validator
from verl.trainer.ppo.verl_arguments import refuse_verl_arguments
from verl.utils.checkpoint import CheckpointError
from verl.utils.dataset import RLHFDataset, TaskLoader, build_loader
from verl.utils.loop_thread import LoopThread
from verl.utils.tracking import Tracking

if TYPE_CHECKING:
    from verl.single_controller.ray.base import RayClassWithInitArgs, RayWorkerGroup, ResourcePoolManager
    from verl.trainer.ppo.core_algos.kl import apply_kl_penalty
    from verl.trainer.ppo.utils import Role, WorkerType, need_reference_policy

logger = logging.getLogger(__name__)

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
    if name == "apply_kl_penalty":
        from verl.trainer.ppo.core_algos import kl

        return kl.apply_kl_penalty
    if name in ("Role", "WorkerType", "need_reference_policy"):
        from verl.trainer.ppo import utils

        return getattr(utils, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class RayPPOTrainer:
    """Trains the policies of one run.

    Args:
        config: the whole run's configuration.
        plan: agents, policies and worker groups.
        team: worker groups, whose processes have started and whose models are not loaded yet.
        collector: runs episodes (`agent_system`).
        train_dataset: training tasks; None with `trainer.val_only`.
        val_dataset: validation tasks; None skips validation.
        tracking: destination of metrics.
        run_dir: output folder, `outputs/<project>/<experiment>`.

    Attributes:
        progress: steps and validations so far.
        stopped_by: number of the signal that stopped the run; None before, and if none did.
    """

    @refuse_verl_arguments
    def __init__(
        self,
        config: RunConfig,
        plan: RunPlan,
        team: TeamWorkers,
        collector: EpisodeCollector,
        train_dataset: RLHFDataset | None,
        val_dataset: RLHFDataset | None,
        tracking: Tracking,
        run_dir: Path,
    ) -> None:
        self.config = config
        self.plan = plan
        self.team = team
        self.collector = collector
        self.tracking = tracking
        self.stopped_by: int | None = None
        self.thread = LoopThread("collector", config.rollout.episode_timeout_s, "rollout.episode_timeout_s")
        self.loader: TaskLoader | None = None
        if train_dataset is not None:
            self.loader = build_loader(train_dataset, config.data)
        total_steps = steps_of_run(config.trainer, len(self.loader) if self.loader else 0)
        self.progress = Progress(total_steps, config.trainer.total_generated_tokens)
        self.report = RunReport(
            config.trainer, config.algorithm, team, self.loader, self.progress, tracking, run_dir
        )
        self.steps = StepTrainer(config, plan, team)
        self.source = self._build_source(self.loader) if self.loader is not None else None
        self.checkpointer = Checkpointer(
            config,
            plan,
            team,
            self.loader,
            self.source,
            self.steps.credit,
            self.progress,
            run_dir / "checkpoints",
        )
        self.validator = Validator(
            config=config,
            dataset=val_dataset,
            collector=collector,
            thread=self.thread,
            source=self.source,
            report=self.report,
            progress=self.progress,
            checkpointer=self.checkpointer,
        )
        self.loop = self._build_loop(self.source) if self.source is not None else None

    def _build_source(self, loader: TaskLoader) -> SampleSource:
        arguments = (
            self.config,
            self.plan,
            self.collector,
            loader,
            self.thread,
            self.report.write_training_episodes,
        )
        settings = self.config.async_training
        if settings.mode == "sync":
            return StepCollection(*arguments)
        if settings.mode == "one_step_off":
            from verl.trainer.ppo.collect.next_step import NextStep  # of this mode alone

            return NextStep(*arguments)
        # of this mode alone
        from verl.trainer.ppo.asynchronous.stream import GroupStream

        learners = self.team.learners
        clients = self.team.engines.clients
        return GroupStream(
            *arguments,
            self.progress.total_steps,
            {policy: learner.pace for policy, learner in learners.items()},
            {policy: (clients[learner.wg_id], learner.adapter) for policy, learner in learners.items()},
        )

    def _build_loop(self, source: SampleSource) -> TrainingLoop:
        # The source is the one of the same mode, see `_build_source`.
        synchronous = self.config.async_training.mode == "sync"
        loop_class: type[TrainingLoop] = TrainingLoop
        if not synchronous:
            from verl.trainer.ppo.asynchronous.loop import AsynchronousLoop  # of these modes alone

            loop_class = AsynchronousLoop
        return loop_class(
            self.team,
            self.thread,
            source,
            self.steps,
            self.validator,
            self.checkpointer,
            self.report,
            self.progress,
        )

    def fit(self) -> None:
        """Train until the total number of steps or tokens; after a signal, save a checkpoint, stop,
        and set `stopped_by`.

        Errors are raised, with a note about the checkpoint of the last completed step, which is
        saved first if its state still exists.
        """
        steps = self.progress.total_steps
        # Policies are not updated while critics warm up.
        self.team.init_model(steps - self.config.trainer.critic_warmup, steps)
        from verl.trainer.ppo.engine_check import EngineCheck  # begins with the workers, not before

        check = EngineCheck(self.team, updated=self.loop is not None)
        check.of_loaded()
        resumed_step = self._resume()
        # An evaluation adds files of its own to those of the run.
        if not self.config.trainer.val_only:
            from verl.trainer.ppo.earlier_files import set_earlier_files_aside  # of training alone

            has_next = self.source is not None and self.source.has_next
            set_earlier_files_aside(self.report.run_dir, resumed_step, has_next)
            if self.report.state is not None:
                self.report.state.begin(resumed_step or 0)
        # An evaluation has no end that it approaches.
        self.tracking.start(0 if self.config.trainer.val_only else steps)
        check.of_changed()
        self.team.engines.sync_weights(self.progress.global_step)
        check.of_sent()
        with StopRequest(saves=not self.config.trainer.val_only) as stop:
            try:
                self._train(stop)
            except Exception as error:
                if self.loop is not None and (note := self.loop.rescue()):
                    error.add_note(note)
                raise
            finally:
                if self.loop is not None:
                    self.loop.close()
                self.thread.close()
        if not self.config.trainer.val_only:
            # Requests in progress have ended with the collector's event loop.
            self.report.write_timeline()

    def _resume(self) -> int | None:
        """Go on from a checkpoint if there is one, and return its step."""
        folder = self.checkpointer.resume()
        if folder is None:
            return None
        theta = self.steps.credit.theta
        if theta.adapts:
            self.collector.set_theta(theta.value)
        step = self.progress.global_step
        self.tracking.resume(step)
        if self.config.trainer.val_only:
            logger.warning("evaluating %s (step %d)", folder, step)
        else:
            logger.warning("continuing from %s (step %d of %d)", folder, step, self.progress.total_steps)
            from verl.trainer.checkpoint.changed_keys import describe_changes  # of runs that go on alone

            if changes := describe_changes(folder, asdict(self.config), asdict(RunConfig())):
                logger.info(changes)
        return step

    def _train(self, stop: StopRequest) -> None:
        """Validate, train and validate; after a signal, save the last completed step."""
        try:
            self._validate_before(stop)
            if self.loop is not None and not self.config.trainer.val_only:
                self.loop.train(stop)
                self._validate_after(stop)
        except Interrupted:
            progress = self.progress
            self.stopped_by = stop.number
            # an evaluation has no steps and saves nothing
            if self.config.trainer.val_only:
                logger.warning(
                    "evaluation of step %d stopped by a signal: it has no result", progress.global_step
                )
                return
            logger.warning(
                "stopped by a signal after step %d of %d", progress.global_step, progress.total_steps
            )
            self.checkpointer.save_last_step()
            logger.warning(self.checkpointer.where_to_continue())

    def _validate_before(self, stop: StopRequest) -> None:
        trainer = self.config.trainer
        # A resumed run has the validation of its checkpoint.
        if self.progress.before is None and (trainer.val_before_train or trainer.val_only):
            self.progress.before = self.validator.run(stop)
            self.validator.adapt_theta(self.progress.before)

    def _validate_after(self, stop: StopRequest) -> None:
        # The loop validates the last step, unless an earlier start of the run was stopped in
        # between.
        if self.progress.after is None and self.progress.global_step > 0:
            self.progress.after = self.validator.run(stop)
            self.checkpointer.add_validation()
