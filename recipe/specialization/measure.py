"""Accuracy and cost of the math team with one policy, one adapter per agent and one model per agent.

    python recipe/specialization/measure.py --seeds 0 1 2

runs `examples/run_math.sh` with each level of `config.yaml` and writes `results.json` (rows
`{"level", "seed", "before", "after", "seconds", "peak_gib", ...}`), `curves.json` and `curves.svg` into this
folder. `before` and `after` are the team's accuracy on held-out problems, `seconds` those of all training
steps, `peak_gib` the peak memory of all processes together, `sync_mb` the size of a weight sync. Rows of an
earlier call are kept unless they are measured again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import (
    ROOT,
    Curve,
    Lines,
    Row,
    accuracy_key,
    measure_grid,
    overrides_of,
    read_metrics,
    run_example,
    success_curve,
    training_seconds,
)

HERE = Path(__file__).parent
LABELS = {
    "L1": ("tab:purple", "one policy"),
    "L2": ("tab:orange", "one adapter per agent"),
    "L3": ("tab:blue", "one model per agent"),
}


def measure(level: str, seed: int, more: list[str]) -> tuple[Row, Curve]:
    """Train one level; return its row and its curve, [step, accuracy] of every validation."""
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    run_dir = ROOT / "outputs" / "verl-mas" / f"specialization_{level}_seed{seed}"
    for name in ("metrics.jsonl", "run.log"):
        (run_dir / name).unlink(missing_ok=True)
    overrides = [
        *overrides_of(config["common"] | config["levels"][level]),
        f"trainer.default_local_dir={run_dir}",
        *more,
    ]
    peak_gib = run_example("math", seed, overrides, run_dir / "run.log")
    lines = read_metrics(run_dir / "metrics.jsonl")
    return summarise(level, seed, lines) | {"peak_gib": round(peak_gib, 2)}, success_curve(lines)


def summarise(level: str, seed: int, lines: Lines) -> Row:
    """Return one row of `results.json`, without the memory."""
    first, last = lines[0], lines[-1]
    accuracy = accuracy_key(first)
    return {
        "level": level,
        "seed": seed,
        "before": first[accuracy],
        "after": last[accuracy],
        "seconds": training_seconds(lines),
        "sync_mb": round(sum(value for key, value in last.items() if key.endswith("/perf/sync_mb")), 3),
        "steps": last["step"],
    }


if __name__ == "__main__":
    measure_grid(__doc__, HERE, "level", LABELS, measure)
