"""Measure which replies of a trained team mattered, by playing its decisions again:

    verl-mas audit outputs/verl-mas/math_seed0
    verl-mas audit outputs/verl-mas/math_seed0 --step 20 --decisions 200

RUN is the folder of a run, or one of its `global_step_N`. See `docs/audit.md` and
`agent_system.launch.audit`.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence

from agent_system.launch.audit import audit
from agent_system.launch.checks import USER_ERRORS
from agent_system.replay.arms import AuditSize
from verl.trainer.config.command import fail, log_to_terminal


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error of the user is one line on stderr and exit status 1."""
    options = _parsed(arguments)
    log_to_terminal()
    # episodes that are not restored are counted, and estimators that the run does not use train nothing
    for quiet in ("agent_system.rollout.player", "verl.trainer.ppo.core_algos"):
        logging.getLogger(quiet).setLevel(logging.ERROR)
    size = AuditSize(options.decisions, options.alternatives, options.continuations, options.seed)
    try:
        audit(options.run, options.step, size, options.device)
    except USER_ERRORS as error:
        fail(str(error), 1)
    except KeyboardInterrupt:
        sys.exit(130)


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"expected {least} or more, found {value}")
        return value

    return number


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    sizes = AuditSize()
    parser = argparse.ArgumentParser(
        prog="verl-mas audit",
        epilog="See docs/audit.md.",
        description="Measure which replies of a trained team mattered.",
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run, or global_step_N")
    parser.add_argument(
        "--step", type=_at_least(0), help="number of the checkpoint global_step_N; default: the newest"
    )
    parser.add_argument(
        "--decisions", type=_at_least(1), default=sizes.decisions,
        help="replies that are tried, spread over agents and turns; default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--alternatives", type=_at_least(2), default=sizes.alternatives,
        help="other replies for each; default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--continuations", type=_at_least(2), default=sizes.continuations,
        help="times that an episode goes on with a reply; default: %(default)s",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=sizes.seed, help="default: %(default)s")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
