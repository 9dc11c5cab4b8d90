"""The math team with one policy, with an adapter an agent and with a model an agent: what each level learns and what it costs.

    python recipe/specialization/measure.py --seeds 0 1 2

runs `examples/run_math.sh` with each level of `config.yaml` and writes beside this file `results.json` (rows `{"level", "seed", "before",
"after", "seconds", "peak_gib", ...}`), `curves.json` and `curves.svg`. `before` and `after` are the team's accuracy on held-out problems,
`seconds` those of all training steps, `peak_gib` the most memory of all processes together, `sync_mb` what a weight sync sends. Rows of
an earlier call are kept where they are not measured again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import ROOT, accuracy_key, measure_grid, overrides_of, read_metrics, run_example

HERE = Path(__file__).parent
LABELS = {
    "L1": ("tab:purple", "one policy"),
    "L2": ("tab:orange", "an adapter an agent"),
    "L3": ("tab:blue", "a model an agent"),
}


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


if __name__ == "__main__":
    measure_grid(__doc__, HERE, "level", LABELS, measure)
