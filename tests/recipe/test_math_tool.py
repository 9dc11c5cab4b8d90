"""The math_tool recipe runs, made small, and its README says what its committed rows say."""

import json
import os
import subprocess
from pathlib import Path

from recipe.math_tool.measure import METRICS
from tests.house.source import ROOT

SMALL = [
    "trainer.total_training_steps=1",
    "data.train_batch_size=2",
    "env.rollout.n=2",
    "data.val_max_samples=4",
    "env.max_steps=1",
]


def test_the_script_measures_a_seed_and_keeps_the_others(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps([{"seed": 9, "before": 0.3, "after": 0.9}]))
    env = os.environ | {"DEMOS": "96", "EMBEDDED_DIR": str(tmp_path / "embedded")}
    command = [
        checkout / ".venv/bin/python",
        "recipe/math_tool/measure.py",
        "--seeds",
        "7",
        "--out",
        str(tmp_path),
        *SMALL,
    ]
    subprocess.run(command, cwd=checkout, env=env, check=True, timeout=400)
    row, kept = json.loads((tmp_path / "results.json").read_text())
    assert kept == {"seed": 9, "before": 0.3, "after": 0.9}
    assert (row["seed"], row["steps"]) == (7, 1)
    assert row["train_seconds"] > 0
    assert row["generated_tokens"] > 0
    assert all(
        0 <= row[f"{name}_{when}"] <= 1
        for name in ("tool_accuracy", "reasoner_accuracy")
        for when in ("before", "after")
    )
    assert all(row[f"{name}_{when}"] is not None for name in METRICS for when in ("before", "after"))


def test_the_table_of_the_readme_is_that_of_the_committed_rows() -> None:
    folder = ROOT / "recipe" / "math_tool"
    rows = json.loads((folder / "results.json").read_text())
    readme = " ".join((folder / "README.md").read_text(encoding="utf-8").split())
    curves = json.loads((folder / "curves.json").read_text())
    assert {seed: [points[0][1], *points[-1]] for seed, points in curves.items()} == {
        str(row["seed"]): [row["before"], row["steps"], row["after"]] for row in rows
    }
    for row in rows:
        team = f"{100 * row['before']:.1f} → **{100 * row['after']:.1f}**"
        shares = [
            f"{100 * row[f'{n}_before']:.1f} → {100 * row[f'{n}_after']:.1f}"
            for n in ("tool_accuracy", "reasoner_accuracy")
        ]
        calls = f"{row['calls_before']:.2f} → {row['calls_after']:.2f}"
        malformed = f"{row['malformed_before']:.0f} → {row['malformed_after']:.0f}"
        thousands, minutes = f"{row['generated_tokens'] / 1000:.0f}", f"{row['train_seconds'] / 60:.1f}"
        assert (
            f"| {row['seed']} | {' | '.join([team, *shares, calls, malformed, thousands, str(row['steps']), minutes])} |"
            in readme
        )
