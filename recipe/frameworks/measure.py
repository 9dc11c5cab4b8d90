"""The math team as an Orchestra and as a LangGraph program behind the gateway: same settings, three seeds.

    bash scripts/setup.sh frameworks
    python recipe/frameworks/measure.py --seeds 0 1 2

runs `examples/run_math.sh` for both, one run after the other, and writes `results.json` (rows
`{"team", "seed", "before", "after", "seconds", ...}`), `curves.json` and `curves.svg` into this folder, and
the table of its README to the standard output. The warm start is that of seed 0 in all runs; `seed` is that
of the training. Rows of an earlier call are kept unless they are measured again.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import (
    ROOT,
    Curve,
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
WARM_START_SEED = 0
COMMON = {
    "trainer.controller": "local",
    "trainer.num_threads": 1,
    "actor_rollout_ref.rollout.num_threads": 1,
    "trainer.total_training_steps": 1000,
    "trainer.total_generated_tokens": 100000,
    "trainer.resume_mode": "disable",
    "trainer.save_hf_model": False,
    "trainer.log_trajectories": 0,
    "data.train_batch_size": 8,
    "env.rollout.val_n": 2,
}
TEAMS: dict[str, dict[str, Any]] = {
    "orchestra": {},
    "langgraph": {
        "agent.orchestra_type": "gateway",
        "agent.team": "examples.frameworks.langgraph_team:team",
        "agent.plugins": ["examples.frameworks.roles"],
    },
}
COLOURS = {"orchestra": "tab:gray", "langgraph": "tab:blue"}


def measure(team: str, seed: int, more: list[str]) -> tuple[Row, Curve]:
    """Train one team; return its row and its curve, [tokens, success of the training episodes] of
    every step.
    """
    run_dir = ROOT / "outputs" / "verl-mas" / f"frameworks_{team}_seed{seed}"
    for name in ("metrics.jsonl", "run.log"):
        (run_dir / name).unlink(missing_ok=True)
    own = [f"data.seed={seed}", f"trainer.default_local_dir={run_dir}"]
    load = round(os.getloadavg()[0], 2)
    run_example(
        "math", WARM_START_SEED, [*overrides_of(COMMON | TEAMS[team]), *own, *more], run_dir / "run.log"
    )
    lines = read_metrics(run_dir / "metrics.jsonl")
    steps, last = [line for line in lines if "timing_s/step" in line], lines[-1]
    accuracy = accuracy_key(last)
    row = {
        "team": team,
        "seed": seed,
        "before": lines[0][accuracy],
        "after": last[accuracy],
        "seconds": training_seconds(lines),
        "generated_tokens": int(last["training/generated_tokens"]),
        "steps": len(steps),
        "load": load,
    }
    return row, [
        [int(line["training/generated_tokens"]), round(line["episode/success_rate"], 4)] for line in steps
    ]


def table(rows: Sequence[Row]) -> list[str]:
    """Return the rows of the table of the README: a line for each team, with the values of its seeds."""
    lines = []
    for team in TEAMS:
        own = [row for row in rows if row["team"] == team]
        before, after = ([100 * row[name] for row in own] for name in ("before", "after"))
        if own:
            cells = [f"`{team}`", f"{statistics.mean(before):.1f} → **{statistics.mean(after):.1f}**"]
            cells += [
                ", ".join(f"{value:.1f}" for value in after),
                ", ".join(f"{row['seconds']:.0f}" for row in own),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def plot(curves: dict[str, Curve], path: Path) -> None:
    """Draw the success in training over tokens, one line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "frameworks"
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(6, 3.4), layout="constrained")
    for run, points in sorted(curves.items()):
        team = run.split("/")[0]
        panel.plot(
            [p[0] / 1000 for p in points],
            [p[1] for p in points],
            color=COLOURS[team],
            linewidth=1.0,
            label=run,
        )
    panel.set_xlabel("thousand generated tokens")
    panel.set_ylabel("success in training")
    panel.legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure every selected team and seed."""
    parser = make_parser(__doc__, HERE)
    parser.add_argument("--teams", nargs="+", choices=tuple(TEAMS), default=list(TEAMS))
    args = parser.parse_args()
    calls = [partial(measure, team, seed, args.overrides) for seed, team in product(args.seeds, args.teams)]

    def order(key: tuple[Any, ...]) -> tuple[int, int]:
        return list(TEAMS).index(key[0]), key[1]

    measure_all(calls, args.jobs, args.out, ("team", "seed"), order=order, plot=plot)
    sys.stdout.write("\n".join(table(json.loads((args.out / "results.json").read_text()))) + "\n")


if __name__ == "__main__":
    main()
