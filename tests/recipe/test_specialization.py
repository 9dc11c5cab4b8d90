"""The recipe of levels runs, made small: a row a level, curves and the plot."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT

SMALL = [
    "trainer.total_training_steps=1",
    "data.train_batch_size=2",
    "data.max_response_length=16",
    "data.val_max_samples=4",
    "env.rollout.n=2",
]


@pytest.mark.skipif(not (ROOT / ".venv").is_dir(), reason="needs the environment of scripts/setup.sh")
def test_the_script_trains_the_levels_and_draws_them(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps([{"level": "L1", "seed": 7, "before": 0.3}]))
    env = os.environ | {"DEMOS": "96", "EMBEDDED_DIR": str(tmp_path / "embedded")}
    command = [
        sys.executable,
        "recipe/specialization/measure.py",
        "--seeds",
        "7",
        "--levels",
        "L2",
        "L3",
        "--out",
        str(tmp_path),
        *SMALL,
    ]
    subprocess.run(command, cwd=ROOT, env=env, check=True, timeout=800)
    kept, adapters, models = json.loads((tmp_path / "results.json").read_text())
    assert kept == {"level": "L1", "seed": 7, "before": 0.3}
    assert [(row["level"], row["seed"], row["steps"]) for row in (adapters, models)] == [
        ("L2", 7, 1),
        ("L3", 7, 1),
    ]
    assert 0 < adapters["sync_mb"] < models["sync_mb"] / 2
    assert all(
        row["seconds"] > 0 and row["peak_gib"] > 0.2 and 0 <= row["after"] <= 1 for row in (adapters, models)
    )
    assert {
        run: len(points) for run, points in json.loads((tmp_path / "curves.json").read_text()).items()
    } == {"L2/7": 2, "L3/7": 2}
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_the_table_of_the_readme_is_that_of_the_committed_rows() -> None:
    folder = ROOT / "recipe" / "specialization"
    rows, readme = (
        json.loads((folder / "results.json").read_text()),
        (folder / "README.md").read_text(encoding="utf-8"),
    )
    assert [(row["level"], row["seed"]) for row in rows] == [
        (level, seed) for level in ("L1", "L2", "L3") for seed in (0, 1, 2)
    ]
    for row in rows:
        team, minutes = (
            f"{100 * row['before']:.1f} → **{100 * row['after']:.1f}**",
            f"{row['seconds'] / 60:.1f}",
        )
        cells = [
            f"`{row['level']}`",
            row["seed"],
            team,
            minutes,
            f"{row['peak_gib']:.2f}",
            f"{row['sync_mb']:.2f}",
        ]
        assert f"| {' | '.join(map(str, cells))} |" in readme
    curves = json.loads((folder / "curves.json").read_text())
    assert {run: [points[0][1], points[-1][1]] for run, points in curves.items()} == {
        f"{row['level']}/{row['seed']}": [row["before"], row["after"]] for row in rows
    }
