"""The code recipe runs, made small: a row with what it must say, and rows of an earlier call kept."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from recipe.seeds import run_seed, summarise
from tests.house.source import ROOT

SMALL = [
    "trainer.total_training_steps=1",
    "data.train_batch_size=2",
    "data.max_response_length=16",
    "data.val_max_samples=4",
    "env.max_steps=1",
]


def test_the_script_measures_a_seed_and_keeps_the_others(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps([{"seed": 9, "before": 0.3, "after": 0.9}]))
    env = os.environ | {"DEMOS": "96", "EMBEDDED_DIR": str(tmp_path / "embedded")}
    command = [
        checkout / ".venv/bin/python",
        "recipe/code/measure.py",
        "--seeds",
        "7",
        "--out",
        str(tmp_path),
        *SMALL,
    ]
    subprocess.run(command, cwd=checkout, env=env, check=True, timeout=400)
    row, kept = json.loads((tmp_path / "results.json").read_text())
    assert kept == {"seed": 9, "before": 0.3, "after": 0.9}
    assert (row["seed"], row["steps"]) == (7, 1) and row["train_seconds"] > 0
    assert all(
        0 <= row[f"{name}_{when}"] <= 1
        for name in ("pass_rate", "tester_right", "agreed")
        for when in ("before", "after")
    )


def test_before_and_after_are_the_first_and_the_last_validation() -> None:
    name = "val-core/demo/acc/mean@1"
    lines = [
        {"step": 0, name: 0.3},
        {"step": 1, "timing_s/step": 2.0},
        {"step": 2, name: 0.8, "timing_s/step": 1.5, "x": 4.0},
    ]
    row = summarise(5, lines, {"more": "x"})
    assert row == {
        "seed": 5,
        "before": 0.3,
        "after": 0.8,
        "train_seconds": 3.5,
        "steps": 2,
        "more_before": None,
        "more_after": 4.0,
    }


def test_a_script_that_fails_names_the_file_with_its_output() -> None:
    with pytest.raises(RuntimeError, match=r"status \d+; its output is in .*run\.log"):
        run_seed("nothing", 3, {}, [], {})


def test_the_table_of_the_readme_is_that_of_the_committed_rows() -> None:
    folder = ROOT / "recipe" / "code"
    rows = json.loads((folder / "results.json").read_text())
    readme = " ".join((folder / "README.md").read_text(encoding="utf-8").split())
    assert [row["seed"] for row in rows] == [0, 1, 2]
    curves = json.loads((folder / "curves.json").read_text())
    assert {seed: points[-1] for seed, points in curves.items()} == {
        str(row["seed"]): [row["steps"], row["after"]] for row in rows
    }
    early = [f"{100 * points[1][1] + 1e-9:.0f}" for _, points in sorted(curves.items())]
    assert f"success is at {early[0]}, {early[1]} and {early[2]} %" in readme
    for row in rows:
        team = f"{100 * row['before']:.1f} → **{100 * row['after']:.1f}**"
        shares = [
            f"{100 * row[f'{n}_before']:.1f} → {100 * row[f'{n}_after']:.1f}"
            for n in ("pass_rate", "tester_right", "agreed")
        ]
        turns, minutes = (
            f"{row['turns_before']:.2f} → {row['turns_after']:.2f}",
            f"{row['train_seconds'] / 60:.1f}",
        )
        assert (
            f"| {row['seed']} | {' | '.join([team, *shares, turns, str(row['steps']), minutes])} |" in readme
        )
