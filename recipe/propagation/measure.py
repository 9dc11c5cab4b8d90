"""How the team reward travels back along a chain of three agents: to all calls alike, discounted, or cut by a threshold.

    python recipe/propagation/measure.py --seeds 0 1 2

trains Solver, Verifier and Reviser (`recipe/dr_mas/team.py`) on the embedded word problems with each `reward.propagation.mode` of
`config.yaml` and writes beside this file `results.json` (rows `{"mode", "seed", "before", "after", "solver_after", ...}`), `curves.json`
and `curves.svg`. Only the mode differs: data, seeds, warm start and learning rate are the same. Rows of an earlier call are kept where
they are not measured again. DEMOS is the number of demonstrations of the warm start; a few hundred make a quick look that learns little.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import ROOT, accuracy_key, measure_grid, overrides_of, read_metrics, run_module

HERE = Path(__file__).parent
LABELS = {
    "uniform": ("tab:purple", "uniform"),
    "discounted": ("tab:orange", "discounted, gamma 0.9"),
    "threshold": ("tab:blue", "threshold, theta 0.5"),
}
SHARES = {"solver": "solver/accuracy_loop_1", "verifier": "verifier/accuracy"}


def measure(mode: str, seed: int, more: list[str]) -> tuple[dict[str, Any], list[list[float]]]:
    """Train one mode; returns its row and its curve, [step, accuracy] at every validation."""
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    demos = ["--demos", os.environ["DEMOS"]] if os.environ.get("DEMOS") else []
    embedded = run_module("examples.embedded.prepare", "--out", "outputs/embedded", "--seed", str(seed), *demos)[-1]
    run_dir = ROOT / "outputs" / "verl-mas" / f"propagation_{mode}_seed{seed}"
    (run_dir / "metrics.jsonl").unlink(missing_ok=True)
    run_module(
        "verl.trainer.main_ppo",
        f"actor_rollout_ref.model.path={embedded}/model",
        f"data.train_files={embedded}/train.parquet",
        f"data.val_files={embedded}/test.parquet",
        f"data.seed={seed}",
        f"trainer.default_local_dir={run_dir}",
        *overrides_of(config["common"] | config["modes"][mode]),
        *more,
    )
    lines = read_metrics(run_dir / "metrics.jsonl")
    accuracy = accuracy_key(lines[0])
    return summarise(mode, seed, lines), [[float(line["step"]), line[accuracy]] for line in lines if accuracy in line]


def summarise(mode: str, seed: int, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of `results.json`."""
    first, last = lines[0], [line for line in lines if accuracy_key(lines[0]) in line][-1]
    passed = [line["reward/propagation/pass_rate"] for line in lines if "reward/propagation/pass_rate" in line]
    row: dict[str, Any] = {"mode": mode, "seed": seed, "before": first[accuracy_key(first)], "after": last[accuracy_key(first)]}
    for name, metric in SHARES.items():
        row |= {f"{name}_before": first[f"val/env/{metric}"], f"{name}_after": last[f"val/env/{metric}"]}
    seconds = round(sum(line.get("timing_s/step", 0.0) for line in lines), 1)
    return row | {"pass_rate": statistics.mean(passed) if passed else None, "seconds": seconds, "steps": last["step"]}


if __name__ == "__main__":
    measure_grid(__doc__, HERE, "mode", LABELS, measure)
