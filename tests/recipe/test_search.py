"""The search recipe runs, made small, and leaves no server behind."""

import json
import math
import os
import subprocess
from pathlib import Path

from recipe.search.measure import METRICS
from recipe.seeds import summarise
from tests.house.source import ROOT

SMALL = [
    "trainer.total_training_steps=1",
    "data.train_batch_size=2",
    "env.rollout.n=2",
    "data.val_max_samples=8",
    "env.rollout.val_n=1",
]


def processes_about(folder: Path) -> set[str]:
    """Process ids with the folder in their command line."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str(folder).encode() in (entry / "cmdline").read_bytes():
                    found.add(entry.name)
            except OSError:
                continue
    return found


def test_the_script_trains_on_a_real_server_keeps_earlier_rows_and_leaves_no_process(
    checkout: Path, tmp_path: Path
) -> None:
    (tmp_path / "results.json").write_text(
        json.dumps([{"seed": 9, "before": 0.3, "after": 0.9, "train_seconds": 1.0}])
    )
    env = os.environ | {"DEMOS": "1920", "EMBEDDED_DIR": str(tmp_path / "embedded")}
    command = [
        checkout / ".venv/bin/python",
        "recipe/search/measure.py",
        "--seeds",
        "7",
        "--out",
        str(tmp_path),
        *SMALL,
    ]
    subprocess.run(command, cwd=checkout, env=env, check=True, timeout=400)
    one, kept = json.loads((tmp_path / "results.json").read_text())
    assert (one["seed"], one["steps"], kept["seed"]) == (7, 1, 9)
    assert 0 <= one["before"] <= 1
    assert 0 <= one["after"] <= 1
    assert one["train_seconds"] > 0
    assert one["searches_before"] > 0, "the server was asked"
    assert json.loads((tmp_path / "curves.json").read_text()) == {
        "7": [[0, one["before"]], [1, one["after"]]]
    }
    assert processes_about(tmp_path) == set()


def test_a_row_has_before_and_after_of_the_first_and_last_validation() -> None:
    accuracy = "val-core/x/acc/mean@4"
    lines = [
        {"step": 0, accuracy: 0.4, "val/env/f1": 0.5},
        {"step": 1, "timing_s/step": 2.0},
        {"step": 2, accuracy: 0.9, "timing_s/step": 2.04},
        {"step": 3, "timing_s/step": 1.0},
    ]
    row = summarise(1, lines, METRICS)
    assert (row["before"], row["after"], row["train_seconds"], row["steps"], row["f1_before"]) == (
        0.4,
        0.9,
        5.0,
        2,
        0.5,
    )


def test_the_table_of_the_readme_is_that_of_the_committed_rows() -> None:
    folder = ROOT / "recipe" / "search"
    rows = json.loads((folder / "results.json").read_text())
    readme = " ".join((folder / "README.md").read_text(encoding="utf-8").split())
    assert [row["seed"] for row in rows] == [0, 1, 2]
    curves = json.loads((folder / "curves.json").read_text())
    assert {seed: [points[0][1], *points[-1]] for seed, points in curves.items()} == {
        str(row["seed"]): [row["before"], row["steps"], row["after"]] for row in rows
    }
    known, early, later = (
        " and ".join(", ".join(f"{100 * share:.0f}" for share in shares).rsplit(", ", 1))
        for shares in (
            [row["known_after"] for row in rows],
            *([points[at][1] for points in curves.values()] for at in (1, 2)),
        )
    )
    assert (
        f"known in {known} % of the episodes. Exact match is at {early} % after 20 steps and at {later} % "
        "after 40." in readme
    )
    for row in rows:
        team = f"{100 * row['before']:.1f} → **{100 * row['after']:.1f}**"
        shares = [
            f"{100 * row[f'{name}_before']:.1f} → {100 * row[f'{name}_after']:.1f}"
            for name in ("f1", "verifier_accuracy")
        ]
        searches, minutes = (
            f"{row['searches_before']:.2f} → {row['searches_after']:.2f}",
            f"{row['train_seconds'] / 60:.1f}",
        )
        assert (
            f"| {row['seed']} | {' | '.join([team, *shares, searches, str(row['steps']), minutes])} |"
            in readme
        )


def test_the_front_page_says_what_the_rows_say() -> None:
    front = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    code, search = (
        json.loads((ROOT / "recipe" / name / "results.json").read_text()) for name in ("code", "search")
    )
    (low, high), (first, last) = (
        (min(found), max(found)) for found in ([100 * row[w] for row in code] for w in ("before", "after"))
    )
    low, first, high, last = math.floor(low), math.floor(first), math.ceil(high), math.ceil(last)
    assert f"from {low} to {high} % of solved tasks to {first} to {last} %" in front
    before, after = (
        " and ".join(", ".join(f"{100 * row[w]:.0f}" for row in search).rsplit(", ", 1))
        for w in ("before", "after")
    )
    assert f"from {before} % exact match to {after} %" in front
