"""The math_tool recipe runs, made small, and its README says what its committed rows say."""

import json
import os
import subprocess
from pathlib import Path

from recipe.math_tool.measure import METRICS

SMALL = ["trainer.total_training_steps=1", "data.train_batch_size=2", "env.rollout.n=2", "data.val_max_samples=4", "env.max_steps=1"]


def test_the_script_measures_a_seed_and_keeps_the_others(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps([{"seed": 9, "before": 0.3, "after": 0.9}]))
    env = os.environ | {"DEMOS": "96", "EMBEDDED_DIR": str(tmp_path / "embedded")}
    command = [checkout / ".venv/bin/python", "recipe/math_tool/measure.py", "--seeds", "7", "--out", str(tmp_path), *SMALL]
    subprocess.run(command, cwd=checkout, env=env, check=True, timeout=400)
    row, kept = json.loads((tmp_path / "results.json").read_text())
    assert kept == {"seed": 9, "before": 0.3, "after": 0.9}
    assert (row["seed"], row["steps"]) == (7, 1)
    assert row["train_seconds"] > 0
    assert row["generated_tokens"] > 0
    assert all(0 <= row[f"{name}_{when}"] <= 1 for name in ("tool_accuracy", "reasoner_accuracy") for when in ("before", "after"))
    assert all(row[f"{name}_{when}"] is not None for name in METRICS for when in ("before", "after"))
