"""A trained team answers questions on the terminal:

    python -m agent_system.serve CHECKPOINT "What is 3 + 4?"

Without a question it is read from a pipe, or asked for. One of the two entry points that know both halves of the house: agents,
orchestra and environment play as in a validation, against engines that hold the checkpoint's weights, in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from rich.console import Console

from agent_system.conversation import Conversation, questions, show
from agent_system.registry import EnvRegistry
from agent_system.sandbox import close_shared
from verl.trainer.checkpoint.saved_run import SavedRun
from verl.trainer.config.cross_checks import check_untrained
from verl.trainer.main_ppo import (
    USER_ERRORS,
    build_collector,
    check_endpoints,
    check_team,
    fail,
    remote_bindings,
    start_sandbox,
)
from verl.trainer.ppo.controller import build_controller, resolve_device
from verl.trainer.run_parts import load_group_tokenizer, resolve_defaults
from verl.trainer.serving import for_serving, serve_weights, serving_team


@contextmanager
def conversation(checkpoint: str, *, greedy: bool = False, device: str = "auto") -> Iterator[Conversation]:
    """Load the team of a checkpoint and take its engines down again.

    Raises one of `USER_ERRORS`: no checkpoint, a workflow that is not installed, an environment that takes no questions, a model that is
    not there, or a server of `agent.api` that does not answer.
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
    check_endpoints(remote_bindings(config, placement).values())
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
        yield Conversation(build_collector(config, placement, tokenizers, team.clients).collector, env, greedy)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; exit status 1 and one line when the team cannot be loaded, and 1 when the last question has no answer."""
    parser = argparse.ArgumentParser(prog="python -m agent_system.serve", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="global_step_N, or the folder of a run")
    parser.add_argument("question", nargs="?", help="read from standard input, or asked for, when it is left out")
    parser.add_argument("--greedy", action="store_true", help="always take the likeliest token instead of sampling as in validation")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    console, answered = Console(), True
    read_all = None if sys.stdin.isatty() else sys.stdin.read
    try:
        with conversation(given.checkpoint, greedy=given.greedy, device=given.device) as team, asyncio.Runner() as runner:
            for question in questions(given.question, console, read_all):
                record = runner.run(team.ask(question))
                show(record, console)
                answered = record.failure is None
    except USER_ERRORS as error:
        fail(str(error), 1)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0 if answered else 1)


if __name__ == "__main__":
    main()
