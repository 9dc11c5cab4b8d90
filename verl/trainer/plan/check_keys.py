"""Check keys and types of values of a command line:
`python -m verl.trainer.plan.check_keys key=value ...`

Composes the configuration as `verl.trainer.main_ppo` does and prints the same one-line error,
within a second: torch is not imported. Scripts call it before they prepare data and models.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from verl.trainer.config import RunConfig
from verl.trainer.plan.command_line import compose_config, report_config_errors

T = TypeVar("T")


def check_command_line(arguments: Sequence[str], check: Callable[[RunConfig], T]) -> T:
    """Return what `check` makes of the configuration of a command line.

    Ends the process with a one-line error if keys or values are invalid, or `check` raises
    ConfigError.
    """
    with report_config_errors(arguments):
        return check(compose_config(arguments))


def cli() -> None:
    """Check the overrides of `sys.argv`; options such as `--cfg` are left to the run."""
    from hydra._internal.utils import get_args_parser

    overrides = get_args_parser().parse_args(sys.argv[1:]).overrides
    with report_config_errors(overrides):
        compose_config(overrides)


if __name__ == "__main__":
    cli()
