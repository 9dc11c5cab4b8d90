"""Seconds of a training step in asynchronous modes against the synchronous one, of a team with four calls an
episode, in one run.

    python benchmarks/async_training.py [--modes fully_async_2] [--tasks 16] [--group 8] [--steps 8] [--rounds 3] [key=value ...]

Workloads: `tools` (every call is followed by a tool that sleeps 1 s in the median, log-normal with sigma
1.2), `tail` (lengths of replies are log-normal with sigma 1.2), `compute` (neither). All train one tiny model
with the local controller and the engine `hf`, as `python -m verl.trainer.main_ppo` does; a reply ends at its
forced length. In every round, which has lengths and waits of its own, each workload is trained in every mode,
one after the other; a step lasts from the end of one update to that of the next, in the steady state. Samples
are at most 2 steps old in `fully_async_2`, and 4 in `fully_async`.

The last line is JSON. `speedup_<workload>` is the median over rounds of synchronous / asynchronous seconds,
for the last of `--modes`, as are `step_over_bound` and `control_ms_per_call`; `modes` has the speed-ups of
all, `step_s` the seconds, `staleness` the age in steps of the oldest sample that a measured step trained on.
`step_over_bound` compares a step of `tools` with the simulated step (`benchmarks/asynchronous/simulator.py`)
of the same waits in the same mode on a machine whose engines need no time, and which spends on each step what
the fastest mode needs on `compute`. `control_ms_per_call` is CPU time of the thread that plays the episodes
(of the last workload).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.asynchronous.calibration import played
from benchmarks.asynchronous.simulator import Costs, Schedule, run_steps
from benchmarks.asynchronous.team import MeasuredRun, Mode, Workload, run
from benchmarks.placement import prepare, run_forked
from benchmarks.shared.short import parse_args

CORRECTION = {"algorithm.rollout_correction.rollout_is": "token"}
FULLY_ASYNC = {
    "async_training.mode": "fully_async",
    "async_training.staleness_threshold": 2,
    "async_training.trigger_parameter_sync_step": 1,
    "async_training.max_off_policy_threshold": 4,
}
MODES = {
    "sync": Mode({}),
    "one_step_off": Mode(CORRECTION | {"async_training.mode": "one_step_off"}, ahead=1),
    "fully_async": Mode(CORRECTION | FULLY_ASYNC, warm_up=4, ahead=3),
    "fully_async_2": Mode(
        CORRECTION | FULLY_ASYNC | {"async_training.max_off_policy_threshold": 2}, warm_up=4, ahead=3
    ),
}
NAMES = ("tools", "tail", "compute")
Round = Mapping[str, Mapping[str, MeasuredRun]]  # workload -> mode -> run


def schedule_of(name: str) -> Schedule:
    """Return the schedule of one of `MODES`."""
    keys = {key.removeprefix("async_training."): value for key, value in MODES[name].keys.items()}
    if "staleness_threshold" not in keys:
        return Schedule(name)
    return Schedule(
        keys["mode"],
        keys["staleness_threshold"],
        keys["trigger_parameter_sync_step"],
        keys["max_off_policy_threshold"],
    )


def bound_s(name: str, found: MeasuredRun, compute_s: float, tasks: int) -> float:
    """Return the seconds of a step of a mode on the machine whose engines need no time: see the top."""
    costs, warm_up, steps = (
        Costs(decode_s=1e-9, row_s=0.0, update_s=compute_s),
        MODES[name].warm_up,
        len(found.step_s),
    )
    return run_steps(costs, schedule_of(name), played(found.groups()), tasks, warm_up + steps).step_s(
        warm_up, steps
    )


def summarise(rounds: list[Round], modes: list[str], tasks: int) -> dict[str, Any]:
    """Return the JSON object of the last line of output."""

    def over_rounds(value: Callable[[Round], float]) -> list[float]:
        return [value(found) for found in rounds]

    def speedup(workload: str, mode: str) -> list[float]:
        return over_rounds(
            lambda found: found[workload]["sync"].mean_step_s / found[workload][mode].mean_step_s
        )

    def over_bound(found: Round) -> float:
        compute_s = min(run.mean_step_s for run in found["compute"].values())
        return found["tools"][last].mean_step_s / bound_s(last, found["tools"][last], compute_s, tasks)

    last, workloads = modes[-1], list(rounds[0])
    values = {f"speedup_{workload}": speedup(workload, last) for workload in workloads}
    if {"tools", "compute"} <= set(workloads):
        values["step_over_bound"] = over_rounds(over_bound)
    values["control_ms_per_call"] = over_rounds(
        lambda found: found[workloads[-1]][last].control_ms_per_call()
    )
    median = {name: round(statistics.median(found), 3) for name, found in values.items()}
    return {
        **median,
        "mode": last,
        "modes": {
            mode: {workload: round(statistics.median(speedup(workload, mode)), 3) for workload in workloads}
            for mode in modes[1:]
        },
        "step_s": {
            mode: {
                workload: round(statistics.median([found[workload][mode].mean_step_s for found in rounds]), 3)
                for workload in workloads
            }
            for mode in modes
        },
        "staleness": {
            mode: {
                workload: int(max(found[workload][mode].staleness for found in rounds))
                for workload in workloads
            }
            for mode in modes[1:]
        },
        "spread": {name: [round(min(found), 3), round(max(found), 3)] for name, found in values.items()},
        "load": round(os.getloadavg()[0], 1),
    }


def workloads_of(args: argparse.Namespace) -> dict[str, Workload]:
    """Return the chosen workloads."""
    every = {
        "tools": Workload(wait_s=args.wait, wait_sigma=1.2),
        "tail": Workload(tokens=12.0, tokens_sigma=1.2),
        "compute": Workload(),
    }
    return {name: every[name] for name in args.workloads}


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add the sizes of the runs."""
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512, help="maximum length of a reply")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--steps", type=int, default=4, help="measured steps of each run")
    parser.add_argument("--wait", type=float, default=1.0, help="median wait of a tool, in seconds")
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("overrides", nargs="*", help="hydra overrides of every run")


def main() -> None:
    """Measure rounds of all workloads and modes and report medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--modes", nargs="+", choices=list(MODES)[1:], default=["fully_async_2"], help="asynchronous modes"
    )
    parser.add_argument("--rounds", type=int, default=3)
    add_sizes(parser)
    parser.set_defaults(steps=8)
    args = parse_args(parser, rounds=1, tasks=4, group=4, tokens=96, steps=3, wait=0.2)
    modes = ["sync", *args.modes]
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory() as folder:
        run_forked(prepare, Path(folder), args)
        for number in range(args.rounds):
            found: dict[str, dict[str, MeasuredRun]] = {}
            for name, workload in workloads_of(args).items():
                run_dirs = {mode: Path(folder) / f"{name}-{mode}-{number}" for mode in modes}
                found[name] = {
                    mode: run(MODES[mode], workload, Path(folder), run_dirs[mode], args, number + 1)
                    for mode in modes
                }
                shown = "  ".join(f"{mode} {one.mean_step_s:.2f} s" for mode, one in found[name].items())
                sys.stdout.write(f"round {number + 1} of {args.rounds}, {name}: {shown}\n")
                sys.stdout.flush()
            rounds.append(found)
    sys.stdout.write(json.dumps(summarise(rounds, modes, args.tasks)) + "\n")


if __name__ == "__main__":
    main()
