"""A saved team that answers questions: engines in this process; agents, orchestra and environment as in validation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from agent_system.conversation import Conversation
from agent_system.launch.checks import check_team, start_sandbox
from agent_system.launch.collector import build_collector, check_endpoints
from agent_system.registry import EnvRegistry
from agent_system.sandbox import close_shared
from verl.trainer.checkpoint.saved_run import SavedRun
from verl.trainer.config.cross_checks import check_untrained
from verl.trainer.derived import load_group_tokenizer, resolve_defaults
from verl.trainer.ppo.controller import build_controller, resolve_device
from verl.trainer.serving import for_serving, serve_weights, serving_team


@contextmanager
def conversation(checkpoint: str, *, greedy: bool = False, device: str = "auto") -> Iterator[Conversation]:
    """Load the team of a checkpoint; shut its engines down at exit.

    Raises one of `USER_ERRORS`: no checkpoint, a workflow that is not installed, an environment that takes no questions, a missing model,
    or a server of `agent.api` that does not answer.
    """
    saved = SavedRun.open(checkpoint)
    config, placement = for_serving(saved.config, device), saved.placement
    resolve_device(device)
    resolve_defaults(config)
    check_team(config)
    check_untrained(config, placement)
    tokenizers = {group.wg_id: load_group_tokenizer(group) for group in placement.groups}
    env = EnvRegistry.get(config.env.env_name)
    Conversation(build_collector(config, placement, tokenizers, dict.fromkeys(tokenizers)).collector, env)
    check_endpoints(config, placement)
    with ExitStack() as started:
        start_sandbox(config)
        started.callback(close_shared)
        controller = build_controller(config)
        started.callback(controller.shutdown)
        team = serving_team(config, placement, controller)
        started.callback(team.shutdown)
        team.start()
        team.init_model(1)
        serve_weights(saved, team)
        yield Conversation(build_collector(config, placement, tokenizers, team.engines.clients).collector, env, greedy)
