"""The Dr. MAS recipe runs, made small: both baselines, rows, curves and the plot."""

import json
import subprocess
import sys
from pathlib import Path

from agent_system.environment import Task
from recipe.dr_mas.team import REVISER, MathReviserEnv, ReviserEnvOptions
from tests.house.source import ROOT

SMALL = ["trainer.total_training_steps=2", "data.train_batch_size=4", "env.rollout.n=2", "data.val_max_samples=4", "env.rollout.val_n=1"]


def test_the_script_trains_both_baselines_and_draws_them(tmp_path: Path) -> None:
    command = [sys.executable, "recipe/dr_mas/measure.py", "--seeds", "7", "--demos", "96", "--out", str(tmp_path), *SMALL]
    subprocess.run(command, cwd=ROOT, check=True, timeout=240)
    rows = json.loads((tmp_path / "results.json").read_text())
    assert [(row["seed"], row["baseline"], row["steps"]) for row in rows] == [(7, "global", 2), (7, "agent", 2)]
    assert all(row["grad_norm_max"] >= row["grad_norm_median"] >= 0 and 0 <= row["final"] <= 1 for row in rows)
    curves = json.loads((tmp_path / "curves.json").read_text())
    assert all(len(values) == 2 for run in curves.values() for values in run.values())
    assert "<svg" in (tmp_path / "curves.svg").read_text()


async def test_only_a_right_revision_earns_the_bonus() -> None:
    env = MathReviserEnv(ReviserEnvOptions(bonus=10.0))
    env.reset(Task("t", "6 + 7?", ground_truth="13"))
    assert [(await env.act(agent, answer)).local for agent, answer in ((REVISER, "13"), (REVISER, "12"), ("Solver Agent", "13"))] == [
        10,
        0,
        0,
    ]
