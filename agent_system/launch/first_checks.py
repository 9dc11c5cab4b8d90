"""The checks of a command line before models: those of `check_before_models`, in a second or two."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from agent_system.errors import AgentSystemError
from agent_system.launch.before_models import check_before_models
from verl.trainer.config import RewardConfig, RunConfig, TrainerConfig
from verl.trainer.config.command import fail, log_to_terminal
from verl.trainer.plan.check_keys import check_command_line
from verl.trainer.plan.command_line import prepare, report_config_errors
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.controller import ControllerError
from verl.utils.data_file import DatasetError

USAGE = """usage: verl-mas check key=value ...

Make the checks that a training with the same keys makes before it reads a model: keys, values, keys
without an effect, names, options and files of the team, trackers, devices and data files. Starts
nothing and writes nothing. Exit status 0: they are right; 1: one error on stderr.
"""


def first_checks(arguments: Sequence[str]) -> bool:
    """End the process with a one-line error if a command line is invalid; else return whether it was
    checked. The run checks it again.

    Left to the run are warnings, models, the content of data files, and command lines with options
    of Hydra (`--cfg`).
    """
    if any(word.startswith("-") for word in arguments):
        return False
    logging.disable()
    try:
        _check(arguments)
    finally:
        logging.disable(logging.NOTSET)
    return True


def _check(arguments: Sequence[str]) -> tuple[RunConfig, RunPlan, bool]:
    """Return the configuration with what `check_before_models` returns; end the process as `first_checks`."""
    try:
        return check_command_line(arguments, lambda config: (config, *check_before_models(config)))
    except (AgentSystemError, ControllerError, DatasetError) as error:
        fail(str(error), 1)


def _not_checked(trainer: TrainerConfig, reward: RewardConfig, plan: RunPlan, sandbox: bool) -> list[str]:
    """Return what only a run can find out."""
    parts = ["models and whether they fit the memory", "the length of prompts"]
    if sandbox:
        parts.append("the sandbox of this machine")
    if "wandb" in trainer.logger:
        parts.append("the login at wandb")
    if trainer.controller == "ray":
        parts.append("the devices and CPUs of Ray's nodes")
    if plan.api or reward.model.kind == "api":
        parts.append("servers behind APIs")
    if reward.custom_reward_function.path is not None:
        parts.append("the reward function")
    return parts


def main() -> None:
    """Check the arguments of the process: `verl-mas check`."""
    arguments = sys.argv[1:]
    if {"-h", "--help"} & {*arguments}:
        sys.stdout.write(USAGE)
        return
    if options := [word for word in arguments if word.startswith("-")]:
        fail(
            f"not checked: {options[0]} is an option of Hydra, not a key; verl-mas check reads "
            "key=value ... alone: leave it out",
            1,
        )
    log_to_terminal()
    with report_config_errors(arguments):
        if warning := prepare(arguments).warning():
            logging.getLogger(__name__).warning(warning)
    config, plan, runs_programs = _check(arguments)
    unchecked = _not_checked(config.trainer, config.reward, plan, runs_programs)
    sys.stdout.write(
        f"keys, values, names, the team and data files are right; not checked: {', '.join(unchecked)}\n"
    )


if __name__ == "__main__":
    main()
