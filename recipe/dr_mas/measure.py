"""Gradient norms of a team whose agents have rewards of different scales: one baseline for all agents against
one per agent (Dr. MAS).

    python recipe/dr_mas/measure.py --seeds 0 1 2

trains the team of `team.py` on the embedded word problems with `config.yaml`, every seed with both baselines,
and writes `results.json` (a list of `{"seed", "baseline", "grad_norm_max", "grad_norm_median", "final",
...}`), `curves.json` and `curves.svg` into this folder. Only the baseline differs: data, seeds, warm start
and learning rate are the same. Rows of an earlier call are kept unless they are measured again.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import Lines, Row, accuracy_key, make_parser, measure_all, train_embedded

HERE = Path(__file__).parent
AGENTS = ("solver_agent", "verifier_agent", "reviser_agent")
SPIKE = 0.5  # half of actor.grad_clip
COLOURS = {
    "global": ("tab:red", "one baseline for all agents"),
    "agent": ("tab:blue", "one per agent (Dr. MAS)"),
}


def measure(
    seed: int, baseline: str, demos: int | None, more: list[str]
) -> tuple[Row, dict[str, list[float | None]]]:
    """Train with one baseline; return the row and the curves of the run."""
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    settings = config["common"] | config["baselines"][baseline]
    lines = train_embedded(f"dr_mas_{baseline}_seed{seed}", seed, settings, demos, more)
    return summarise(seed, baseline, lines), curves_of(lines)


def curves_of(lines: Lines) -> dict[str, list[float | None]]:
    """Return the curves of a run: every agent's gradient norm (None in a step without its samples) and the
    team's success.
    """
    steps = [line for line in lines if f"wg/{AGENTS[0]}/actor/grad_norm" in line]
    names = {agent: f"wg/{agent}/actor/grad_norm" for agent in AGENTS} | {"success": "episode/success_rate"}
    return {name: [line.get(key) for line in steps] for name, key in names.items()}


def summarise(seed: int, baseline: str, lines: Lines) -> Row:
    """Return one row of `results.json`: norms before clipping over all agents and steps, number of norms
    above `SPIKE`, norms by agent.
    """
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
        row |= {
            f"{agent}_grad_norm_max": max(values, default=None),
            f"{agent}_grad_norm_median": statistics.median(values or [0.0]),
        }
    return row


def plot(curves: dict[str, Any], path: Path) -> None:
    """Draw one panel per agent and one for the team's success, with one colour per baseline and one line per
    seed.
    """
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
            panel.plot(
                range(1, len(shown) + 1),
                shown,
                color=colour,
                linewidth=0.9,
                label=label if seed == "0" else None,
            )
        panel.set_title(
            "team success in training" if name == "success" else f"{name}: gradient norm", fontsize=10
        )
        panel.set_xlabel("step")
    panels[0].legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Train every seed with both baselines."""
    parser = make_parser(__doc__, HERE)
    parser.add_argument(
        "--demos",
        type=int,
        help="demonstrations of the warm start; a few hundred give a quick run that learns little",
    )
    args = parser.parse_args()
    calls = [
        partial(measure, seed, baseline, args.demos, args.overrides)
        for seed, baseline in product(args.seeds, COLOURS)
    ]

    def order(key: tuple[Any, ...]) -> tuple[int, int]:
        baseline, seed = key
        return seed, list(COLOURS).index(baseline)

    measure_all(calls, args.jobs, args.out, ("baseline", "seed"), order=order, plot=plot)


if __name__ == "__main__":
    main()
