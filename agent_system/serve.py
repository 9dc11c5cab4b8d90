"""Ask a trained team questions on the terminal, or serve it:

    verl-mas serve CHECKPOINT "What is 3 + 4?"
    verl-mas serve CHECKPOINT --openai

Without QUESTION, questions are read from standard input or prompted for. With --openai, clients of
OpenAI's chat completions and responses get each agent as a model of its name, and the whole team as
a model that has the name of the orchestra. See `agent_system.launch.serving`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence

from rich.console import Console

from agent_system.conversation import questions, show
from agent_system.launch.checks import USER_ERRORS
from agent_system.launch.openai_server import Address, serve_openai
from agent_system.launch.serving import conversation
from verl.trainer.config.command import fail


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit with 1 and a one-line error if the team cannot be loaded, and with
    1 if the last episode failed.
    """
    options = _parsed(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        if options.openai:
            address = Address(options.host, options.port, options.api_key_env)
            serve_openai(
                options.checkpoint,
                address,
                greedy=options.greedy,
                device=options.device,
                engine=options.engine,
                say=_print,
            )
            answered = True
        else:
            answered = _ask(options)
    except USER_ERRORS as error:
        fail(str(error), 1)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0 if answered else 1)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="verl-mas serve",
        epilog="See docs/checkpoints.md.",
        description="Ask a trained team questions, or serve it.",
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="global_step_N, or the folder of a run")
    parser.add_argument(
        "question", nargs="?", help="default: read from standard input, or prompted for on a terminal"
    )
    parser.add_argument(
        "--greedy", action="store_true", help="decode greedily instead of sampling as in validation"
    )
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    server = parser.add_argument_group("server")
    server.add_argument(
        "--openai", action="store_true", help="answer clients of OpenAI's chat completions and responses"
    )
    server.add_argument("--engine", default="", choices=("hf", "vllm"), help="default: that of the training")
    server.add_argument("--host", default=Address.host, help="default: the loopback interface")
    server.add_argument("--port", type=int, default=Address.port, help="default: %(default)s; 0: a free one")
    server.add_argument(
        "--api-key-env",
        default="",
        metavar="NAME",
        help="environment variable with the key that clients must send",
    )
    options = parser.parse_args(arguments)
    address = Address(options.host, options.port, options.api_key_env)
    if options.openai and options.question is not None:
        parser.error("--openai takes no question")
    if not options.openai and (options.engine or address != Address()):
        parser.error("--engine, --host, --port and --api-key-env need --openai")
    return options


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _ask(options: argparse.Namespace) -> bool:
    """Ask the questions; return whether the last one was answered."""
    console = Console()
    answered = True
    read_all = None if sys.stdin.isatty() else sys.stdin.read
    with (
        conversation(options.checkpoint, greedy=options.greedy, device=options.device) as team,
        asyncio.Runner() as runner,
    ):
        for question in questions(options.question, console, read_all):
            record = runner.run(team.ask(question))
            show(record, console)
            answered = record.failure is None
    return answered


if __name__ == "__main__":
    main()
