"""Cost of the controller with an engine without cost: CPU time of 2,000 concurrent Solver-Verifier episodes,
and time of 256 episodes in an environment that blocks.

    python benchmarks/controller.py

CPU time of this process includes everything from prompt building to the finished `DataProto`. Replies are
drawn from 20,000 per agent, so that nearly all texts of a collection are different and each reply must be
tokenized for the next prompt. The blocking environment waits
0.5 s in each of three steps, so 1.5 s is the limit. The last line is JSON:
  `{"cpu_ms_per_call", "spread", "blocking_s"}`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from agent_system import (
    BaseAgent,
    BaseEnv,
    BaseOrchestra,
    Observation,
    Outcome,
    Task,
    Turn,
    boxed_answer,
    verdict,
)
from agent_system.rollout import AgentBinding, Collector, CollectorSettings, CollectResult, EnvFactory
from agent_system.testing import make_tokenizer
from benchmarks.shared.short import parse_args
from verl.protocol.generate import GenerateRequest, Generation, SamplingParams

logger = logging.getLogger("controller")
GROUP = 8
LOOPS = 2
WAIT_S, WAITS = 0.5, 3
TEXT = "Anna buys apples pears for each friend then gives away some of them and counts how many are left in the box"
WORDS = TEXT.split()


class Solver(BaseAgent):
    system = "You solve word problems step by step."
    prompt = "Problem: {env_prompt}\n\n{team_context}\n\nSolve the problem and put the final answer in \\boxed{{}}."
    projection = boxed_answer


class Verifier(BaseAgent):
    system = "You check solutions of word problems."
    prompt = (
        "Problem: {env_prompt}\n\n{team_context}\n\nRecompute every step. End with <verify>approve</verify> "
        "or "
        "<verify>reject</verify>."
    )
    projection = verdict()


class Team(BaseOrchestra):
    agents = ("Solver", "Verifier")

    async def run(self, turn: Turn) -> str:
        for _ in range(LOOPS):
            solution = await turn.act("Solver")
            judged = await turn.act("Verifier")
            if judged.fields["approved"]:
                break
        return solution.action


class World(BaseEnv):
    blocking = False

    def reset(self, task: Task) -> Observation:
        self.task = task
        return Observation(task.prompt)

    def step(self, action: str) -> Outcome:
        right = action == self.task.ground_truth
        return Outcome(team=float(right), done=True, info={"success": right})


class Alone(BaseOrchestra):
    agents = ("Solver",)

    async def run(self, turn: Turn) -> str:
        return (await turn.act("Solver")).action


class Waits(World):
    blocking = True

    def step(self, action: str) -> Outcome:
        time.sleep(WAIT_S)
        return Outcome()


def sentence(rng: random.Random, words: int) -> str:
    """Return random words and numbers in place of a step of a solution."""
    return " ".join(
        rng.choice(WORDS) if rng.random() > 0.2 else str(rng.randrange(100)) for _ in range(words)
    )


class FreeEngine:
    """A `RolloutClient` that returns prepared replies.

    Attributes:
        most: the most requests that waited at the same time.
    """

    def __init__(self, replies: Mapping[str, Sequence[Generation]]) -> None:
        self.most = 0
        self._open = 0
        self._replies = replies

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        self._open += 1
        self.most = max(self.most, self._open)
        await asyncio.sleep(0)
        self._open -= 1
        replies = self._replies[str(request.adapter)]
        return [replies[request.seed % len(replies)]]


def make_collector(concurrent: int, replies: int = 20_000, *, blocking: bool = False) -> Collector:
    """Return a collector whose two agents share one engine, or one with a single agent in a blocking
    environment.
    """
    rng = random.Random(0)
    tokenizer = make_tokenizer([sentence(rng, 400) for _ in range(20)], vocab_size=1024)
    solutions = [f"{sentence(rng, 40)} so the answer is \\boxed{{{i % 10}}}" for i in range(replies)]
    verdicts = [
        f"{sentence(rng, 15)} <verify>{'approve' if i % 2 else 'reject'}</verify>" for i in range(replies)
    ]

    def generations(texts: list[str]) -> list[Generation]:
        encoded = [
            (*ids, tokenizer.eos_token_id) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]
        ]
        return [Generation(ids, (-0.5,) * len(ids), "stop") for ids in encoded]

    engine = FreeEngine({"solver": generations(solutions), "verifier": generations(verdicts)})
    sampling = SamplingParams(max_tokens=256)
    bindings = {
        name: AgentBinding(
            name,
            name.lower(),
            name.lower(),
            engine,
            tokenizer,
            sampling,
            sampling,
            1024,
            adapter=name.lower(),
        )
        for name in Team.agents
    }
    settings = CollectorSettings(
        max_concurrent_episodes=concurrent, max_steps=WAITS if blocking else 1, max_failure_rate=0.0
    )
    agents = {"Solver": Solver("Solver"), "Verifier": Verifier("Verifier")}
    return Collector(
        Alone() if blocking else Team(), agents, EnvFactory(Waits if blocking else World), bindings, settings
    )


def measure(collector: Collector, episodes: int, step: int) -> tuple[float, CollectResult]:
    """Return CPU milliseconds per call of one collection, and its result."""
    rng = random.Random(step)
    tasks = [
        Task(f"task-{step}-{i}", sentence(rng, 40), "words", str(i % 10)) for i in range(episodes // GROUP)
    ]
    start = time.process_time()
    result: Any = asyncio.run(collector.collect(tasks, GROUP, step=step))
    spent = time.process_time() - start
    assert result.batch is not None
    return 1000 * spent / len(result.batch), result


def seconds(collector: Collector, episodes: int, step: int) -> float:
    """Return the wall time of one collection."""
    tasks = [Task(f"task-{step}-{i}", "wait") for i in range(episodes)]
    start = time.monotonic()
    asyncio.run(collector.collect(tasks, 1, step=step))
    return time.monotonic() - start


def main() -> None:
    """Measure several collections and report the median."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--blocking-episodes", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    args = parse_args(parser, repeats=3)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    torch.set_num_threads(1)
    collector = make_collector(args.episodes)
    costs = []
    for step in range(args.repeats):
        cost, result = measure(collector, args.episodes, step)
        costs.append(cost)
        shape = tuple(result.batch.batch["input_ids"].shape) if result.batch is not None else ()
        logger.info("repeat %d: %.3f ms CPU per call, batch %s", step, cost, shape)
    median = sorted(costs)[len(costs) // 2]
    waiting = make_collector(args.blocking_episodes, 1, blocking=True)
    times = sorted(seconds(waiting, args.blocking_episodes, step) for step in range(args.repeats))
    logger.info(
        "%d episodes that block for %g s: [%.2f, %.2f] s",
        args.blocking_episodes,
        WAITS * WAIT_S,
        times[0],
        times[-1],
    )
    spread = [round(min(costs), 4), round(max(costs), 4)]
    logger.info(
        json.dumps(
            {
                "cpu_ms_per_call": round(median, 4),
                "spread": spread,
                "blocking_s": round(times[len(times) // 2], 2),
            }
        )
    )


if __name__ == "__main__":
    main()
