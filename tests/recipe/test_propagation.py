"""The recipe of credit along a chain runs, made small."""

import json
import os
import subprocess
from pathlib import Path

SMALL = ["trainer.total_training_steps=1", "data.train_batch_size=2", "env.rollout.n=2", "data.val_max_samples=8"]


def test_the_script_trains_a_mode_and_draws_it(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps([{"mode": "discounted", "seed": 7, "before": 0.3}]))
    env = os.environ | {"DEMOS": "96"}
    command = [
        checkout / ".venv/bin/python",
        "recipe/propagation/measure.py",
        "--seeds",
        "7",
        "--modes",
        "threshold",
        "--out",
        str(tmp_path),
    ]
    subprocess.run([*command, *SMALL], cwd=checkout, env=env, check=True, timeout=280)
    kept, row = json.loads((tmp_path / "results.json").read_text())
    assert kept == {"mode": "discounted", "seed": 7, "before": 0.3}
    assert (row["mode"], row["seed"], row["steps"]) == ("threshold", 7, 1)
    assert all(0 <= row[name] <= 1 for name in ("pass_rate", "before", "after", "solver_after", "verifier_after"))
    assert list(json.loads((tmp_path / "curves.json").read_text())) == ["threshold/7"]
    assert "<svg" in (tmp_path / "curves.svg").read_text()
