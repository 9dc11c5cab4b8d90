"""Checks of a run before a model is read. They start and write nothing, and torch is imported only
where a key or a user's code asks for it.
"""

from __future__ import annotations

import logging
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.options import build_options
from agent_system.orchestra import check_members
from agent_system.registry import AgentRegistry, EnvRegistry, OrchestraRegistry, load_plugins, make_team
from verl.trainer.config import AgentConfig, EnvConfig, GatewayConfig, RunConfig, SandboxConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.checks import resolve
from verl.trainer.plan.derived_values import resolve_defaults
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.controller import check_local, resolve_device
from verl.utils.tracking import check_backends

logger = logging.getLogger(__name__)


def check_before_models(config: RunConfig) -> tuple[RunPlan, bool]:
    """Return the plan of a configuration, and whether the run needs a sandbox, checked as far as
    can be without a model: `verl-mas check` is this alone, and a run does it first.

    Raises AgentSystemError, ConfigError, ControllerError or DatasetError for an error in it.
    """
    if config.algorithm.preset is not None:
        from verl.trainer.plan.presets import describe_preset  # of this key alone

        logger.info(describe_preset(config))
    resolve_defaults(config)
    check_team(config)
    plan = resolve(config)
    env = EnvRegistry.get(config.env.env_name)
    if plan.tree:
        from agent_system.rollout.tree_call import check_tree_env  # of tree sampling alone

        check_tree_env(env, config.reward)
    if config.env.workers.num:
        from agent_system.launch.env_workers import check_cpus  # of this key alone

        check_cpus(config.env.workers, config.trainer, config.rollout, config.ray_init, plan)
        if env.overrides("check_workers"):
            env(build_options(env.config_class, config.env.params, "env.params")).check_workers()
    runs_programs = needs_sandbox(config.agent, config.env, config.gateway, config.sandbox)
    _check_members(config.agent, config.env, config.gateway, plan)
    try:
        check_backends(config.trainer.logger)
    except (ValueError, ModuleNotFoundError) as error:
        raise ConfigError(str(error)) from error
    if config.trainer.controller == "local":
        check_local(config.trainer, config.rollout)
    if config.trainer.device == "cuda":  # any other value is right, and asking for a GPU needs torch
        resolve_device(config.trainer.device)
    from verl.utils.data_check import check_data  # last, once all keys are right

    check_data(config.data, config.trainer.val_only)
    return plan, runs_programs


def check_team(config: RunConfig) -> None:
    """Look up every name of the team; add the modules of installed entry points to `agent.plugins`,
    for the workers.

    Raises AgentSystemError listing the registered names.
    """
    config.agent.plugins = load_plugins(config.agent.plugins)
    orchestra = OrchestraRegistry.get(config.agent.orchestra_type, env=config.env.env_name)
    for agent_id in (*config.agent.agent_ids, *orchestra.agents):
        AgentRegistry.get(agent_id, orchestra=config.agent.orchestra_type, env=config.env.env_name)
    missing = [a for a in orchestra.agents if a not in config.agent.agent_ids]
    if missing:
        raise AgentSystemError(
            f"orchestra '{config.agent.orchestra_type}' needs {missing}, which "
            f"agent.agent_ids={config.agent.agent_ids} lacks"
        )
    unknown = [k for k in config.agent.orchestra if k != config.agent.orchestra_type]
    if unknown:
        raise AgentSystemError(
            f"agent.orchestra.{unknown[0]} has no effect: agent.orchestra_type is "
            f"'{config.agent.orchestra_type}', whose options are "
            f"agent.orchestra.{config.agent.orchestra_type}.<option>"
        )


def orchestra_options(agent: AgentConfig, gateway: GatewayConfig) -> dict[str, Any]:
    """Return the options of the orchestra; those of a gateway are the team and the keys under
    `gateway`.

    Raises AgentSystemError for others of a gateway.
    """
    options = dict(agent.orchestra.get(agent.orchestra_type) or {})
    if agent.orchestra_type != "gateway":
        return options
    if options:
        raise AgentSystemError(
            f"agent.orchestra.gateway.{next(iter(options))} has no effect; the team is "
            "agent.team, and its options are the keys under gateway"
        )
    return {"team": agent.team, "keys": gateway}


def needs_sandbox(agent: AgentConfig, env: EnvConfig, gateway: GatewayConfig, sandbox: SandboxConfig) -> bool:
    """Return whether the environment runs programs or the agents write some.

    Raises AgentSystemError for keys under `sandbox` that have no effect, and for wrong options of
    the environment or the orchestra.
    """
    team = agent.orchestra_type
    orchestra = OrchestraRegistry.get(team, env=env.env_name).from_options(
        orchestra_options(agent, gateway), team
    )
    classes = [AgentRegistry.get(name, orchestra=team, env=env.env_name) for name in agent.agent_ids]
    cls = EnvRegistry.get(env.env_name)
    environment = cls(build_options(cls.config_class, env.params, "env.params"))
    if environment.uses_sandbox or orchestra.uses_sandbox:
        return True
    if with_tools := [member for member in classes if member.calls_tools]:
        from agent_system.tools import runs_programs  # tools, which most teams do not have

        if any(map(runs_programs, with_tools)):
            return True
    default = SandboxConfig()
    changed = [f"sandbox.{n}" for n, value in vars(sandbox).items() if value != getattr(default, n)]
    if changed:
        raise AgentSystemError(
            f"{', '.join(changed)} has no effect: env.env_name={env.env_name} runs no "
            f"programs, and with the options of agent.orchestra.{team} the agents write none"
        )
    return False


def _check_members(agent: AgentConfig, env: EnvConfig, gateway: GatewayConfig, plan: RunPlan) -> None:
    """Make the agents of the team. Raises AgentSystemError if the orchestra refuses them."""
    options = orchestra_options(agent, gateway)
    orchestra, agents = make_team(agent.orchestra_type, env.env_name, agent.agent_ids, options)
    cls = EnvRegistry.get(env.env_name)
    env_options = build_options(cls.config_class, env.params, "env.params")
    rows: dict[str, Any] = {row.agent_id: row for row in plan.api} | dict(plan.speakers)
    temperatures = {
        name: (rows[name].sampling.temperature, rows[name].val_sampling.temperature) for name in agents
    }
    check_members(orchestra, agents, lambda seed: cls(env_options, seed=seed), temperatures, forks=plan.tree)
