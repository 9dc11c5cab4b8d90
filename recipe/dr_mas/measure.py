"""Gradient norms of a team whose agents are paid on different scales: one baseline for all agents against one for each (Dr. MAS).

    python recipe/dr_mas/measure.py --seeds 0 1 2

trains the embedded math team (`examples/run_math.sh`) with a Verifier that earns up to six times what the Solver can, once with
advantages normalised over all samples of a task and once per agent, and writes `results.json` (a list of `{"seed", "baseline",
"grad_norm_max", "grad_norm_median", "final", ...}`), `curves.json` and `curves.svg` beside this file. Only the baseline differs: data,
seeds, warm start and learning rate are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
AGENTS = ("solver_agent", "verifier_agent")
COMMON = ("env.params.verdict_reward=5.0", "trainer.resume_mode=disable", "trainer.save_hf_model=false", "trainer.log_trajectories=0")
BASELINES = {
    "global": ("algorithm.group_by=[uid]", "algorithm.statistics_over=samples"),
    "agent": ("algorithm.preset=dr_mas",),
}


def train(seed: int, baseline: str, overrides: list[str]) -> list[dict[str, Any]]:
    """Run `examples/run_math.sh` and return its metrics, a line a step."""
    experiment = f"dr_mas_{baseline}_seed{seed}"
    command = ["bash", "examples/run_math.sh", *COMMON, *BASELINES[baseline], *overrides]
    env = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH", "MODEL_PATH", "DATA")}
    metrics = ROOT / "outputs" / "verl-mas" / experiment / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    subprocess.run(command, cwd=ROOT, env=env | {"SEED": str(seed), "EXPERIMENT": experiment}, check=True, stdout=sys.stderr)
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def curves_of(lines: list[dict[str, Any]]) -> dict[str, list[float]]:
    """What the plot shows of a run: every agent's gradient norm and the team's training success, a value a step."""
    steps = [line for line in lines if f"wg/{AGENTS[0]}/actor/grad_norm" in line]
    names = {agent: f"wg/{agent}/actor/grad_norm" for agent in AGENTS} | {"success": "episode/success_rate"}
    return {name: [line.get(key, float("nan")) for line in steps] for name, key in names.items()}


def summarise(seed: int, baseline: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of `results.json`; norms are over both agents and all steps, before clipping."""
    curves = curves_of(lines)
    accuracy = next(k for k in lines[0] if k.startswith("val-core/") and "/acc/mean@" in k)
    norms = [n for agent in AGENTS for n in curves[agent]]
    row = {
        "seed": seed,
        "baseline": baseline,
        "grad_norm_max": max(norms),
        "grad_norm_median": statistics.median(norms),
        "final": lines[-1][accuracy],
        "before": lines[0][accuracy],
        "steps": len(curves[AGENTS[0]]),
    }
    for agent in AGENTS:
        row |= {f"{agent}_grad_norm_max": max(curves[agent]), f"{agent}_grad_norm_median": statistics.median(curves[agent])}
    return row


def plot(curves: dict[str, dict[str, list[float]]], path: Path) -> None:
    """One panel an agent and one for the team's success; a colour a baseline, a line a seed."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "dr_mas"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
    for panel, name in zip(panels, (*AGENTS, "success"), strict=True):
        for run, values in sorted(curves.items()):
            baseline = run.split("/")[0]
            colour = {"global": "tab:red", "agent": "tab:blue"}[baseline]
            panel.plot(range(1, len(values[name]) + 1), values[name], color=colour, linewidth=0.9, alpha=0.8)
        panel.set_title("team success in training" if name == "success" else f"{name}: gradient norm")
        panel.set_xlabel("step")
        if name != "success":
            panel.set_yscale("log")
    labels = {"tab:red": "one baseline for all agents", "tab:blue": "one per agent"}
    handles = [pyplot.Line2D([], [], color=colour, label=label) for colour, label in labels.items()]
    panels[0].legend(handles=handles, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Train every seed with both baselines; results are written after each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("overrides", nargs="*", help="passed on to the script")
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    curves: dict[str, dict[str, list[float]]] = {}
    for seed in args.seeds:
        for baseline in BASELINES:
            lines = train(seed, baseline, args.overrides)
            results.append(summarise(seed, baseline, lines))
            curves[f"{baseline}/{seed}"] = curves_of(lines)
            sys.stdout.write(json.dumps(results[-1]) + "\n")
            sys.stdout.flush()
            (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
            (args.out / "curves.json").write_text(json.dumps(curves) + "\n")
    plot(curves, args.out / "curves.svg")


if __name__ == "__main__":
    main()
