"""Seconds of a synchronous epoch with `data.tail_window`, where tasks with long replies are played
in the same steps, against the same epoch in random order, in one run.

    python benchmarks/tail.py [--window 8] [--tasks 8] [--group 8] [--epochs 2] [--rounds 3]
    [key=value ...]

The team and the engine of `async_training.py`, whose replies have forced log-normal lengths: in
`by_task` the task decides them (sigma 1.2 between tasks, 0.3 between its replies), in `random`
nothing does (sigma 1.2 between all replies), so that no order can help. The first epoch, in which
no length is known, is not measured; an epoch is one window. In every round, which has lengths of
its own, both orders are trained one after the other.

The last line is JSON: `speedup` and `speedup_random`, seconds in random order / with windows,
medians over rounds; `decode` and `decode_random` the same of the decode steps that a step waits
for, which are the reply tokens of its longest episode: what is gained where a decode step costs as
much with one row as with many, as on a GPU, and no machine's load is in it; `update_share`, the
share of the seconds in random order in which the model is updated, which no order changes, and
`spread`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.asynchronous.team import MeasuredRun, Mode, Workload, run
from benchmarks.placement import prepare, run_forked
from benchmarks.shared.short import parse_args

WORKLOADS = {
    "by_task": Workload(tokens=12.0, tokens_sigma=0.3, task_sigma=1.2),
    "random": Workload(tokens=12.0, tokens_sigma=1.2),
}
NAMES = {"by_task": "speedup", "random": "speedup_random"}
Round = Mapping[str, tuple[MeasuredRun, MeasuredRun]]


def decode_steps(run: MeasuredRun, first: int) -> int:
    """Return the reply tokens of the longest episode of each step from `first` on, summed over
    steps.
    """
    longest: dict[int, int] = defaultdict(int)
    for episode in run.episodes:
        step = int(episode.group.partition("/")[0].removeprefix("step"))
        if step >= first:
            longest[step] = max(longest[step], sum(episode.tokens))
    return sum(longest.values())


def summarise(rounds: list[Round], window: int) -> dict[str, Any]:
    """Return the last line from the runs of each round in random order and with windows, by
    workload; an epoch has `window` steps, and the first one counts for nothing.
    """
    ratios = {
        NAMES[name]: [plain.mean_step_s / tail.mean_step_s for plain, tail in (one[name] for one in rounds)]
        for name in WORKLOADS
    }
    ratios |= {
        NAMES[name].replace("speedup", "decode"): [
            decode_steps(plain, window + 1) / decode_steps(tail, window + 1)
            for plain, tail in (one[name] for one in rounds)
        ]
        for name in WORKLOADS
    }
    shares = [one["by_task"][0].training_s() / one["by_task"][0].mean_step_s for one in rounds]
    return {
        **{name: round(statistics.median(values), 3) for name, values in ratios.items()},
        "update_share": round(statistics.median(shares), 3),
        "spread": {name: [round(min(values), 3), round(max(values), 3)] for name, values in ratios.items()},
    }


def main() -> None:
    """Measure rounds of both workloads in both orders."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--window", type=int, default=8, help="steps of a window and of an epoch")
    parser.add_argument("--tasks", type=int, default=8, help="tasks of a step")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=384, help="maximum length of a reply")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=2, help="measured epochs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("overrides", nargs="*", help="hydra overrides of every run")
    args = parse_args(parser, rounds=1, window=4, tasks=4, group=2, epochs=1, tokens=128, hidden=64)
    args.steps = args.epochs * args.window
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # `prepare` writes the tasks of two steps
        sizes = argparse.Namespace(tasks=args.tasks * args.window // 2, hidden=args.hidden)
        run_forked(prepare, folder, sizes)
        for number in range(args.rounds):
            runs: dict[str, tuple[MeasuredRun, MeasuredRun]] = {}
            for workload, lengths in WORKLOADS.items():
                plain, tail = (
                    run(
                        Mode({"data.tail_window": window}, warm_up=args.window),
                        lengths,
                        folder,
                        folder / f"{workload}-{window}-{number}",
                        args,
                        number + 1,
                    )
                    for window in (0, args.window)
                )
                runs[workload] = plain, tail
                sys.stdout.write(
                    f"round {number + 1} of {args.rounds}, {workload}: {plain.mean_step_s:.2f} s a step in "
                    f"random order, {tail.mean_step_s:.2f} s with windows\n"
                )
                sys.stdout.flush()
            rounds.append(runs)
    sys.stdout.write(json.dumps(summarise(rounds, args.window)) + "\n")


if __name__ == "__main__":
    main()
