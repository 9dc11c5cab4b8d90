"""Whether the keys of a command line exist, and their values have the right types: `python -m verl.trainer.config.check_keys key=value ...`

It composes the configuration as `verl.trainer.main_ppo` does and says what is wrong in the same line, in a second: nothing heavy is
imported. Scripts ask it before they make what a run needs.
"""

from __future__ import annotations

import sys

from verl.trainer.config.entry import compose_config, mistakes_in_one_line


def cli() -> None:
    """The command line; options such as `--cfg` are left to the run."""
    from hydra._internal.utils import get_args_parser

    given = get_args_parser().parse_args(sys.argv[1:]).overrides
    with mistakes_in_one_line(given):
        compose_config(given)


if __name__ == "__main__":
    cli()
