"""Simulated seconds of a training step in every mode: against runs of this machine, then for 8 GPUs and 4,096
episodes x 3 agents.

    python benchmarks/async_simulation.py [--modes sync fully_async] [--tasks 16] [--group 8] [--steps 4] [--rounds 3] [key=value ...]

The simulator (`benchmarks/asynchronous/simulator.py`) is calibrated with short and with long replies, in runs
of the modes `sync` and `one_step_off` that it does not predict. Then every workload of
`benchmarks/async_training.py` is trained in every mode, and the simulator predicts the seconds of a step from
the lengths and waits of the same episodes. This is repeated in every round, as the speed of a shared machine
changes within minutes; but the workload with tools, whose steps are waits almost alone, is trained in the
last round only.

The last line is JSON: `error` is the largest relative error of a prediction, each the median of its rounds,
and `errors` has all of them; `gpu_update_bound` and `gpu_rollout_bound` are the simulated speed-ups of
`fully_async` over `sync` on 8 GPUs with replies that are short, and with tools that take time and long-tailed
replies; `one_step_off` is that of one step off in the latter. The assumptions are printed before: each agent
has a policy of its own, or with `--gpu-policies 1` all share one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from math import log
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.async_training import CORRECTION, MODES, add_sizes, schedule_of, workloads_of
from benchmarks.asynchronous.calibration import calibrate, played
from benchmarks.asynchronous.simulator import Costs, Group, run_steps
from benchmarks.asynchronous.team import Mode, Workload, run
from benchmarks.placement import prepare, run_forked
from benchmarks.shared.short import parse_args
from verl.trainer.config.run import ASYNC_MODES

GPUS, AGENTS, GROUP = 8, 3, 16
WARM_UP, STEPS = 4, 4


@dataclass(frozen=True)
class Scenario:
    """Tasks of agents on GPUs: `longest` limits the replies; every call waits."""

    replies: Workload
    longest: int


# 7 billion parameters in bfloat16 on H100: a decode step reads the weights once and each row's cache, an
# update has 6 FLOPs per parameter and token at 400 TFLOP/s, log-probs a third.
GPU = Costs(
    decode_s=0.008, row_s=0.00005, call_s=0.0005, update_s=2.0, update_token_s=1.05e-4 / GPUS,
    log_prob_token_s=0.35e-4 / GPUS,
    sync_s=2.0, rest_s=2.0, engine_speed=0.5, update_speed=0.5, engines=GPUS, slots=256, prompt_tokens=1000,
)  # fmt: skip
SCENARIOS = {
    "gpu_update_bound": Scenario(Workload(tokens=300.0, tokens_sigma=0.5), 4096),
    "gpu_rollout_bound": Scenario(
        Workload(wait_s=5.0, wait_sigma=1.2, tokens=600.0, tokens_sigma=1.2), 16384
    ),
}
# With several policies every GPU that samples holds an engine of each, which decode in turn; updates and
# transfers are one after the other.
PER_POLICY = ("decode_s", "update_s", "sync_s")
# GPUs that sample in an asynchronous run, the others train; all of them: both, at half speed
SPLITS = (
    1,
    2,
    4,
    6,
    GPUS,
)


def drawn(scenario: Scenario) -> Iterator[Group]:
    """Yield groups of episodes."""
    draw, work = random.Random(0), scenario.replies

    def call() -> tuple[int, float]:
        wait_s = draw.lognormvariate(log(work.wait_s), work.wait_sigma) if work.wait_s else 0.0
        return work.length(draw.getrandbits(32), scenario.longest), wait_s

    while True:
        yield [[call() for _ in range(AGENTS)] for _ in range(GROUP)]


def split(sampling: int, policies: int) -> Costs:
    """Return the costs of policies with so many GPUs that sample while the others train; all do both if all
    sample.
    """
    costs = replace(GPU, **{name: policies * getattr(GPU, name) for name in PER_POLICY})
    if sampling == GPUS:
        return costs
    share = GPUS / (GPUS - sampling)
    return replace(
        costs,
        engines=sampling,
        engine_speed=1.0,
        update_speed=1.0,
        update_token_s=GPU.update_token_s * share,
        log_prob_token_s=GPU.log_prob_token_s * share,
    )


def on_gpus(scenario: Scenario, mode: str, tasks: int, policies: int) -> tuple[float, int]:
    """Return the seconds of a step and the GPUs that sample: all in `sync`, the best of `SPLITS` in other
    modes.
    """

    def step_s(sampling: int) -> float:
        report = run_steps(
            split(sampling, policies), schedule_of(mode), drawn(scenario), tasks, WARM_UP + STEPS
        )
        return report.step_s(WARM_UP, STEPS)

    return min((step_s(sampling), sampling) for sampling in ((GPUS,) if mode == "sync" else SPLITS))


def project(tasks: int, policies: int) -> dict[str, float]:
    """Print the assumptions and the seconds on GPUs, and return speed-ups."""
    say(
        f"assumed for {GPUS} GPUs, {tasks * GROUP} episodes x {AGENTS} calls, one an agent: "
        f"{json.dumps(asdict(GPU))}"
    )
    say(
        f"assumed for {policies} policies: every GPU that samples holds an engine of each, and they decode "
        "in turn; a step updates and sends one after the other, each with the tokens of its own calls: "
        f"{' '.join(PER_POLICY)} x {policies}"
    )
    say(
        f"assumed: sync uses all GPUs in turn, other modes the best of {SPLITS} that sample; no failures; "
        f"{schedule_of('fully_async')}"
    )
    speedup: dict[str, dict[str, float]] = {}
    for name, scenario in SCENARIOS.items():
        say(f"assumed for {name}: {scenario}")
        seconds = {mode: on_gpus(scenario, mode, tasks, policies) for mode in MODES}
        say(
            f"{name}: "
            + "  ".join(
                f"{mode} {step_s:.0f} s ({sampling} GPUs sample)"
                for mode, (step_s, sampling) in seconds.items()
            )
        )
        speedup[name] = {mode: round(seconds["sync"][0] / step_s, 2) for mode, (step_s, _) in seconds.items()}
    fully_async = {name: found["fully_async"] for name, found in speedup.items()}
    return fully_async | {"one_step_off": speedup["gpu_rollout_bound"]["one_step_off"]}


def compare(folder: Path, args: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Print the predicted and the measured seconds, and return the relative errors: workload -> mode ->
    round.
    """
    errors: dict[str, dict[str, list[float]]] = {
        name: {mode: [] for mode in args.modes} for name in args.workloads
    }
    for number in range(1, args.rounds + 1):
        run_dir = folder / f"round-{number}"
        run_dir.mkdir()
        costs = calibrate(
            folder, run_dir, replace(MODES["sync"], keys=CORRECTION), MODES["one_step_off"], args, number
        )
        say(
            f"round {number}, measured costs: "
            f"{json.dumps({name: round(value, 7) for name, value in asdict(costs).items()})}"
        )
        # the longest runs last
        for name, workload in sorted(workloads_of(args).items(), key=lambda item: item[1].wait_s):
            if workload.wait_s and number < args.rounds:
                continue
            for mode in args.modes:
                settings: Mode = MODES[mode]
                found = run(settings, workload, folder, run_dir / f"{name}-{mode}", args, number)
                steps = settings.warm_up + args.steps
                step_s = run_steps(
                    costs, schedule_of(mode), played(found.groups()), args.tasks, steps
                ).step_s(settings.warm_up, args.steps)
                errors[name][mode].append(step_s / found.mean_step_s - 1)
                say(
                    f"{name}, {mode}: predicted {step_s:.3f} s, measured {found.mean_step_s:.3f} s, error "
                    f"{errors[name][mode][-1]:+.1%}"
                )
    return errors


def say(line: str) -> None:
    """Write a line of output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Compare with measured runs, then speak about GPUs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [mode for mode in MODES if mode in ASYNC_MODES]
    parser.add_argument("--modes", nargs="+", choices=known, default=known)
    parser.add_argument(
        "--engine-seconds", type=float, default=2.0, help="duration of each measurement of the engine"
    )
    parser.add_argument("--rounds", type=int, default=3, help="calibrations, each with runs to predict")
    parser.add_argument(
        "--gpu-tasks", type=int, default=256, help=f"tasks of the projection, of {GROUP} episodes each"
    )
    parser.add_argument(
        "--gpu-policies",
        type=int,
        choices=(1, AGENTS),
        default=AGENTS,
        help="policies of the agents of the projection",
    )
    add_sizes(parser)
    args = parse_args(
        parser, rounds=1, tasks=4, group=4, tokens=96, steps=2, wait=0.05, engine_seconds=0.5, gpu_tasks=16
    )
    with tempfile.TemporaryDirectory() as folder:
        run_forked(prepare, Path(folder), args)
        errors = compare(Path(folder), args)
    error = max(abs(statistics.median(rounds)) for found in errors.values() for rounds in found.values())
    shown = {
        name: {mode: [round(one, 3) for one in rounds] for mode, rounds in found.items()}
        for name, found in errors.items()
    }
    projected = project(args.gpu_tasks, args.gpu_policies)
    say(
        json.dumps(
            {"error": round(error, 3)} | projected | {"errors": shown, "load": round(os.getloadavg()[0], 1)}
        )
    )


if __name__ == "__main__":
    main()
