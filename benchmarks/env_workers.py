"""Environments in two worker processes against the driver: CPU-bound steps, 2,000 steps that block, and the
added time of a step.

    python benchmarks/env_workers.py

cpu_speedup: seconds of the same CPU-bound episodes in the driver, on threads, over those in the workers;
rounds alternate, the median of their ratios is reported. It needs as many idle cores as workers.
bare_speedup: seconds of the same steps in a loop of one process over those of as many processes as workers
that divide them, in the same rounds: what the machine allows. blocking_2000_s: seconds of 2,000 concurrent
episodes whose only step blocks 0.5 s. overhead_ms: time of one step of an environment without work in a
worker, less that in the driver, one step after the other.
The last line is JSON: `{"cpu_speedup", "bare_speedup", "blocking_2000_s", "overhead_ms", "spread"}`: medians,
and the lowest and highest round of each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent_system import BaseAgent, BaseEnv, BaseOrchestra, EnvRegistry, Observation, Outcome, Task, Turn
from agent_system.env_caller import EnvCaller, EnvHandle
from agent_system.env_workers import EnvSource, EnvWorkers, ProcessWorker
from agent_system.threads import DaemonExecutor
from benchmarks.shared.short import parse_args

WAIT_S = 0.5
ROUNDS_OF_WORK = 200_000
STEPS = 4
THREADS = 1024


@EnvRegistry.register("idle")
class Idle(BaseEnv):
    blocking = False

    def reset(self, task: Task) -> Observation:
        return Observation(task.prompt)

    def step(self, action: str) -> Outcome:
        return Outcome()


@EnvRegistry.register("works")
class Works(Idle):
    blocking = True

    def step(self, action: str) -> Outcome:
        return Outcome(team=float(sum(i * i % 7 for i in range(ROUNDS_OF_WORK)) > 0))


@EnvRegistry.register("waits")
class Waits(Idle):
    blocking = True

    def step(self, action: str) -> Outcome:
        time.sleep(WAIT_S)
        return Outcome(done=True)


class Speaker(BaseAgent):
    prompt = "{env_prompt}"


class Alone(BaseOrchestra):
    agents = ("Speaker",)

    async def run(self, turn: Turn) -> str:
        return (await turn.act("Speaker")).action


@contextmanager
def workers(env: str, num: int) -> Iterator[EnvWorkers]:
    """Start workers that import this file; it is their plug-in."""
    source = pickle.dumps(EnvSource(env, plugins=("benchmarks.env_workers",), threads=THREADS))
    path = {
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
        )
    }
    started = EnvWorkers(EnvRegistry.get(env), num, lambda: ProcessWorker(source, path))
    try:
        yield started
    finally:
        started.close()


def collect_seconds(env: str, episodes: int, steps: int, started: EnvWorkers | None) -> float:
    """Return the seconds of one collection of concurrent episodes with an engine without cost, none of which
    fails.
    """
    # imports torch, which workers do not need
    from agent_system.rollout import (
        AgentBinding,
        Collector,
        CollectorSettings,
        EnvFactory,
    )
    from agent_system.testing import ScriptedEngine, make_tokenizer
    from verl.protocol.generate import SamplingParams

    tokenizer = make_tokenizer()
    engine, sampling = ScriptedEngine(tokenizer, lambda prompt, request: "go"), SamplingParams(8)
    binding = AgentBinding("Speaker", "speaker", "speaker", engine, tokenizer, sampling, sampling, 200)
    settings = CollectorSettings(
        max_steps=steps, max_concurrent_episodes=episodes, max_failure_rate=0.0, env_threads=THREADS
    )
    agents = {"Speaker": Speaker("Speaker")}
    collector = Collector(
        Alone(), agents, EnvFactory(EnvRegistry.get(env)), {"Speaker": binding}, settings, started
    )
    began = time.perf_counter()
    result = asyncio.run(collector.collect([Task("t", "say go")], episodes, step=1))
    assert result.metrics["episode/failed"] == 0
    return time.perf_counter() - began


def bare_seconds(pool: ProcessPoolExecutor, steps: int, processes: int) -> float:
    """Return the seconds of CPU-bound steps that processes divide."""
    began = time.perf_counter()
    list(pool.map(work, [steps // processes] * processes))
    return time.perf_counter() - began


def work(steps: int) -> None:
    """Take steps of the CPU-bound environment."""
    for _ in range(steps):
        Works().step("go")


async def step_seconds(env: EnvHandle, steps: int) -> float:
    """Return the seconds of one step, one after the other."""
    await env.observation("reset", Task("t", "say go"))
    began = time.perf_counter()
    for _ in range(steps):
        await env.outcome("step", "go")
    return (time.perf_counter() - began) / steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cpu-episodes", type=int, default=64)
    parser.add_argument("--blocking-episodes", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=5000, help="steps of an environment without work")
    parser.add_argument("--repeats", type=int, default=3)
    args = parse_args(parser, repeats=1)
    say = sys.stdout.write
    say(f"load {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores\n")
    ratios, bare = [], []
    with (
        workers("works", args.workers) as started,
        ProcessPoolExecutor(args.workers, get_context("spawn")) as pool,
    ):
        bare_seconds(pool, args.workers, args.workers)  # starts the processes
        for repeat in range(args.repeats):
            here, there = (
                collect_seconds("works", args.cpu_episodes, STEPS, place) for place in (None, started)
            )
            ratios.append(here / there)
            say(
                f"CPU-bound, round {repeat}: driver {here:.2f} s, {args.workers} workers {there:.2f} s, "
                f"ratio {here / there:.2f}\n"
            )
            one, several = (
                bare_seconds(pool, args.cpu_episodes * STEPS, processes) for processes in (1, args.workers)
            )
            bare.append(one / several)
            say(
                f"bare loop, round {repeat}: one process {one:.2f} s, {args.workers} processes {several:.2f} "
                f"s, ratio {bare[-1]:.2f}\n"
            )
    with workers("waits", args.workers) as started:
        waited = [collect_seconds("waits", args.blocking_episodes, 1, started) for _ in range(args.repeats)]
    say(
        f"{args.blocking_episodes} episodes that block {WAIT_S} s: {', '.join(f'{w:.2f}' for w in waited)} "
        "s\n"
    )
    added = []
    with workers("idle", args.workers) as started, DaemonExecutor(1) as threads:
        for _ in range(args.repeats):
            there = asyncio.run(step_seconds(started.env(0), args.steps))
            here = asyncio.run(step_seconds(EnvCaller(Idle(), threads), args.steps))
            added.append(1000 * (there - here))
    say(f"added per step: {', '.join(f'{a:.3f}' for a in added)} ms\n")
    found = {"cpu_speedup": ratios, "bare_speedup": bare, "blocking_2000_s": waited, "overhead_ms": added}
    medians = {name: round(statistics.median(values), 3) for name, values in found.items()}
    spread = {name: [round(min(values), 3), round(max(values), 3)] for name, values in found.items()}
    say(json.dumps(medians | {"spread": spread}) + "\n")


if __name__ == "__main__":
    main()
