"""Which alarm comes first in runs that really collapse, and whether it comes in time.

    python recipe/alarms/measure.py --seeds 0

trains the team of `team.py` with `config.yaml`, with each fault and without one, from the same warm
start, and writes `results.json` (a list of `{"seed", "fault", "first", "first_step", "half_step",
"alarms", "before", "best", "final"}`) and `curves.json` (success of every step) into this folder.
`first` is the number of the first alarm and `first_step` its step; `half_step` the step from which
the mean success of 5 steps was below half of its best, null if it never was. Rows of an earlier call
are kept unless they are measured again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import ROOT, Lines, Row, make_parser, measure_all, train_embedded
from verl.report.alarms import AlarmWatch

HERE = Path(__file__).parent
FAULTS = ("none", "learning_rate", "pays_for_length", "pays_little_for_length", "always_yes")
MEAN_STEPS = 5


def measure(fault: str, seed: int, more: list[str]) -> tuple[Row, list[list[float]]]:
    """Train with one fault; return the row of the run and its success by step."""
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    settings = config["common"] | config["faults"][fault]
    name = f"alarms_{fault}_seed{seed}"
    lines = train_embedded(
        name,
        seed,
        settings,
        None,
        more,
        prepare=("recipe.alarms.prepare", "--world", "sounds"),
    )
    folder = ROOT / "outputs" / "verl-mas" / name
    steps = [line for line in lines if "episode/success_rate" in line]
    return summarise(fault, seed, folder, lines), [
        [line["step"], line["episode/success_rate"]] for line in steps
    ]


def summarise(fault: str, seed: int, folder: Path, lines: Lines) -> Row:
    """Return one row of `results.json`, with the alarms that the rules raise step by step."""
    success = [line["episode/success_rate"] for line in lines if "episode/success_rate" in line]
    means = [sum(success[end - MEAN_STEPS : end]) / MEAN_STEPS for end in range(MEAN_STEPS, len(success) + 1)]
    raised = alarms_by_step(folder, lines)
    first = min(raised.items(), key=lambda entry: (entry[1], entry[0]), default=(None, None))
    return {
        "seed": seed,
        "fault": fault,
        "first": first[0],
        "first_step": first[1],
        "half_step": half_step(means),
        "alarms": {str(number): step for number, step in sorted(raised.items())},
        "before": means[0] if means else None,
        "best": max(means, default=None),
        "final": means[-1] if means else None,
    }


def half_step(means: Sequence[float]) -> int | None:
    """Return the first step whose mean of 5 steps is below half of the best one before; None if there is
    none.
    """
    best = 0.0
    for place, mean in enumerate(means):
        if mean < best / 2:
            return place + MEAN_STEPS
        best = max(best, mean)
    return None


def alarms_by_step(folder: Path, lines: Lines) -> dict[int, int]:
    """Return the number of every alarm of a run that is raised, hints left out, with the first step at which
    it was.
    """
    config: Mapping[str, Any] = yaml.safe_load((folder / "config.yaml").read_text())
    agents = [
        {"agent": name, "policy": name.lower(), "trained": True} for name in config["agent"]["agent_ids"]
    ]
    flat = {"trainer.device": "cpu", "data.train_batch_size": config["data"]["train_batch_size"]}
    watch = AlarmWatch(flat, agents, config["trainer"]["total_training_steps"])
    raised: dict[int, int] = {}
    for line in lines:
        step = line["step"]
        file = folder / "trajectories" / f"train_{step:06d}.jsonl"
        if "episode/success_rate" not in line or not file.exists():
            continue
        for number, text in enumerate(file.read_text().splitlines()):
            watch.facts.add(step, "train", number, json.loads(text))
        credit = folder / "credit" / f"step_{step:06d}.json"
        watch.add_step(step, line, json.loads(credit.read_text())["columns"] if credit.exists() else None)
        for alarm in watch.alarms:
            if alarm.active and alarm.rule.level != "hint":
                raised.setdefault(alarm.rule.number, step)
    return raised


def main() -> None:
    """Measure the faults and seeds of the command line."""
    parser = make_parser(__doc__, HERE)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    args = parser.parse_args()
    calls = [
        partial(measure, fault, seed, args.overrides) for seed, fault in product(args.seeds, args.faults)
    ]
    measure_all(calls, args.jobs, args.out, ("fault", "seed"))


if __name__ == "__main__":
    main()
