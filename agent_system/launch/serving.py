"""A saved team outside of training: engines in this process; agents, orchestra and environment as
in validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from agent_system.conversation import Conversation
from agent_system.environment import BaseEnv
from agent_system.launch.before_models import check_team
from agent_system.launch.checks import start_sandbox
from agent_system.launch.collector import build_collector, check_endpoints
from agent_system.registry import EnvRegistry
from agent_system.rollout.collector import Collector
from agent_system.sandbox import close_shared
from verl.trainer.checkpoint.saved_run import SavedRun
from verl.trainer.config import RunConfig
from verl.trainer.model_checks import check_vllm
from verl.trainer.plan.checks import check_untrained
from verl.trainer.plan.derived_values import load_group_tokenizer, resolve_defaults
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.controller import resolve_device
from verl.trainer.serving import Engines, for_serving, running_engines, serve_weights, serving_plan


@dataclass(frozen=True)
class LoadedTeam:
    """A team with its engines.

    Attributes:
        config: of the run, for serving.
        collector: plays episodes of the team.
        env: class of its environment.
    """

    config: RunConfig
    collector: Collector
    env: type[BaseEnv]


@contextmanager
def loaded_team(
    checkpoint: str,
    device: str,
    engines: Engines,
    check: Callable[[Collector, type[BaseEnv]], object] = lambda collector, env: None,
) -> Iterator[LoadedTeam]:
    """Load the team of a checkpoint; shut its engines down at exit.

    Args:
        checkpoint: `global_step_N`, or the folder of a run.
        device: auto, cpu or cuda.
        engines: how it is served.
        check: called before a model loads.

    Raises one of `USER_ERRORS`: no checkpoint, a workflow that is not installed, a missing model,
    an engine that cannot serve it, or a server of `agent.api` that does not answer; and the errors
    of `check`.
    """
    saved = SavedRun.open(checkpoint)
    config = for_serving(saved.config, device)
    plan = RunPlan.of(config, saved.placement)
    served_plan = serving_plan(plan, engines)
    resolved = resolve_device(device)
    resolve_defaults(config)
    check_team(config)
    check_untrained(config.agent, config.trainer, config.actor_rollout_ref, plan)
    check_vllm(served_plan, resolved)
    tokenizers = {group.wg_id: load_group_tokenizer(group) for group in plan.groups}
    env = EnvRegistry.get(config.env.env_name)
    check(build_collector(config, plan, tokenizers, dict.fromkeys(tokenizers)), env)
    check_endpoints(config.reward, plan)
    with ExitStack() as started:
        start_sandbox(config)
        started.callback(close_shared)
        team = started.enter_context(running_engines(config, plan, engines))
        serve_weights(saved, team)
        clients = team.engines.serving_clients()
        yield LoadedTeam(config, build_collector(config, served_plan, tokenizers, clients), env)


@contextmanager
def conversation(checkpoint: str, *, greedy: bool = False, device: str = "auto") -> Iterator[Conversation]:
    """Load the team of a checkpoint for questions; shut its engines down at exit.

    Raises as `loaded_team` does, and for an environment that takes no questions.
    """
    with loaded_team(checkpoint, device, Engines(), Conversation) as team:
        yield Conversation(team.collector, team.env, greedy)
