"""Whether the keys of a command line exist, and their values have the right types: `python -m verl.trainer.config.check_keys key=value ...`

It composes the configuration as `verl.trainer.main_ppo` does and says what is wrong in the same line, in a second: nothing heavy is
imported. Scripts ask it before they make what a run needs.
"""

from __future__ import annotations

import os

from hydra import compose, initialize
from hydra._internal.utils import get_args_parser
from omegaconf import OmegaConf

from verl.trainer.config.entry import free_form_overrides, mistakes_in_one_line, register_config
from verl.trainer.config.presets import expand_presets


def cli() -> None:
    """The command line; options such as `--cfg` are left to the run."""
    os.environ["HYDRA_FULL_ERROR"] = "1"
    given = get_args_parser().parse_args().overrides
    with mistakes_in_one_line(given), initialize(version_base=None, config_path=None):
        OmegaConf.to_object(compose(register_config(), overrides=free_form_overrides(expand_presets(given))))


if __name__ == "__main__":
    cli()
