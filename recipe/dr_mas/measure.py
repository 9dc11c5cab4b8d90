"""Gradient norms of a team whose agents are paid on different scales: one baseline for all agents against one for each (Dr. MAS).

    python recipe/dr_mas/measure.py --seeds 0 1 2

trains the team of `team.py` on the embedded word problems with `config.yaml`, every seed with both baselines, and writes
`results.json` (a list of `{"seed", "baseline", "grad_norm_max", "grad_norm_median", "final", ...}`), `curves.json` and `curves.svg`
beside this file. Only the baseline differs: data, seeds, warm start and learning rate are the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import ROOT, accuracy_key, folder, overrides_of, read_metrics, run_module

HERE = Path(__file__).parent
AGENTS = ("solver_agent", "verifier_agent", "reviser_agent")
SPIKE = 0.5  # half of the norm at which actor.grad_clip begins to cut
COLOURS = {"global": ("tab:red", "one baseline for all agents"), "agent": ("tab:blue", "one per agent (Dr. MAS)")}


def train(seed: int, baseline: str, demos: list[str], more: list[str]) -> list[dict[str, Any]]:
    """Prepare the embedded data and model (once a seed), train, and return the metrics, a line a step."""
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    embedded = run_module("examples.embedded.prepare", "--out", "outputs/embedded", "--seed", str(seed), *demos)[-1]
    run_dir = ROOT / "outputs" / "verl-mas" / f"dr_mas_{baseline}_seed{seed}"
    (run_dir / "metrics.jsonl").unlink(missing_ok=True)
    run_module(
        "verl.trainer.main_ppo",
        f"actor_rollout_ref.model.path={embedded}/model",
        f"data.train_files={embedded}/train.parquet",
        f"data.val_files={embedded}/test.parquet",
        f"data.seed={seed}",
        f"trainer.default_local_dir={run_dir}",
        *overrides_of(config["common"] | config["baselines"][baseline]),
        *more,
    )
    return read_metrics(run_dir / "metrics.jsonl")


def curves_of(lines: list[dict[str, Any]]) -> dict[str, list[float | None]]:
    """What the plot shows of a run: every agent's gradient norm (None in a step without its samples) and the team's success."""
    steps = [line for line in lines if f"wg/{AGENTS[0]}/actor/grad_norm" in line]
    names = {agent: f"wg/{agent}/actor/grad_norm" for agent in AGENTS} | {"success": "episode/success_rate"}
    return {name: [line.get(key) for line in steps] for name, key in names.items()}


def summarise(seed: int, baseline: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of `results.json`: norms before clipping over all agents and steps, how many are above `SPIKE`, and each agent's own."""
    curves = curves_of(lines)
    norms = {agent: [n for n in curves[agent] if n is not None] for agent in AGENTS}
    together = [n for values in norms.values() for n in values]
    accuracy = accuracy_key(lines[0])
    row = {
        "seed": seed,
        "baseline": baseline,
        "grad_norm_max": max(together),
        "grad_norm_median": statistics.median(together),
        "spikes": sum(n > SPIKE for n in together),
        "final": lines[-1][accuracy],
        "before": lines[0][accuracy],
        "steps": len(curves["success"]),
    }
    for agent, values in norms.items():
        row |= {f"{agent}_grad_norm_max": max(values, default=None), f"{agent}_grad_norm_median": statistics.median(values or [0.0])}
    return row


def plot(curves: dict[str, dict[str, list[float | None]]], path: Path) -> None:
    """One panel an agent and one for the team's success; a colour a baseline, a line a seed."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "dr_mas"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(AGENTS) + 1, figsize=(14, 3.2), layout="constrained")
    for panel, name in zip(panels, (*AGENTS, "success"), strict=True):
        for run, values in sorted(curves.items()):
            baseline, seed = run.split("/")
            colour, label = COLOURS[baseline]
            shown = [float("nan") if v is None else v for v in values[name]]
            panel.plot(range(1, len(shown) + 1), shown, color=colour, linewidth=0.9, label=label if seed == "0" else None)
        panel.set_title("team success in training" if name == "success" else f"{name}: gradient norm", fontsize=10)
        panel.set_xlabel("step")
    panels[0].legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Train every seed with both baselines; results are written after each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=folder, default=HERE)
    parser.add_argument("--demos", type=int, help="demonstrations of the warm start; a few hundred make a quick look that learns little")
    parser.add_argument("overrides", nargs="*", help="more key=value for every run")
    args = parser.parse_args()
    demos = [] if args.demos is None else ["--demos", str(args.demos)]
    results: list[dict[str, Any]] = []
    curves: dict[str, dict[str, list[float | None]]] = {}
    for seed in args.seeds:
        for baseline in COLOURS:
            lines = train(seed, baseline, demos, args.overrides)
            results.append(summarise(seed, baseline, lines))
            curves[f"{baseline}/{seed}"] = curves_of(lines)
            sys.stdout.write(json.dumps(results[-1]) + "\n")
            sys.stdout.flush()
            (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
            (args.out / "curves.json").write_text(json.dumps(curves) + "\n")
    plot(curves, args.out / "curves.svg")


if __name__ == "__main__":
    main()
