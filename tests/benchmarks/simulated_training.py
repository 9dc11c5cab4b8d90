"""`benchmarks/async_simulation.py` where training takes exactly as long as its simulator says: every run is
simulated with `COSTS`.
"""

import argparse
import json
import random
from dataclasses import asdict, replace
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

from benchmarks import async_simulation
from benchmarks.async_training import CORRECTION
from benchmarks.asynchronous import calibration
from benchmarks.asynchronous.calibration import EngineCosts, played
from benchmarks.asynchronous.simulator import Costs, Schedule, run_steps
from benchmarks.asynchronous.team import CALLS, MeasuredRun, Mode, PlayedEpisode, Workload

COSTS = Costs(decode_s=0.004, row_s=0.00005, cache_s=5e-7, call_s=0.001, update_s=0.1, update_token_s=1e-4, log_prob_token_s=3e-5,
              sync_s=0.05, rest_s=0.2, engine_speed=0.7, update_speed=0.6, prompt_tokens=40)  # fmt: skip


def simulated_run(
    mode: Mode, workload: Workload, folder: Path, run_dir: Path, args: argparse.Namespace, seed: int
) -> MeasuredRun:
    """Return a run whose steps are simulated."""
    draw, steps = random.Random(f"{workload} {seed}"), mode.warm_up + args.steps
    episodes = []
    for number in range((steps + mode.ahead) * args.tasks * args.group):
        tokens = [workload.length(draw.getrandbits(32), args.tokens) for _ in range(CALLS)]
        waits = [
            draw.lognormvariate(log(workload.wait_s), workload.wait_sigma) if workload.wait_s else 0.0
            for _ in range(CALLS)
        ]
        episodes.append(PlayedEpisode(str(number // args.group), number, tokens, waits, 0.0))
    groups = MeasuredRun([], [], [], episodes).groups()
    name = mode.keys.get("async_training.mode", "sync")
    tokens_of_step = sum(
        sum(one.tokens) + CALLS * COSTS.prompt_tokens for group in groups for one in group
    ) / (steps + mode.ahead)
    report = run_steps(COSTS, async_simulation.schedule_of(name), played(groups), args.tasks, steps)
    ends = report.updated[mode.warm_up - 1 :]
    update_s, log_prob_s = (
        COSTS.update_s + COSTS.update_token_s * tokens_of_step,
        COSTS.log_prob_token_s * tokens_of_step,
    )
    more = log_prob_s if mode.keys == CORRECTION else 0.0  # which is synchronous otherwise
    engine = replace(COSTS, update_s=0.0, update_token_s=0.0, sync_s=0.0, rest_s=0.0)
    gen_s = run_steps(engine, Schedule(), played(groups), args.tasks, 2).step_s(1, 1)
    lines: list[dict[str, Any]] = [
        {"perf/total_num_tokens": tokens_of_step, "timing_s/gen": gen_s}
    ] * args.steps
    spans: list[dict[str, Any]] = [
        {"call": "generate", "start": start, "end": end} for start, end in report.sampling
    ]
    for step, (start, end) in enumerate(report.updating):
        # the rest is between the two calls
        slower = (end - start + more) / (COSTS.rest_s + update_s + log_prob_s)
        calls = {
            "compute_log_prob": (start - more, start - more + slower * log_prob_s),
            "update_actor": (end - slower * update_s, end),
        }
        calls["sync_weights"] = (end, end + COSTS.sync_s)
        spans += [
            {"step": step, "call": call, "start": began, "end": ended}
            for call, (began, ended) in calls.items()
        ]
    measured = [span for span in spans if ends[0] <= span["start"] < ends[-1]]
    return MeasuredRun([after - before + more for before, after in pairwise(ends)], lines, measured, episodes)


def known_engine(call: object, *arguments: Any) -> None:
    """Write the costs of the engine, twice as fast as it is in runs."""
    if call is calibration.measure_engine:
        costs = EngineCosts(COSTS.decode_s / 2, COSTS.row_s / 2, COSTS.cache_s / 2)
        arguments[-1].write_text(json.dumps(asdict(costs)))


if __name__ == "__main__":
    async_simulation.run = calibration.run = simulated_run
    async_simulation.run_forked = calibration.run_forked = known_engine
    async_simulation.main()
