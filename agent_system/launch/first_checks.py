"""The first checks of a command line: keys, values, names of the team and data files, in a second or
two, before torch is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from agent_system.errors import AgentSystemError
from agent_system.registry import AgentRegistry, EnvRegistry, OrchestraRegistry, load_plugins
from verl.trainer.config import RunConfig
from verl.trainer.config.command import fail
from verl.trainer.plan.checks import check_command_line
from verl.utils.data_file import DatasetError, check_data_file, data_files


def first_checks(arguments: Sequence[str]) -> bool:
    """End the process with a one-line error if a command line is invalid; else return whether it was
    checked. The run checks it again.

    Left to the run are warnings, models, the content of data files, command lines with options of
    Hydra (`--cfg`) and errors of plug-ins.
    """
    config = check_command_line(arguments, load_plugins)
    if config is None:
        return False
    data = config.data
    try:
        check_team(config)
        if config.trainer.val_only and not data.val_files:
            raise DatasetError("trainer.val_only=true needs data.val_files")
        files = [] if config.trainer.val_only else data_files(data.train_files)
        files += data_files(data.val_files) if data.val_files else []
        for file in files:
            check_data_file(file)
    except (AgentSystemError, DatasetError) as error:
        fail(str(error), 1)
    return True


def check_team(config: RunConfig) -> None:
    """Look up every name of the team; add the modules of installed entry points to `agent.plugins`,
    for the workers.

    Raises AgentSystemError listing the registered names.
    """
    config.agent.plugins = load_plugins(config.agent.plugins)
    orchestra = OrchestraRegistry.get(config.agent.orchestra_type, env=config.env.env_name)
    for agent_id in (*config.agent.agent_ids, *orchestra.agents):
        AgentRegistry.get(agent_id, orchestra=config.agent.orchestra_type, env=config.env.env_name)
    missing = [a for a in orchestra.agents if a not in config.agent.agent_ids]
    if missing:
        raise AgentSystemError(
            f"orchestra '{config.agent.orchestra_type}' needs {missing}, which "
            f"agent.agent_ids={config.agent.agent_ids} lacks"
        )
    env = EnvRegistry.get(config.env.env_name)
    if config.rollout.sampling == "tree":
        from agent_system.rollout.tree_call import check_tree_env  # of tree sampling alone

        check_tree_env(env, config.reward)
    unknown = [k for k in config.agent.orchestra if k != config.agent.orchestra_type]
    if unknown:
        raise AgentSystemError(
            f"agent.orchestra.{unknown[0]} has no effect: agent.orchestra_type is "
            f"'{config.agent.orchestra_type}', whose options are "
            f"agent.orchestra.{config.agent.orchestra_type}.<option>"
        )


def main() -> None:
    """Check the arguments of the process: `verl-mas check`."""
    if not first_checks(sys.argv[1:]):
        fail("not checked: options of Hydra, or a module of agent.plugins that cannot be imported", 1)
    sys.stdout.write("keys, values, names and data files are right; the run checks its models\n")


if __name__ == "__main__":
    main()
