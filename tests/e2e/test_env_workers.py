"""Runs whose environments are in worker processes: the numbers of the run without them."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.conftest import Run, read_metrics
from tests.house.source import ROOT

TREE = {
    "env.env_name": "my_forkable_world",
    "rollout.sampling": "tree",
    "rollout.tree.k": 2,
    "algorithm.group_by": "[uid,agent_id]",
    "reward.team_scope": "call",
}


def scores(folder: Path) -> list[dict[str, Any]]:
    """Metrics of every step that do not measure time or memory."""
    kept = ("episode/", "env/", "agent/", "critic/", "actor/")
    return [
        {name: value for name, value in step.items() if name.startswith(kept)}
        for step in read_metrics(folder)
    ]


def test_a_run_of_the_command_line_has_the_numbers_of_a_run_in_the_driver(
    train: Run, overrides: Callable[..., list[str]], tmp_path: Path, forked_python: str, user_package: Path
) -> None:
    keys = {"env.workers.num": 2, "env.workers.memory_gib": 4, "trainer.default_local_dir": tmp_path / "away"}
    command = [forked_python, "-m", "verl.trainer.main_ppo", *overrides(TREE | keys)]
    path = {"PYTHONPATH": os.pathsep.join([str(user_package), str(ROOT)])}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    train(TREE | {"trainer.default_local_dir": tmp_path / "home"})
    assert scores(tmp_path / "away") == scores(tmp_path / "home")
