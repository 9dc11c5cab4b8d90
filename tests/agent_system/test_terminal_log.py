"""What the command line writes to the terminal."""

import subprocess
import sys

PROGRAM = """
import logging
from verl.trainer.config.command import log_to_terminal
log_to_terminal()
for name in ("agent_system.rollout", "verl.trainer", "recipe.mine", "autogen_core.events", "httpx", "my_team"):
    logging.getLogger(name).info("told")
    logging.getLogger(name).warning("warned")
"""


def test_only_this_projects_own_modules_are_raised_to_info() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )
    told = [line.split()[1].rstrip(":") for line in done.stderr.splitlines() if line.endswith("told")]
    warned = [line for line in done.stderr.splitlines() if line.endswith("warned")]
    assert told == ["agent_system.rollout", "verl.trainer", "recipe.mine"] and len(warned) == 6
