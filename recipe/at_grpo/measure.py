"""AT-GRPO against parallel sampling, turn-blind groups and a single agent, with the same number of generated
tokens.

    python recipe/at_grpo/measure.py --tasks plan_path --seeds 0 1 2

runs `examples/run_<task>.sh` as it is and with each variant of `config.yaml`, and writes `results.json` (rows
`{"task", "variant", "seed", "before", "after", "swapped", "train_seconds", "generated_tokens",
...}`), `curves.json` and `curves.svg` into this folder. `before` and `after` are the success on held-out tasks; `swapped`
is that of the trained team when each role uses the other role's policy. Rows of an earlier call are kept
unless they are measured again.
"""

from __future__ import annotations

import sys
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
    success_curve,
    training_seconds,
)

HERE = Path(__file__).parent
LOG = ROOT / "outputs" / "verl-mas" / "at_grpo.log"
DEFAULT_MAPS = "plan_path_default_maps"
PUSHES = "sokoban_pushes"
COURSES = {DEFAULT_MAPS: ("plan_path", "default_maps"), PUSHES: ("sokoban", "pushes")}
TASKS = ("plan_path", "sudoku", "sokoban", PUSHES, DEFAULT_MAPS, "math", "code")
# Tasks of a variant that not all have: elsewhere `at_grpo` explores.
ONLY = {"explore": ("plan_path", DEFAULT_MAPS), "long": ("plan_path",), "long_explore": ("plan_path",)}
ROLES = {"math": ("solver", "verifier"), "code": ("coder", "tester")}
COLOURS = {
    "script": "tab:gray",
    "at_grpo": "tab:blue",
    "explore": "tab:cyan",
    "long": "navy",
    "long_explore": "teal",
    "parallel": "tab:orange",
    "turn_blind": "tab:green",
    "shared": "tab:purple",
    "single": "tab:red",
}
LABELS = {
    "script": "the script as it is",
    "at_grpo": "AT-GRPO: trees, a group for each call",
    "explore": "AT-GRPO, mostly random candidates",
    "long": "AT-GRPO, twice the tokens",
    "long_explore": "AT-GRPO, mostly random candidates, twice the tokens",
    "parallel": "parallel episodes, a group for each task",
    "turn_blind": "trees, a group for each agent",
    "shared": "AT-GRPO, one policy for both roles",
    "single": "one agent, parallel episodes",
}


def measure(task: str, variant: str, seed: int, more: list[str]) -> tuple[Row, Curve]:
    """Train one variant, then exchange the roles' policies; return the row and the curve, [tokens, success]
    of every validation.
    """
    keys = keys_of(task, variant)
    run_dir = ROOT / "outputs" / "verl-mas" / f"at_grpo_{task}_{variant}_seed{seed}"
    (run_dir / "metrics.jsonl").unlink(missing_ok=True)
    overrides = [*overrides_of(keys), f"trainer.default_local_dir={run_dir}", *more]
    script, course = script_of(task)
    run_example(script, seed, overrides, LOG, course)
    lines = read_metrics(run_dir / "metrics.jsonl")
    row = summarise(task, variant, seed, lines)
    if keys.get("agent.specialization") != "prompt" and variant != "single":
        row["swapped"] = swapped(
            task, seed, run_dir, [o for o in overrides if not o.startswith("trainer.resume_mode=")]
        )
    return row, success_curve(lines, "training/generated_tokens")


def script_of(task: str) -> tuple[str, str | None]:
    """Return the workflow whose script is run, and the course of its warm start (None for its own)."""
    return COURSES.get(task, (task, None))


def keys_of(task: str, variant: str) -> dict[str, Any]:
    """Return the keys of a run in addition to its script's; the compared variants have a budget of generated
    tokens.
    """
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    keys = config["common"] | config["views"].get(task, {})
    if variant == "script":
        return dict(keys)
    keys |= {"trainer.total_training_steps": 1000} | config["compared"][task] | config["variants"][variant]
    if budget := config["budgets"].get(task, {}).get(variant):
        keys["trainer.total_generated_tokens"] = budget
    decay = config["decay_steps"].get(task)
    return keys | ({"actor_rollout_ref.actor.optim.total_training_steps": decay[variant]} if decay else {})


def swapped(task: str, seed: int, run_dir: Path, overrides: list[str]) -> float:
    """Return the success of the last checkpoint when each role uses the other's policy."""
    one, other = ROLES.get(task, ("tool", "executor"))
    swap = f"agent.role_policies={{{one.title()} Agent: {other}_agent, {other.title()} Agent: {one}_agent}}"
    metrics = run_dir / "swapped" / f"{one}_agent-{other}_agent+{other}_agent-{one}_agent" / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    script, course = script_of(task)
    run_example(script, seed, ["eval", *overrides, swap], LOG, course)
    (line,) = read_metrics(metrics)
    return float(line[accuracy_key(line)])


def summarise(task: str, variant: str, seed: int, lines: Lines) -> Row:
    """Return one row of `results.json`, without the exchange of policies."""
    first, last = lines[0], lines[-1]
    accuracy = accuracy_key(first)
    return {
        "task": task,
        "variant": variant,
        "seed": seed,
        "before": first[accuracy],
        "after": last[accuracy],
        "swapped": None,
        "train_seconds": training_seconds(lines),
        "generated_tokens": int(last["training/generated_tokens"]),
        "steps": last["step"],
    }


def plot(curves: dict[str, Curve], path: Path) -> None:
    """Draw one panel per task, with one colour per variant and one line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "at_grpo"
    from matplotlib import pyplot

    tasks = [task for task in TASKS if any(run.startswith(f"{task}/") for run in curves)]
    figure, panels = pyplot.subplots(
        1, len(tasks), figsize=(4.6 * len(tasks), 3.4), layout="constrained", squeeze=False
    )
    for panel, task in zip(panels[0], tasks, strict=True):
        named: set[str] = set()
        for run, points in sorted(curves.items()):
            where, variant, _ = run.split("/")
            if where == task:
                label = None if variant in named else LABELS[variant]
                named.add(variant)
                panel.plot(
                    [t / 1e6 for t, _ in points],
                    [s for _, s in points],
                    color=COLOURS[variant],
                    linewidth=1.0,
                    label=label,
                )
        panel.set_title(task, fontsize=10)
        panel.set_xlabel("million generated tokens")
        panel.set_ylim(0, 1)
    panels[0][0].set_ylabel("success on held-out tasks")
    panels[0][0].legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure every selected task, variant and seed."""
    parser = make_parser(__doc__, HERE)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--variants", nargs="+", choices=tuple(LABELS), default=list(LABELS))
    args = parser.parse_args()
    runs = [
        run for run in product(args.tasks, args.seeds, args.variants) if run[0] in ONLY.get(run[2], TASKS)
    ]
    if not runs:
        parser.error(
            f"none of --tasks {' '.join(args.tasks)} has --variants {' '.join(args.variants)}; variants of "
            f"few tasks: {ONLY}"
        )
    calls = [partial(measure, task, variant, seed, args.overrides) for task, seed, variant in runs]

    def order(key: tuple[Any, ...]) -> tuple[int, int, int]:
        task, variant, seed = key
        return TASKS.index(task), list(LABELS).index(variant), seed

    measure_all(calls, args.jobs, args.out, ("task", "variant", "seed"), order=order, plot=plot)


if __name__ == "__main__":
    main()
