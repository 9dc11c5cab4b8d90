"""Checks of a run's configuration, made before Ray starts and before a model loads."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agent_system.errors import AgentSystemError
from agent_system.launch.before_models import check_before_models, needs_sandbox
from agent_system.launch.collector import build_collector, check_endpoints
from agent_system.options import build_options
from agent_system.registry import EnvRegistry
from agent_system.rollout import TooManyFailuresError
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.collector import Collector
from agent_system.sandbox import configure
from agent_system.task import task_from_row
from verl.models.loader import ModelPathError
from verl.protocol.generate import EngineGoneError
from verl.protocol.template_time import TEMPLATE_TIME
from verl.single_controller.worker_group import WorkerDiedError
from verl.trainer.checkpoint.given_models import check_saved_models, fingerprints, groups_with_fixed_models
from verl.trainer.checkpoint.store import CheckpointStore, find_checkpoint, read_state
from verl.trainer.config import (
    AsyncTrainingConfig,
    CriticConfig,
    DataConfig,
    EnvConfig,
    RunConfig,
    TrainerConfig,
)
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.derived_values import (
    load_group_tokenizer,
    run_dir_of,
    steps_of_run,
)
from verl.trainer.plan.group_checks import warn_of_warmup
from verl.trainer.plan.placement import Placement
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.collect.step_samples import NoSamplesError
from verl.trainer.ppo.controller import ControllerError, resolve_device
from verl.trainer.ppo.critic import critic_signature
from verl.trainer.ppo.group_calls import TeamError
from verl.utils.checkpoint import CheckpointError
from verl.utils.data_file import DatasetError
from verl.utils.dataset import PromptMeasure, RLHFDataset, build_loader
from verl.utils.dataset.files import Row
from verl.utils.disk import DiskError

logger = logging.getLogger(__name__)

# Errors that a user can fix, or limits of the machine (a full disk, a timeout): reported in one
# line. Bugs and OSError keep a traceback.
USER_ERRORS = (
    AgentSystemError, CheckpointError, ConfigError, ControllerError, DatasetError, DiskError, EngineGoneError,
    ModelPathError,
    NoSamplesError, TeamError, TimeoutError, TooManyFailuresError, WorkerDiedError,
)  # fmt: skip


def start_sandbox(config: RunConfig) -> None:
    """Start the sandbox of a run that needs one, and log its isolation level. Raises
    AgentSystemError as `needs_sandbox`, and when the level is below `sandbox.min_level`.
    """
    if needs_sandbox(config.agent, config.env, config.gateway, config.sandbox):
        configure(config.sandbox)


def prompt_measures(collector: Collector) -> list[PromptMeasure]:
    """Return for every agent with a tokenizer how to measure its first prompt, and its
    `max_prompt_length`.
    """

    def lengths(agent_id: str, rows: Sequence[Row]) -> Sequence[int]:
        return collector.first_prompt_lengths(agent_id, [task_from_row(row) for row in rows])

    return [
        PromptMeasure(f"agent '{name}'", runtime.binding.max_prompt_length, partial(lengths, name))
        for name, runtime in collector.runtimes.items()
        if isinstance(runtime.binding, AgentBinding)
    ]


def build_datasets(
    data: DataConfig,
    env: EnvConfig,
    trainer: TrainerConfig,
    tokenizer: Any,
    measures: Sequence[PromptMeasure] = (),
) -> tuple[RLHFDataset | None, RLHFDataset | None]:
    """Return the training and validation tasks whose prompts fit; no training tasks with
    `trainer.val_only`.
    """
    judged = EnvRegistry.get(env.env_name).needs_ground_truth
    read = partial(
        RLHFDataset,
        tokenizer=tokenizer,
        config=data,
        measures=measures,
        needs_ground_truth=judged,
        convert=task_from_row,
    )
    train = None if trainer.val_only else read(data.train_files, max_samples=data.train_max_samples)
    val = read(data.val_files, max_samples=data.val_max_samples) if data.val_files else None
    if val is None and trainer.val_only:
        raise DatasetError("trainer.val_only=true needs data.val_files")
    _check_tasks(env, [dataset for dataset in (train, val) if dataset is not None])
    return train, val


def _check_tasks(env: EnvConfig, datasets: Sequence[RLHFDataset]) -> None:
    cls = EnvRegistry.get(env.env_name)
    if not cls.overrides("check_task"):
        return
    environment = cls(build_options(cls.config_class, env.params, "env.params"))
    for dataset in datasets:
        for task_index, row in enumerate(dataset.rows):
            try:
                environment.check_task(dataset[task_index])
            except AgentSystemError as error:
                raise AgentSystemError(f"{dataset.place(row['index'])}: {error}") from error


@dataclass(frozen=True)
class CheckedRun:
    """A checked configuration with everything derived from it.

    Attributes:
        plan: agents, policies and worker groups.
        adapter_sizes: number of parameters of every adapter, by policy.
        tokenizers: tokenizer by worker group.
        train, val: tasks; None where there are none.
        run_dir: output folder.
        name: name of the run in trackers.
        notes: lines about the numbers of the models.
    """

    plan: RunPlan
    adapter_sizes: Mapping[str, int]
    tokenizers: Mapping[str, Any]
    train: RLHFDataset | None
    val: RLHFDataset | None
    run_dir: Path
    name: str
    notes: Sequence[str] = ()


def tell_of_templates(placement: Placement, tokenizers: Mapping[str, Any], kwargs: Mapping[str, Any]) -> None:
    """Log what the chat templates of the models show in another way than training would like, and
    the time that they show.
    """
    # trials of templates, which a team behind APIs does not have
    from agent_system.rollout.template_check import template_facts

    messages: dict[str, None] = {}
    for group in placement.groups:
        facts = template_facts(tokenizers[group.wg_id], kwargs)
        messages |= {
            f"chat template of {group.model_path}: {f.name}: {f.text}": None
            for f in facts
            if not f.is_right or f.name == "time"
        }
    for text in messages:
        logger.info(text)


def _checkpoint(
    trainer: TrainerConfig,
    critic: CriticConfig,
    async_training: AsyncTrainingConfig,
    data: DataConfig,
    plan: RunPlan,
    run_dir: Path,
) -> Path | None:
    """Return the checkpoint that the run begins from, which fits it; None for a run from the start.

    Raises CheckpointError for one of another team, other models or other critics.
    """
    checkpoint = find_checkpoint(trainer, CheckpointStore(run_dir / "checkpoints"))
    if checkpoint is None:
        return None
    critics = None if trainer.val_only else critic_signature(critic, plan)
    bases = fingerprints(groups_with_fixed_models(plan, plan.references))
    state = read_state(checkpoint, plan, critics, bases)
    # before the first prompt is rendered
    if "template_time" in state:
        TEMPLATE_TIME.restore(str(state["template_time"]))
    if not trainer.val_only:
        # of runs that go on
        from verl.trainer.ppo.asynchronous.saved_groups import check_checkpoint

        check_checkpoint(checkpoint, state, async_training, data)
    check_saved_models(checkpoint, plan)
    return checkpoint


def check_run(config: RunConfig) -> CheckedRun:
    """Check a configuration before Ray starts and before a model loads. Raise one of `USER_ERRORS`
    for an error in it.
    """
    plan, runs_programs = check_before_models(config)
    if runs_programs:
        configure(config.sandbox)
    # Checks of models load the trainer and the engines: behind those that need neither.
    from verl.trainer import model_checks
    from verl.trainer.exactness_checks import check_exactness
    from verl.trainer.memory_plan import plan_memory

    model_checks.check_forms(plan)
    device = resolve_device(config.trainer.device)
    notes = check_exactness(plan, device)
    model_checks.check_vllm(plan, device)
    trained_in = run_dir_of(config.trainer)
    checkpoint = _checkpoint(
        config.trainer, config.critic, config.async_training, config.data, plan, trained_in
    )
    run_dir = trained_in
    if config.agent.role_policies:
        from verl.trainer.plan.role_policies import output_dir  # of this key alone

        run_dir = output_dir(config.agent, config.trainer, plan.agents, plan.speakers, trained_in, checkpoint)
    model_checks.check_reward_model(config.reward)
    tokenizers = {g.wg_id: load_group_tokenizer(g) for g in plan.groups}
    tell_of_templates(plan, tokenizers, config.data.apply_chat_template_kwargs)
    sizes = model_checks.adapter_sizes(plan)
    model_checks.check_critic(config.critic, plan, tokenizers)
    model_checks.check_positions(plan)
    plan_memory(config, plan, device)
    collector = build_collector(config, plan, tokenizers, dict.fromkeys(tokenizers))
    tokenizer = next(iter(tokenizers.values()), None)
    train, val = build_datasets(
        config.data, config.env, config.trainer, tokenizer, prompt_measures(collector)
    )
    if train is not None:
        if config.reward.custom_reward_function.path is not None:
            from agent_system.reward.trial import try_function  # no other run needs it

            try_function(config.reward, train[0])
        loader = build_loader(train, config.data)
        steps = steps_of_run(config.trainer, len(loader))
        warn_of_warmup(config.trainer, steps)
        if config.data.tail_window and steps <= len(loader):
            logger.warning(
                "data.tail_window=%d has no effect: the run has one epoch, and lengths are known from the "
                "second one on", config.data.tail_window,
            )  # fmt: skip
        if checkpoint is not None:
            loader.load_state_dict(torch.load(checkpoint / "data.pt", weights_only=True))
    check_endpoints(config.reward, plan)
    name = (
        config.trainer.experiment_name
        if run_dir == trained_in
        else f"{config.trainer.experiment_name}/{run_dir.name}"
    )
    return CheckedRun(plan, sizes, tokenizers, train, val, run_dir, name, notes)
