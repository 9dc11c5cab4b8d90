"""The math team with one policy, with an adapter an agent and with a model an agent: what each level learns and what it costs.

    python recipe/specialization/measure.py --seeds 0 1 2

runs `examples/run_math.sh` with each level of `config.yaml` and writes beside this file `results.json` (rows `{"level", "seed", "before",
"after", "seconds", "peak_gib", ...}`), `curves.json` and `curves.svg`. `before` and `after` are the team's accuracy on held-out problems,
`seconds` those of all training steps, `peak_gib` the most memory of all processes together, `sync_mb` what a weight sync sends. Rows of
an earlier call are kept where they are not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import ROOT, accuracy_key, finished, folder, overrides_of, read_metrics, run_example

HERE = Path(__file__).parent
COLOURS = {"L1": "tab:purple", "L2": "tab:orange", "L3": "tab:blue"}
LABELS = {"L1": "one policy", "L2": "an adapter an agent", "L3": "a model an agent"}


def measure(level: str, seed: int, more: list[str]) -> tuple[dict[str, Any], list[list[float]]]:
    """Train one level; returns its row and its curve, [step, accuracy] at every validation."""
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    run_dir = ROOT / "outputs" / "verl-mas" / f"specialization_{level}_seed{seed}"
    for name in ("metrics.jsonl", "run.log"):
        (run_dir / name).unlink(missing_ok=True)
    overrides = [*overrides_of(config["common"] | config["levels"][level]), f"trainer.default_local_dir={run_dir}", *more]
    peak_gib = run_example("math", seed, overrides, run_dir / "run.log")
    lines = read_metrics(run_dir / "metrics.jsonl")
    accuracy = accuracy_key(lines[0])
    curve = [[float(line["step"]), line[accuracy]] for line in lines if accuracy in line]
    return summarise(level, seed, lines) | {"peak_gib": round(peak_gib, 2)}, curve


def summarise(level: str, seed: int, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of `results.json`, without the memory."""
    first, last = lines[0], lines[-1]
    accuracy = accuracy_key(first)
    return {
        "level": level,
        "seed": seed,
        "before": first[accuracy],
        "after": last[accuracy],
        "seconds": round(sum(line.get("timing_s/step", 0.0) for line in lines), 1),
        "sync_mb": round(sum(value for key, value in last.items() if key.endswith("/perf/sync_mb")), 3),
        "steps": last["step"],
    }


def plot(curves: dict[str, list[list[float]]], path: Path) -> None:
    """Accuracy over steps; a colour a level, a line a seed."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "specialization"
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(5, 3.4), layout="constrained")
    named: set[str] = set()
    for run, points in sorted(curves.items()):
        level = run.split("/")[0]
        panel.plot(*zip(*points, strict=True), color=COLOURS[level], linewidth=1.0, label=None if level in named else LABELS[level])
        named.add(level)
    panel.set_xlabel("step")
    panel.set_ylabel("team accuracy on held-out problems")
    panel.set_ylim(0, 1)
    panel.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure every level and seed that is asked for; results are written after each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", nargs="+", choices=tuple(LABELS), default=list(LABELS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--out", type=folder, default=HERE)
    parser.add_argument("overrides", nargs="*", help="more key=value for every run")
    args = parser.parse_args()
    results, drawn = args.out / "results.json", args.out / "curves.json"
    rows = {(r["level"], r["seed"]): r for r in (json.loads(results.read_text()) if results.exists() else [])}
    curves = json.loads(drawn.read_text()) if drawn.exists() else {}
    try:
        calls = [partial(measure, level, seed, args.overrides) for seed, level in product(args.seeds, args.levels)]
        for row, curve in finished(calls, args.jobs):
            rows[row["level"], row["seed"]], curves[f"{row['level']}/{row['seed']}"] = row, curve
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
            results.write_text(json.dumps([rows[key] for key in sorted(rows)], indent=1) + "\n")
            drawn.write_text(json.dumps(curves, sort_keys=True) + "\n")
    finally:
        plot(curves, args.out / "curves.svg")


if __name__ == "__main__":
    main()
