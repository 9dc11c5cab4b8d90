"""Supervised fine-tuning from the command line.

    verl-mas sft model.path=DIR data.train_files=[demos.jsonl]
    trainer.default_local_dir=OUT optim.lr=1e-5

Keys and defaults: `verl/trainer/sft/config.py`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from verl.trainer.config.spec import ConfigError, keys
from verl.trainer.plan.command_line import check_override, free_form, free_form_sections
from verl.trainer.sft.config import SFTConfig


def load_config(overrides: Sequence[str]) -> SFTConfig:
    """Return the configuration with `overrides` (`key=value`) applied.

    Raises:
        SystemExit: an unknown key or an invalid value, with a message that names it.
    """
    from hydra import compose, initialize
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    ConfigStore.instance().store(name="sft", node=SFTConfig)
    try:
        for override in overrides:
            check_override(override, keys(SFTConfig))
        with initialize(version_base=None, config_path=None):
            config = OmegaConf.to_object(
                compose(
                    config_name="sft", overrides=free_form(overrides, free_form_sections(keys(SFTConfig)))
                )
            )
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        raise SystemExit(f"sft_trainer: {error} (all keys: verl/trainer/sft/config.py)") from error
    assert isinstance(config, SFTConfig)
    return config


def main(overrides: Sequence[str] | None = None) -> None:
    """Run the command line; end with a one-line error for a wrong key, a missing file or an empty
    data set.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    config = load_config(sys.argv[1:] if overrides is None else overrides)
    from verl.trainer.sft.loop import run_sft
    from verl.utils.host_memory import kills_are_told

    try:
        with kills_are_told("lower data.train_batch_size or data.max_length, or free memory"):
            run_sft(config)
    except (ValueError, FileNotFoundError, FileExistsError) as error:
        raise SystemExit(f"sft_trainer: {error}") from error


if __name__ == "__main__":
    main()
