"""Synchronous and asynchronous training of two teams with the same number of generated tokens, with and
without a correction.

    python recipe/async/measure.py --seeds 0 1 2

runs `examples/run_math.sh` and `examples/run_async.sh` with the variants of `config.yaml`, one after the
other, and writes `results.json` (rows `{"workload", "variant", "seed", "before", "after", "seconds",
"staleness_mean", "idle", ...}`), `curves.json` and `curves.svg` into this folder, and the table of its README
to the standard output. The warm start is that of seed 0 in all runs; `seed` is that of the training. Rows of
an earlier call are kept unless they are measured again.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import (
    ROOT,
    Curve,
    Lines,
    Row,
    accuracy_key,
    make_parser,
    measure_all,
    overrides_of,
    read_metrics,
    run_example,
    training_seconds,
)

HERE = Path(__file__).parent
SCRIPTS = {"math": "math", "search": "async"}  # workload -> name in examples/run_<name>.sh
WARM_START_SEED = 0
SMOOTHED = 5  # steps of a mean in the plot
LABELS = {
    "sync": ("tab:gray", "synchronous"),
    "one_step_off": ("tab:green", "one step off"),
    "fully_async": ("tab:blue", "fully asynchronous, staleness 1"),
    "stale": ("tab:orange", "staleness 4"),
    "stale_uncorrected": ("tab:red", "staleness 4, not corrected"),
}


def keys_of(workload: str, variant: str) -> dict[str, Any]:
    """Return the keys of a run in addition to its script's."""
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    return dict(config["common"] | config["workloads"][workload] | config["variants"][variant])


def measure(workload: str, variant: str, seed: int, more: list[str]) -> tuple[Row, Curve]:
    """Train one variant; return its row and its curve, [tokens, seconds, success of the training episodes] of
    every step.
    """
    run_dir = ROOT / "outputs" / "verl-mas" / f"async_{workload}_{variant}_seed{seed}"
    for name in ("metrics.jsonl", "run.log"):
        (run_dir / name).unlink(missing_ok=True)
    own = [f"data.seed={seed}", f"trainer.default_local_dir={run_dir}"]
    load = round(os.getloadavg()[0], 2)
    run_example(
        SCRIPTS[workload],
        WARM_START_SEED,
        [*overrides_of(keys_of(workload, variant)), *own, *more],
        run_dir / "run.log",
    )
    lines = read_metrics(run_dir / "metrics.jsonl")
    return summarise(workload, variant, seed, lines) | {"load": load}, curve_of(lines)


def summarise(workload: str, variant: str, seed: int, lines: Lines) -> Row:
    """Return one row of `results.json`: accuracy on held-out tasks, seconds of all steps, age of the samples,
    share of waiting, gap.
    """
    steps, last = [line for line in lines if "timing_s/step" in line], lines[-1]
    accuracy, seconds = accuracy_key(last), training_seconds(lines)
    mean = [statistics.mean(_agents(line, "staleness/mean")) for line in steps]
    return {
        "workload": workload,
        "variant": variant,
        "seed": seed,
        "before": lines[0][accuracy] if lines[0]["step"] == 0 else None,
        "after": last[accuracy],
        "seconds": seconds,
        "generated_tokens": int(last["training/generated_tokens"]),
        "steps": len(steps),
        "staleness_mean": round(statistics.mean(mean), 2),
        "staleness_max": int(max(max(_agents(line, "staleness/max")) for line in steps)),
        "idle": round(sum(line["timing_s/gen"] for line in steps) / seconds, 3),
        "gap": statistics.mean(line["rollout_corr/log_prob_diff_mean"] for line in steps),
    }


def _agents(line: Mapping[str, Any], name: str) -> list[float]:
    return [value for key, value in line.items() if key.startswith("agent/") and key.endswith(name)]


def curve_of(lines: Lines) -> Curve:
    """Return [tokens, seconds, success of the training episodes] after every step."""
    steps, seconds, curve = [line for line in lines if "timing_s/step" in line], 0.0, []
    for line in steps:
        seconds += line["timing_s/step"]
        curve.append(
            [
                int(line["training/generated_tokens"]),
                round(seconds, 1),
                round(line["episode/success_rate"], 4),
            ]
        )
    return curve


def table(rows: Sequence[Row]) -> list[str]:
    """Return the rows of the table of the README: a line for each variant of a workload, with the values of
    its seeds.
    """
    return [
        _line(
            workload,
            variant,
            found,
            [row for row in rows if (row["workload"], row["variant"]) == (workload, "sync")],
        )
        for workload, variant in product(SCRIPTS, LABELS)
        if (found := [row for row in rows if (row["workload"], row["variant"]) == (workload, variant)])
    ]


def _line(workload: str, variant: str, rows: Sequence[Row], sync: Sequence[Row]) -> str:
    before, of_seed = (
        [row["before"] for row in sync if row["before"] is not None],
        {row["seed"]: row["seconds"] for row in sync},
    )
    ratios = [of_seed[row["seed"]] / row["seconds"] for row in rows if row["seed"] in of_seed]
    after = [row["after"] for row in rows]
    cells = [
        workload,
        f"`{variant}`",
        f"{_percent(before)} → **{_percent(after)}**",
        ", ".join(f"{100 * value:.1f}" for value in after),
        ", ".join(f"{row['seconds']:.0f}" for row in rows),
        f"{statistics.median(ratios):.2f}" if ratios and variant != "sync" else "—",
        f"{statistics.mean(row['staleness_mean'] for row in rows):.1f}, "
        f"{max(row['staleness_max'] for row in rows)}",
        f"{100 * statistics.mean(row['idle'] for row in rows):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _percent(values: Sequence[float]) -> str:
    return f"{100 * statistics.mean(values):.1f}" if values else "—"


def plot(curves: dict[str, Curve], path: Path) -> None:
    """Draw the success in training over tokens and over seconds, a row of panels per workload, one line per
    seed.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "async"
    from matplotlib import pyplot

    workloads = [workload for workload in SCRIPTS if any(run.startswith(f"{workload}/") for run in curves)]
    size = (10, 3.4 * len(workloads))
    figure, panels = pyplot.subplots(
        len(workloads), 2, figsize=size, layout="constrained", squeeze=False, sharey=True
    )
    for row, workload in zip(panels, workloads, strict=True):
        named: set[str] = set()
        for run, points in sorted(curves.items(), key=lambda item: list(LABELS).index(item[0].split("/")[1])):
            of, variant, _ = run.split("/")
            if of == workload:
                colour, label = LABELS[variant]
                success = [
                    statistics.mean(p[2] for p in points[max(i - SMOOTHED + 1, 0) : i + 1])
                    for i in range(len(points))
                ]
                for panel, x in zip(
                    row, ([p[0] / 1000 for p in points], [p[1] for p in points]), strict=True
                ):
                    panel.plot(
                        x, success, color=colour, linewidth=1.0, label=None if variant in named else label
                    )
                named.add(variant)
        row[0].set_ylabel(f"{workload}: success in training")
        row[0].set_xlabel("thousand generated tokens")
        row[1].set_xlabel("seconds of training")
        row[0].set_ylim(0, 1)
        row[0].legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure every selected workload, seed and variant."""
    parser = make_parser(__doc__, HERE)
    parser.add_argument("--workloads", nargs="+", choices=tuple(SCRIPTS), default=list(SCRIPTS))
    parser.add_argument("--variants", nargs="+", choices=tuple(LABELS), default=list(LABELS))
    args = parser.parse_args()
    runs = product(args.workloads, args.seeds, args.variants)
    calls = [partial(measure, workload, variant, seed, args.overrides) for workload, seed, variant in runs]

    def order(key: tuple[Any, ...]) -> tuple[int, int, int]:
        workload, variant, seed = key
        return list(SCRIPTS).index(workload), list(LABELS).index(variant), seed

    measure_all(calls, args.jobs, args.out, ("workload", "variant", "seed"), order=order, plot=plot)
    sys.stdout.write("\n".join(table(json.loads((args.out / "results.json").read_text()))) + "\n")


if __name__ == "__main__":
    main()
