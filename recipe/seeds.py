"""A script of `examples/` measured before and after; `measure.py` of several recipes is a call of `main`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from recipe.runs import ROOT, accuracy_key, finished, folder, overrides_of, read_metrics, run_example

Curve = list[list[float]]


def run_seed(
    workflow: str, seed: int, settings: Mapping[str, Any], more: Sequence[str], metrics: Mapping[str, str]
) -> tuple[dict[str, Any], Curve]:
    """Train `examples/run_<workflow>.sh` with one seed; return the row of `results.json` and the curve of `curves.json`.

    Args:
        workflow: names the script.
        seed: of everything.
        settings: keys for the script.
        more: further `key=value`.
        metrics: name in the row to metric of the validations.

    Raises:
        RuntimeError: the script failed; names the file with its output.
    """
    run_dir = ROOT / "outputs" / "verl-mas" / f"{workflow}_measured_seed{seed}"
    (run_dir / "metrics.jsonl").unlink(missing_ok=True)
    (run_dir / "run.log").unlink(missing_ok=True)
    run_example(workflow, seed, [*overrides_of(settings), f"trainer.default_local_dir={run_dir}", *more], run_dir / "run.log")
    lines = read_metrics(run_dir / "metrics.jsonl")
    return summarise(seed, lines, metrics), curve(lines)


def curve(lines: Sequence[Mapping[str, Any]]) -> Curve:
    """[step, success] of every validation."""
    accuracy = accuracy_key(lines[0])
    return [[line["step"], line[accuracy]] for line in lines if accuracy in line]


def summarise(seed: int, lines: Sequence[Mapping[str, Any]], metrics: Mapping[str, str]) -> dict[str, Any]:
    """One row: success before and after, the seconds of all training steps, and more metrics of the first and the last validation."""
    validations = [line for line in lines if any(name.startswith("val-core/") for name in line)]
    first, last = validations[0], validations[-1]
    accuracy = accuracy_key(first)
    row: dict[str, Any] = {
        "seed": seed,
        "before": first[accuracy],
        "after": last[accuracy],
        "train_seconds": round(sum(line.get("timing_s/step", 0.0) for line in lines), 1),
        "steps": last["step"],
    }
    for name, key in metrics.items():
        row |= {f"{name}_before": first.get(key), f"{name}_after": last.get(key)}
    return row


def main(workflow: str, here: Path, doc: str | None, metrics: Mapping[str, str]) -> None:
    """Measure the seeds of the command line with `here/config.yaml`; results are written after each and keep other seeds'."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--out", type=folder, default=here, help="folder of results.json and curves.json")
    parser.add_argument("overrides", nargs="*", help="more key=value for every run")
    args = parser.parse_args()
    settings = yaml.safe_load((here / "config.yaml").read_text())
    path, drawn = args.out / "results.json", args.out / "curves.json"
    rows = {row["seed"]: row for row in (json.loads(path.read_text()) if path.exists() else [])}
    curves = json.loads(drawn.read_text()) if drawn.exists() else {}
    calls = [partial(run_seed, workflow, seed, settings, args.overrides, metrics) for seed in args.seeds]
    for row, points in finished(calls, args.jobs):
        rows[row["seed"]], curves[str(row["seed"])] = row, points
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
        path.write_text(json.dumps([rows[seed] for seed in sorted(rows)], indent=1) + "\n")
        drawn.write_text(json.dumps(curves, sort_keys=True) + "\n")
