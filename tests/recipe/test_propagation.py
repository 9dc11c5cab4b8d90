"""The recipe of credit along a chain runs, made small."""

import json
import os
import subprocess
from pathlib import Path

from tests.house.source import ROOT

SMALL = [
    "trainer.total_training_steps=1",
    "data.train_batch_size=2",
    "data.max_response_length=16",
    "data.val_max_samples=8",
    "env.rollout.n=2",
    "env.rollout.val_n=1",
]


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
    ]
    subprocess.run([*command, "--out", str(tmp_path), *SMALL], cwd=checkout, env=env, check=True, timeout=280)
    kept, row = json.loads((tmp_path / "results.json").read_text())
    assert kept == {"mode": "discounted", "seed": 7, "before": 0.3}
    assert (row["mode"], row["seed"], row["steps"]) == ("threshold", 7, 1)
    assert all(
        0 <= row[name] <= 1 for name in ("pass_rate", "before", "after", "solver_after", "verifier_after")
    )
    assert list(json.loads((tmp_path / "curves.json").read_text())) == ["threshold/7"]
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_the_table_of_the_readme_is_that_of_the_committed_rows() -> None:
    folder = ROOT / "recipe" / "propagation"
    rows, readme = (
        json.loads((folder / "results.json").read_text()),
        (folder / "README.md").read_text(encoding="utf-8"),
    )
    assert [(row["mode"], row["seed"]) for row in rows] == [
        (m, s) for m in ("discounted", "threshold", "uniform") for s in (0, 1, 2)
    ]
    for row in rows:
        shares = [
            f"{100 * row[f'{a}before']:.1f} → **{100 * row[f'{a}after']:.1f}**"
            for a in ("", "solver_", "verifier_")
        ]
        passed = "" if row["pass_rate"] is None else f"{100 * row['pass_rate']:.0f}"
        assert f"| `{row['mode']}` | {row['seed']} | {' | '.join(shares)} | {passed} |" in readme
    curves = json.loads((folder / "curves.json").read_text())
    assert {run: [points[0][1], points[-1][1]] for run, points in curves.items()} == {
        f"{row['mode']}/{row['seed']}": [row["before"], row["after"]] for row in rows
    }
