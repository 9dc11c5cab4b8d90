"""Train a team: `python -m verl.trainer.main_ppo key=value ...`

verl's entry point; the implementation is `agent_system.launch`.
"""

import sys

from agent_system.registry import load_plugins
from verl.trainer.plan.checks import check_command_line

if __name__ == "__main__":
    check_command_line(sys.argv[1:], load_plugins)  # the next import loads torch

from agent_system.launch.train import cli

if __name__ == "__main__":
    cli()
