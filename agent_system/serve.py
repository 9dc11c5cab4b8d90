"""Ask a trained team questions on the terminal:

    python -m agent_system.serve CHECKPOINT "What is 3 + 4?"

Without QUESTION, questions are read from standard input or prompted for. See `agent_system.launch.serving`.
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
from agent_system.launch.serving import conversation
from verl.trainer.config.entry import fail


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit with 1 and a one-line error if the team cannot be loaded, and with 1 if the last episode failed."""
    parser = argparse.ArgumentParser(prog="python -m agent_system.serve", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="global_step_N, or the folder of a run")
    parser.add_argument("question", nargs="?", help="default: read from standard input, or prompted for on a terminal")
    parser.add_argument("--greedy", action="store_true", help="decode greedily instead of sampling as in validation")
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
