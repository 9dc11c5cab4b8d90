"""Measures `bash examples/run_search.sh`: exact match on held-out questions before and after, one seed after the other.

    python recipe/search/measure.py --seeds 0 1 2

writes `results.json` beside this file, rows `{"seed", "before", "after", "train_seconds", ...}`: exact match at temperature 1, its F1,
how often the Verifier's verdict agrees with what is known, and searches an episode. Rows of an earlier call are kept where they are
not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import ROOT, accuracy_key, overrides_of, read_metrics

HERE = Path(__file__).parent
MORE = {"f1": "val/env/f1", "verifier_accuracy": "val/env/verifier/accuracy", "searches": "val/env/searches"}


def run_seed(seed: int, more: list[str]) -> dict[str, Any]:
    """Train with one seed and read what the run left; its output goes to a file that is named when it fails."""
    run_dir = ROOT / "outputs" / "verl-mas" / f"search_measured_seed{seed}"
    (run_dir / "metrics.jsonl").unlink(missing_ok=True)
    run_dir.mkdir(parents=True, exist_ok=True)
    log = run_dir / "run.log"
    settings = yaml.safe_load((HERE / "config.yaml").read_text())
    command = ["bash", "examples/run_search.sh", *overrides_of(settings), f"trainer.default_local_dir={run_dir}", *more]
    env = {k: v for k, v in os.environ.items() if k not in ("MODEL_PATH", "DATA", "EXPERIMENT")} | {"SEED": str(seed)}
    with log.open("w") as out:
        ended = subprocess.run(command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} (SEED={seed}) ended with status {ended.returncode}; its output is in {log}")
    return summarise(seed, read_metrics(run_dir / "metrics.jsonl"))


def summarise(seed: int, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of `results.json`."""
    first, last = lines[0], lines[-1]
    accuracy = accuracy_key(first)
    row: dict[str, Any] = {
        "seed": seed,
        "before": first[accuracy],
        "after": last[accuracy],
        "train_seconds": round(sum(line.get("timing_s/step", 0.0) for line in lines), 1),
        "steps": last["step"],
    }
    for name, key in MORE.items():
        row |= {f"{name}_before": first.get(key), f"{name}_after": last.get(key)}
    return row


def main() -> None:
    """Measure the seeds; results are written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("overrides", nargs="*", help="more key=value for every run")
    args = parser.parse_args()
    path = args.out / "results.json"
    rows = {row["seed"]: row for row in (json.loads(path.read_text()) if path.exists() else [])}
    for seed in args.seeds:
        rows[seed] = run_seed(seed, args.overrides)
        sys.stdout.write(json.dumps(rows[seed]) + "\n")
        sys.stdout.flush()
        path.write_text(json.dumps([rows[seed] for seed in sorted(rows)], indent=1) + "\n")


if __name__ == "__main__":
    main()
