"""Seconds of the same trainings by an earlier checkout and by this one, at the same time.

    git worktree add ../earlier 48868409 && bash ../earlier/scripts/setup.sh
    python recipe/at_grpo/before_after.py --earlier ../earlier --seeds 0 1 2

runs `measure.py` of both checkouts with the same task, variant and seed side by side, with one thread each, so that
what else the machine does slows both, and writes `before_after.json`: rows `{"task", "variant", "seed", "build",
"commit", "train_seconds", "generated_tokens", "steps", "before", "after"}`, where `build` is `earlier` or `this`. The
last line is JSON: `time_ratio`, the median over seeds of the seconds of this checkout over those of the earlier one,
and `spread`, the lowest and the highest. Rows of an earlier call are kept unless they are measured again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import ROOT

OUT = Path(__file__).parent / "before_after.json"
KEYS = ("train_seconds", "generated_tokens", "steps", "before", "after")


def start(checkout: Path, task: str, variant: str, seed: int, out: Path) -> subprocess.Popen[bytes]:
    """Start `measure.py` of a checkout with the Python that its `scripts/setup.sh` made."""
    python = checkout / ".venv" / "bin" / "python"
    command = [str(python), "recipe/at_grpo/measure.py", "--tasks", task, "--variants", variant]
    return subprocess.Popen([*command, "--seeds", str(seed), "--out", str(out)], cwd=checkout)


def commit_of(checkout: Path) -> str:
    """Return the short name of the commit that a checkout is at."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
    return subprocess.check_output(command, text=True).strip()


def measure(earlier: Path, task: str, variant: str, seed: int) -> list[dict[str, Any]]:
    """Return a row for each build, trained at the same time. Raises CalledProcessError if one fails."""
    checkouts = {"earlier": earlier, "this": ROOT}
    with tempfile.TemporaryDirectory() as folder:
        outs = {build: Path(folder) / build for build in checkouts}
        for out in outs.values():
            out.mkdir()
        runs = {build: start(checkouts[build], task, variant, seed, outs[build]) for build in checkouts}
        for run in runs.values():
            if run.wait():
                raise subprocess.CalledProcessError(run.returncode, run.args)
        rows = []
        for build, out in outs.items():
            (row,) = json.loads((out / "results.json").read_text())
            origin = {"build": build, "commit": commit_of(checkouts[build])}
            rows.append({"task": task, "variant": variant, "seed": seed} | origin | {k: row[k] for k in KEYS})
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median over seeds of the seconds of this build over those of the earlier one, and the spread."""
    seconds = {(row["seed"], row["build"]): row["train_seconds"] for row in rows}
    ratios = [seconds[seed, "this"] / seconds[seed, "earlier"] for seed, build in seconds if build == "this"]
    return {
        "time_ratio": round(statistics.median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
    }


def main() -> None:
    """Measure every seed and print the summary of the task's rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--earlier", type=Path, required=True, help="a checkout that scripts/setup.sh has set up"
    )
    parser.add_argument("--task", default="sudoku")
    parser.add_argument("--variant", default="script")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    rows = json.loads(OUT.read_text()) if OUT.exists() else []
    for seed in args.seeds:
        new = measure(args.earlier.resolve(), args.task, args.variant, seed)
        names = ("task", "variant", "seed", "build")
        again = {tuple(row[name] for name in names) for row in new}
        rows = [row for row in rows if tuple(row[name] for name in names) not in again] + new
        OUT.write_text(json.dumps(rows, indent=1) + "\n")
    print(
        json.dumps(
            summary([row for row in rows if (row["task"], row["variant"]) == (args.task, args.variant)])
        )
    )


if __name__ == "__main__":
    main()
