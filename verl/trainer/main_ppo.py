"""Train a team: `python -m verl.trainer.main_ppo key=value ...`

verl's entry point; the implementation is `agent_system.launch`.
"""

import sys

from agent_system.launch.first_checks import first_checks

if __name__ == "__main__":
    first_checks(sys.argv[1:])  # the next import loads torch

from agent_system.launch.train import cli

if __name__ == "__main__":
    cli()
