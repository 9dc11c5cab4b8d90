"""Cost of a team as a file: CPU time of concurrent Solver-Verifier episodes with an engine without cost, from
the file and from Python, and the time in which a large file is read.

    python benchmarks/graph.py

Both teams have the same agents' prompts and make the same requests. A round measures each twice, in an order
that alternates (A B B A, B A A B), on the same tasks; the ratio of a round is that of the lesser CPU times,
from prompt building to the finished `DataProto`. The lesser, because other work on the host only adds: single
collections of one team were up to twice as long as the median. `overhead` is the geometric mean of the
ratios, `high` the upper end of its 95 % confidence interval (bootstrap over rounds). `load_ms` is the median
of reading and checking a file of 64 agents and 256 steps. The last line is JSON: `{"overhead", "high",
"load_ms"}`.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from agent_system.rollout import Collector
from agent_system.workflows.graph import GraphOptions, GraphOrchestra, Team
from benchmarks.controller import make_collector, measure
from benchmarks.shared.short import parse_args

logger = logging.getLogger("graph")
AGENTS, STEPS = 64, 256
RESAMPLES = 10_000
# The team of `benchmarks/controller.py`: its agents, and its steps.
TEAM = """\
team: 1
agents:
  Solver:
    system: You solve word problems step by step.
    prompt: |-
      Problem: {env_prompt}

      {team_context}

      Solve the problem and put the final answer in \\boxed{{}}.
    answer: boxed
  Verifier:
    system: You check solutions of word problems.
    prompt: |-
      Problem: {env_prompt}

      {team_context}

      Recompute every step. End with <verify>approve</verify> or <verify>reject</verify>.
    answer: {verdict: verify}
do:
  - loop: 2
    do:
      - {call: Solver, id: solution}
      - {call: Verifier, id: verdict}
      - {stop: {of: verdict, field: approved}}
return: solution
"""


def of_file(collector: Collector, orchestra: GraphOrchestra) -> Collector:
    """Return a collector like another, whose team comes from a file."""
    bindings = {name: runtime.binding for name, runtime in collector.runtimes.items()}
    agents = {name: orchestra.make_agent(name, "benchmark") for name in bindings}
    return Collector(orchestra, agents, collector.env, bindings, collector.settings)


def large_team() -> str:
    """Return a file of 64 agents, each with a prompt of 600 characters, and 256 steps."""
    text = "Work it out step by step. " * 22
    agents = "".join(f"  Agent {i}: {{prompt: '{text} {{env_prompt}}'}}\n" for i in range(AGENTS))
    calls = [f"  - {{call: Agent {i % AGENTS}, id: s{i}, sees: [s0]}}\n" for i in range(STEPS)]
    return f"team: 1\nagents:\n{agents}do:\n{''.join(calls)}return: s0\n"


def load_ms(path: Path, repeats: int) -> float:
    """Return the median of the milliseconds in which a file is read and checked."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        team = Team.load(path)
        times.append(1000 * (time.perf_counter() - start))
        assert (len(team.agents), team.calls) == (AGENTS, STEPS)
    return statistics.median(times)


def bound(ratios: list[float]) -> tuple[float, float]:
    """Return the geometric mean of ratios and the upper end of its 95 % confidence interval."""
    logs = np.log(ratios)
    draws = np.random.default_rng(0).integers(len(logs), size=(RESAMPLES, len(logs)))
    return math.exp(logs.mean()), math.exp(np.quantile(logs[draws].mean(axis=1), 0.975))


def main() -> None:
    """Measure rounds of both teams, then the reading of a large file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--replies", type=int, default=20_000, help="different replies of each agent")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--loads", type=int, default=20)
    args = parse_args(parser, rounds=6, loads=5)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    torch.set_num_threads(1)
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "team.yaml"
        path.write_text(TEAM, encoding="utf-8")
        python = make_collector(args.episodes, args.replies)
        teams = [python, of_file(python, GraphOrchestra(GraphOptions(str(path))))]
        for number in range(args.rounds + 1):
            costs: dict[int, list[float]] = {0: [], 1: []}
            rows = {}
            for place in (0, 1, 1, 0) if number % 2 else (1, 0, 0, 1):
                gc.collect()  # not the garbage of the other team
                cost, result = measure(teams[place], args.episodes, number)
                costs[place].append(cost)
                rows[place] = 0 if result.batch is None else len(result.batch)
                del result
            assert rows[0] == rows[1] > 0
            if number:  # the first round fills caches
                ratios.append(min(costs[1]) / min(costs[0]))
                logger.info("round %d: %.3f and %.3f ms CPU per call", number, min(costs[0]), min(costs[1]))
        path.write_text(large_team(), encoding="utf-8")
        milliseconds = load_ms(path, args.loads)
    overhead, high = bound(ratios)
    logger.info(
        json.dumps(
            {"overhead": round(overhead, 4), "high": round(high, 4), "load_ms": round(milliseconds, 1)}
        )
    )


if __name__ == "__main__":
    main()
