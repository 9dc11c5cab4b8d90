"""What a run's keys say of each other, looked at before torch is imported, which takes seconds."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

from verl.trainer.agent_overrides import PlacementError
from verl.trainer.config import RunConfig
from verl.trainer.config.entry import fail, free_form_overrides, mistakes_in_one_line, register_config
from verl.trainer.config.presets import expand_presets
from verl.trainer.config_check import ConfigError, check_config
from verl.trainer.config_effect import check_effect
from verl.trainer.lora_check import check_lora_keys
from verl.trainer.placement import Placement, build_placement
from verl.trainer.ppo.correction_check import check_rollout_correction
from verl.trainer.ppo.pools import assign_devices, check_engine_spans
from verl.trainer.ppo.sampling_check import check_filter_groups
from verl.trainer.ppo.signal_check import check_signal
from verl.trainer.ppo.tree_check import check_sampling
from verl.trainer.role_policies import speakers
from verl.trainer.run_parts import resolve_defaults
from verl.trainer.untrained_check import check_untrained
from verl.workers.weight_transfer import transfer_exists


def check_settings(config: RunConfig) -> Placement:
    """Find names that nothing registers, values that cannot be and keys that contradict each other or have no effect.

    Neither models nor data are looked at. Returns who is trained where.

    Raises:
        ConfigError, PlacementError: the first mistake.
    """
    placement = build_placement(config.agent, config.actor_rollout_ref)
    assign_devices(config.trainer, placement)
    check_untrained(config, placement)
    check_config(config, placement)
    speakers(config, placement)
    check_filter_groups(config)
    check_sampling(config)
    check_rollout_correction(config, placement)
    check_effect(config, placement)
    check_signal(config, placement)
    check_lora_keys(config, placement)
    check_engine_spans(config.trainer, placement)
    for name in {group.config.rollout.weight_transfer for group in placement.groups}:
        if not transfer_exists(name):
            raise ConfigError(
                f"actor_rollout_ref.rollout.weight_transfer={name!r}: expected object_store, shared_memory or module.Class of a "
                "WeightTransfer that can be imported"
            )
    return placement


def check_command_line(given: Sequence[str], load_plugins: Callable[[Sequence[str]], object]) -> None:
    """End the process with one line when the settings of a command line cannot be; else return, and the run looks at them again.

    Nothing is logged, since the run says it; a command line with options of Hydra (`--cfg`) and plug-ins that fail are left to the run.

    Args:
        given: the command line without the program.
        load_plugins: imports the modules of `agent.plugins`, which may register estimators and losses.
    """
    from hydra import compose, initialize
    from omegaconf import OmegaConf

    if any(word.startswith("-") for word in given):
        return
    os.environ["HYDRA_FULL_ERROR"] = "1"
    with mistakes_in_one_line(given), initialize(version_base=None, config_path=None):
        config = OmegaConf.to_object(compose(register_config(), overrides=free_form_overrides(expand_presets(given))))
    assert isinstance(config, RunConfig)
    logging.disable()
    try:
        try:
            load_plugins(config.agent.plugins)
        except Exception:  # the run says what is wrong with them
            return
        resolve_defaults(config)
        check_settings(config)
    except (ConfigError, PlacementError) as error:
        fail(str(error), 1)
    finally:
        logging.disable(logging.NOTSET)
