"""Train a team: `python -m verl.trainer.main_ppo key=value ...`

The only module that knows both halves of the house: it builds the placement, the datasets, the worker groups (`verl`) and the
collector (`agent_system`), and hands them to `RayPPOTrainer`. Everything that can be wrong with a config is found before a model
loads.
"""

from __future__ import annotations

import sys

from agent_system.registry import load_plugins
from verl.trainer.config.cross_checks import api_key, candidates_of, check_command_line, check_settings, warn_of_warmup

if __name__ == "__main__":
    check_command_line(sys.argv[1:], load_plugins)  # what follows imports torch

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import hydra
import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agent_system.errors import AgentSystemError
from agent_system.registry import AgentRegistry, EnvRegistry, OrchestraRegistry
from agent_system.reward import OverlongBuffer, PropagationSettings, RewardSettings
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.collector import Collector, CollectResult, TooManyFailuresError
from agent_system.rollout.remote import RemoteBinding
from agent_system.rollout.settings import CollectorSettings, TreeSettings
from agent_system.rollout.tree import check_tree_env
from agent_system.sandbox import Limits, SandboxSettings, close_shared, configure
from agent_system.task import task_from_row
from verl.models.loader import ModelPathError, stop_token_ids
from verl.protocol.generate import EngineGoneError, RolloutError, SamplingParams
from verl.single_controller.worker_group import WorkerDiedError
from verl.trainer.checkpoint.given_models import check_saved_models, fingerprints, stay_as_given
from verl.trainer.checkpoint.store import CONFIG_FILE, CheckpointStore, find_checkpoint, read_state
from verl.trainer.config import RolloutConfig, RunConfig, SandboxConfig
from verl.trainer.config.entry import explain, fail, mistakes_in_one_line, prepared, register_config, save_config
from verl.trainer.config.presets import describe_preset
from verl.trainer.config.spec import ConfigError
from verl.trainer.model_checks import adapter_sizes, check_critic, check_vllm
from verl.trainer.placement.pools import assign_devices
from verl.trainer.placement.role_policies import set_apart, speakers
from verl.trainer.placement.table import Placement
from verl.trainer.ppo.controller import ControllerError, build_controller, resolve_device
from verl.trainer.ppo.critic import critic_agents, critic_signature
from verl.trainer.ppo.interrupt import StoppedAtOnce, stopping_at_once
from verl.trainer.ppo.ray_trainer import METRICS_FILE, NoSamplesError, RayPPOTrainer
from verl.trainer.ppo.team import TeamError, TeamWorkers
from verl.trainer.ppo.validation import rows_before_after
from verl.trainer.run_parts import load_group_tokenizer, max_model_len, resolve_defaults, run_dir_of, steps_of_run, table_row
from verl.utils.checkpoint import CheckpointError
from verl.utils.dataset import DatasetError, PromptMeasure, RLHFDataset, TaskLoader
from verl.utils.disk import DiskError, writing
from verl.utils.tracking import Tracking, check_backends

logger = logging.getLogger(__name__)

# What a user can mend, and what the machine refuses (a full disk, a time limit): one line. A bug keeps its traceback, an OSError too.
USER_ERRORS = (
    AgentSystemError, CheckpointError, ConfigError, ControllerError, DatasetError, DiskError, EngineGoneError, ModelPathError,
    NoSamplesError, TeamError, TimeoutError, TooManyFailuresError, WorkerDiedError,
)  # fmt: skip


class TaskCollector:
    """The agent side as the trainer sees it: dataset rows in, a batch out."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    async def collect(
        self, rows: Sequence[Mapping[str, Any]], n: int, *, step: int, validate: bool = False, greedy: bool = False, attempt: int = 0
    ) -> CollectResult:
        """Turn rows into tasks and play them."""
        tasks = [task_from_row(r) for r in rows]
        return await self.collector.collect(tasks, n, step=step, validate=validate, greedy=greedy, attempt=attempt)

    def set_theta(self, theta: float) -> None:
        """Propagate rewards by this threshold from now on."""
        settings = self.collector.settings
        propagation = replace(settings.reward.propagation, theta=theta)
        self.collector.settings = replace(settings, reward=replace(settings.reward, propagation=propagation))

    def join(self, results: Sequence[Any]) -> CollectResult:
        """Several collections of one step as one."""
        return self.collector.join(results)

    def measures(self) -> list[PromptMeasure]:
        """How long the first prompt of every agent is, and may be."""
        return [
            PromptMeasure(f"agent '{name}'", runtime.binding.max_prompt_length, partial(self._lengths, name))
            for name, runtime in self.collector.runtimes.items()
            if isinstance(runtime.binding, AgentBinding)
        ]

    def _lengths(self, agent_id: str, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        return self.collector.first_prompt_lengths(agent_id, [task_from_row(r) for r in rows])


def check_team(config: RunConfig) -> None:
    """Look every name of the team up; `agent.plugins` gets the modules of installed entry points too, for the workers.

    Raises AgentSystemError listing what is registered.
    """
    config.agent.plugins = load_plugins(config.agent.plugins)
    orchestra = OrchestraRegistry.get(config.agent.orchestra_type)
    for agent_id in (*config.agent.agent_ids, *orchestra.agents):
        AgentRegistry.get(agent_id, orchestra=config.agent.orchestra_type)
    missing = [a for a in orchestra.agents if a not in config.agent.agent_ids]
    if missing:
        raise AgentSystemError(
            f"orchestra '{config.agent.orchestra_type}' needs {missing}, which agent.agent_ids={config.agent.agent_ids} lacks"
        )
    env = EnvRegistry.get(config.env.env_name)
    if config.rollout.sampling == "tree":
        check_tree_env(env)
    unknown = [k for k in config.agent.orchestra if k != config.agent.orchestra_type]
    if unknown:
        raise AgentSystemError(
            f"agent.orchestra.{unknown[0]} has no effect: agent.orchestra_type is '{config.agent.orchestra_type}', "
            f"whose options are agent.orchestra.{config.agent.orchestra_type}.<option>"
        )


def start_sandbox(config: RunConfig) -> None:
    """Start the sandbox of a run whose environment runs programs or whose agents write some, and say how well it holds them.

    Raises AgentSystemError when it holds them less well than `sandbox.min_level`, and for keys under `sandbox` that nothing would read.
    """
    sandbox, team = config.sandbox, config.agent.orchestra_type
    orchestra = OrchestraRegistry.get(team).from_options(config.agent.orchestra.get(team), team)
    if EnvRegistry.get(config.env.env_name).uses_sandbox or orchestra.uses_sandbox:
        limits = Limits(**vars(sandbox.limits))
        configure(SandboxSettings(**vars(sandbox) | {"limits": limits, "packages": tuple(sandbox.packages)}))
    elif sandbox != SandboxConfig():
        changed = [f"sandbox.{name}" for name, value in vars(sandbox).items() if value != getattr(SandboxConfig(), name)]
        raise AgentSystemError(
            f"{', '.join(changed)} has no effect: env.env_name={config.env.env_name} runs no programs, and with the options of "
            f"agent.orchestra.{team} the agents write none"
        )


def sampling_of(rollout: RolloutConfig, config: RunConfig, stop_token_ids: Sequence[int], validate: bool) -> SamplingParams:
    """How an agent with these keys samples in training or validation."""
    source = rollout.val_kwargs if validate else rollout
    greedy = validate and not rollout.val_kwargs.do_sample
    return SamplingParams(
        max_tokens=source.response_length or rollout.response_length or config.data.max_response_length,
        temperature=0.0 if greedy else source.temperature,
        top_p=source.top_p,
        top_k=source.top_k,
        stop_token_ids=tuple(stop_token_ids),
        stop=tuple(rollout.stop if source.stop is None else source.stop),
    )


def reward_settings(config: RunConfig, placement: Placement) -> RewardSettings:
    """The keys under `reward` and the penalty of each agent, for the agent side."""
    reward = config.reward
    low, high = reward.propagation.local_range
    fixed = {name: value for name, value in vars(reward.propagation).items() if name not in ("theta_step", "theta_fall", "theta_window")}
    return RewardSettings(
        alpha=reward.alpha,
        team_scope=reward.team_scope,
        shaping=reward.shaping,
        shaping_gamma=reward.shaping_gamma,
        shaping_threshold=reward.shaping_threshold,
        propagation=PropagationSettings(**fixed | {"local_range": (low, high)}),
        overlong_buffer=OverlongBuffer(**vars(reward.overlong_buffer)),
        invalid_action_penalty={
            a.agent_id: a.config.actor.invalid_action_penalty_coef for a in placement.trained if a.config.actor.use_invalid_action_penalty
        },
    )


def remote_bindings(config: RunConfig, placement: Placement) -> dict[str, RemoteBinding]:
    """Bind every agent behind an API to its server. Raises ConfigError when the environment lacks a key."""
    if not placement.api:
        return {}
    from agent_system.rollout.endpoint import Endpoint, EndpointSettings

    bindings = {}
    for row in placement.api:
        said = {name: value for name, value in vars(row.api).items() if name != "api_key_env"}
        settings = EndpointSettings(row.agent_id, api_key=api_key(row.agent_id, row.api), **said)
        train, val = (sampling_of(row.config.rollout, config, (), validate) for validate in (False, True))
        bindings[row.agent_id] = RemoteBinding(row.agent_id, row.policy_id, Endpoint(settings), train, val)
    return bindings


def check_endpoints(bindings: Collection[RemoteBinding]) -> None:
    """Ask every server for one reply. Raises ConfigError for one that gives none."""
    if not bindings:
        return

    async def check_all() -> None:
        for binding in bindings:
            await binding.endpoint.check()

    try:
        asyncio.run(check_all())
    except RolloutError as error:
        raise ConfigError(f"{error}; start the server, or correct agent.api") from error


def build_collector(config: RunConfig, placement: Placement, tokenizers: Mapping[str, Any], clients: Mapping[str, Any]) -> TaskCollector:
    """Bind every agent to the client of the policy that it speaks with, or to its server, and seat the team."""
    found: dict[str, AgentBinding | RemoteBinding] = dict(remote_bindings(config, placement))
    for agent_id, row in speakers(config, placement).items():
        tokenizer = tokenizers[row.wg_id]
        stop = stop_token_ids(str(row.config.model.path), tokenizer)
        found[agent_id] = AgentBinding(
            agent_id=agent_id,
            policy_id=row.policy_id,
            wg_id=row.wg_id,
            client=clients[row.wg_id],
            adapter=row.adapter,
            tokenizer=tokenizer,
            sampling=sampling_of(row.config.rollout, config, stop, validate=False),
            val_sampling=sampling_of(row.config.rollout, config, stop, validate=True),
            max_prompt_length=row.config.rollout.prompt_length or config.data.max_prompt_length,
            template_kwargs=config.data.apply_chat_template_kwargs,
            trained=not row.frozen,
        )
    bindings = {agent_id: found[agent_id] for agent_id in config.agent.agent_ids}
    joint = config.critic.view == "joint" and bool(critic_agents(config, placement))
    tree = TreeSettings(**vars(config.rollout.tree) | {"k_per_agent": candidates_of(config)})
    settings = CollectorSettings(
        seed=config.data.seed,
        reward=reward_settings(config, placement),
        max_steps=config.env.max_steps,
        history_length=config.env.history_length,
        max_concurrent_episodes=config.rollout.max_concurrent_episodes,
        max_failure_rate=config.rollout.max_failure_rate,
        episode_timeout_s=config.rollout.episode_timeout_s,
        call_timeout_s=config.rollout.call_timeout_s,
        tree=tree if config.rollout.sampling == "tree" else None,
        env_threads=config.rollout.env_threads,
        joint_prompt_length=config.critic.joint_prompt_length if joint else 0,
    )
    return TaskCollector(
        Collector.from_names(
            orchestra_type=config.agent.orchestra_type,
            env_name=config.env.env_name,
            bindings=bindings,
            settings=settings,
            orchestra_options=config.agent.orchestra.get(config.agent.orchestra_type),
            env_params=config.env.params,
        )
    )


def build_datasets(
    config: RunConfig, tokenizer: Any, measures: Sequence[PromptMeasure] = ()
) -> tuple[RLHFDataset | None, RLHFDataset | None]:
    """Training and validation tasks that fit; none to train on with `trainer.val_only`."""
    data = config.data
    judged = EnvRegistry.get(config.env.env_name).needs_ground_truth
    train = None if config.trainer.val_only else RLHFDataset(data.train_files, tokenizer, data, data.train_max_samples, measures, judged)
    val = RLHFDataset(data.val_files, tokenizer, data, data.val_max_samples, measures, judged) if data.val_files else None
    if val is None and config.trainer.val_only:
        raise DatasetError("trainer.val_only=true needs data.val_files")
    return train, val


@dataclass(frozen=True)
class CheckedRun:
    """What a config stands for once nothing is wrong with it; `run_dir` is where it writes, `name` what it is called in trackers.

    `adapter_sizes` are the parameters of every adapter, by policy.
    """

    placement: Placement
    adapter_sizes: Mapping[str, int]
    tokenizers: Mapping[str, Any]
    train: RLHFDataset | None
    val: RLHFDataset | None
    run_dir: Path
    name: str


def check_run(config: RunConfig) -> CheckedRun:
    """Find all that is wrong with a config before Ray starts and before a model loads; raises one of `USER_ERRORS`."""
    if config.algorithm.preset is not None:
        logger.info(describe_preset(config))
    resolve_defaults(config)
    check_team(config)
    placement = check_settings(config)
    start_sandbox(config)
    try:
        check_backends(config.trainer.logger)
    except (ValueError, ModuleNotFoundError) as error:
        raise ConfigError(str(error)) from error
    check_vllm(placement, resolve_device(config.trainer.device), partial(max_model_len, config, placement))
    trained_in = run_dir_of(config)
    checkpoint = find_checkpoint(config.trainer, CheckpointStore(trained_in / "checkpoints"))
    if checkpoint is not None:
        critics = None if config.trainer.val_only else critic_signature(config, placement)
        bases = fingerprints(stay_as_given(placement, None if config.trainer.val_only else config))
        read_state(checkpoint, placement, critics, bases)
        check_saved_models(checkpoint, config, placement)
    run_dir = set_apart(config, placement, trained_in, checkpoint)
    tokenizers = {g.wg_id: load_group_tokenizer(g) for g in placement.groups}
    sizes = adapter_sizes(placement)
    check_critic(config, placement, tokenizers)
    collector = build_collector(config, placement, tokenizers, dict.fromkeys(tokenizers))
    train, val = build_datasets(config, next(iter(tokenizers.values()), None), collector.measures())
    if train is not None:
        loader = TaskLoader(train, config.data.train_batch_size, seed=config.data.seed, shuffle=config.data.shuffle)
        warn_of_warmup(config.trainer, steps_of_run(config.trainer, len(loader)))
        if checkpoint is not None:
            loader.load_state_dict(torch.load(checkpoint / "data.pt", weights_only=True))
    check_endpoints(remote_bindings(config, placement).values())
    name = config.trainer.experiment_name if run_dir == trained_in else f"{config.trainer.experiment_name}/{run_dir.name}"
    return CheckedRun(placement, sizes, tokenizers, train, val, run_dir, name)


def run(config: RunConfig) -> RayPPOTrainer:
    """Check everything, train, print the table before/after; returns the trainer."""
    from verl.utils.console import print_before_after

    checked = check_run(config)
    placement, run_dir = checked.placement, checked.run_dir
    config_file = run_dir / ("config_eval.yaml" if config.trainer.val_only else CONFIG_FILE)
    with writing(config_file):
        run_dir.mkdir(parents=True, exist_ok=True)
        save_config(config, config_file)
    for agent_id, row in speakers(config, placement).items():
        logger.info(table_row(agent_id, row, checked.adapter_sizes))
    for remote in placement.api:
        logger.info("agent %s -> %s at %s (not trained)", remote.agent_id, remote.policy_id, remote.api.base_url)
    for wg_id, devices in assign_devices(config.trainer, placement).items():
        logger.info("worker group %s -> %s", wg_id, devices)
    logger.info("everything is written to %s", run_dir)
    with ExitStack() as started:
        started.callback(close_shared)
        controller = build_controller(config)
        started.callback(controller.shutdown)
        started.enter_context(stopping_at_once())
        team = TeamWorkers(config, placement, controller, run_dir / "logs")
        started.callback(team.shutdown)
        team.start()
        collector = build_collector(config, placement, checked.tokenizers, team.clients)
        tracking = Tracking(config.trainer.project_name, checked.name, config.trainer.logger, asdict(config), run_dir)
        started.callback(finish, tracking, run_dir)
        trainer = RayPPOTrainer(config, placement, team, collector, checked.train, checked.val, tracking, run_dir)
        trainer.fit()
    print_before_after(rows_before_after(trainer.before, trainer.after))
    return trainer


def finish(tracking: Tracking, run_dir: Path) -> None:
    """Close the backends of a run. Raises DiskError when what they still held cannot be written."""
    with writing(run_dir / METRICS_FILE):
        tracking.finish()


def entry(task: Callable[[RunConfig], RayPPOTrainer]) -> Callable[[DictConfig], None]:
    """Wrap `task` so that a mistake of the user is one line on stderr and exit status 1, and a signal's stop 128 + its number."""

    def wrapped(cfg: DictConfig) -> None:
        try:
            config = OmegaConf.to_object(cfg)
            assert isinstance(config, RunConfig)
            stopped_by = task(config).stopped_by
        except OmegaConfBaseException as error:
            fail(explain(error, sys.argv[1:]), 1)
        except USER_ERRORS as error:
            fail(str(error), 1)
        except StoppedAtOnce as stop:
            fail(f"stopped at once: {stop}; the last checkpoint is what it was", 128 + stop.number)
        if stopped_by is not None:
            sys.exit(128 + stopped_by)

    return wrapped


@hydra.main(version_base=None, config_name=register_config())
def main(cfg: DictConfig) -> None:
    """Hydra's entry."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    entry(run)(cfg)


def cli() -> None:
    """The command line: `main`, with Hydra's complaints about keys and values in one line as well."""
    os.environ["HYDRA_FULL_ERROR"] = "1"
    given = sys.argv[1:]
    with mistakes_in_one_line(given):
        sys.argv[1:] = prepared(given)
        main()


if __name__ == "__main__":
    cli()
