"""Propagation of the team reward along a chain of three agents: equal for all calls, discounted, or cut by a
threshold.

    python recipe/propagation/measure.py --seeds 0 1 2

trains Solver, Verifier and Reviser (`recipe/dr_mas/team.py`) on the embedded word problems with each
`reward.propagation.mode` of `config.yaml` and writes `results.json` (rows
`{"mode", "seed", "before", "after", "solver_after", ...}`), `curves.json` and `curves.svg` into this folder.
Only the mode differs: data, seeds, warm start and learning rate are the same. Rows of an earlier call are
kept unless they are measured again. DEMOS is the number of demonstrations of the warm start; a few hundred
give a quick run that learns little.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import (
    Curve,
    Lines,
    Row,
    accuracy_key,
    measure_grid,
    success_curve,
    train_embedded,
    training_seconds,
)

HERE = Path(__file__).parent
LABELS = {
    "uniform": ("tab:purple", "uniform"),
    "discounted": ("tab:orange", "discounted, gamma 0.9"),
    "threshold": ("tab:blue", "threshold, theta 0.5"),
}
SHARES = {"solver": "solver/accuracy_loop_1", "verifier": "verifier/accuracy"}


def measure(mode: str, seed: int, more: list[str]) -> tuple[Row, Curve]:
    """Train one mode; return its row and its curve, [step, accuracy] of every validation."""
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    settings = config["common"] | config["modes"][mode]
    lines = train_embedded(
        f"propagation_{mode}_seed{seed}", seed, settings, os.environ.get("DEMOS") or None, more
    )
    return summarise(mode, seed, lines), success_curve(lines)


def summarise(mode: str, seed: int, lines: Lines) -> Row:
    """Return one row of `results.json`."""
    accuracy = accuracy_key(lines[0])
    first, last = lines[0], [line for line in lines if accuracy in line][-1]
    passed = [
        line["reward/propagation/pass_rate"] for line in lines if "reward/propagation/pass_rate" in line
    ]
    row: Row = {"mode": mode, "seed": seed, "before": first[accuracy], "after": last[accuracy]}
    for name, metric in SHARES.items():
        row |= {f"{name}_before": first[f"val/env/{metric}"], f"{name}_after": last[f"val/env/{metric}"]}
    pass_rate = statistics.mean(passed) if passed else None
    return row | {"pass_rate": pass_rate, "seconds": training_seconds(lines), "steps": last["step"]}


if __name__ == "__main__":
    measure_grid(__doc__, HERE, "mode", LABELS, measure)
