"""Growth of the controller's cost with the size of a run, with an engine without cost.

    python benchmarks/scale.py [--sweeps episodes rows] [--plot benchmarks/scale.svg]

Each sweep makes one size of a run larger and measures the CPU time of one unit of it: of a call with more
episodes in flight, turns or agents, of a task with more tasks, of a row with more rows or worker groups. Its
growth is the cost of a unit at the largest size over that at a tenth of it, so 1.0 is linear; sizes alternate
in rounds, and a sweep's growth is the median of them. Rows pass through what a step does with them without a
model: rewards, metrics and batch, split by policy and back, advantages and credit, files of episodes. The
last line is JSON: `{"episodes_in_flight", "cpu_ms_per_call", "linear", "mib", "growth", "spread"}`: episodes
in flight, CPU milliseconds of a call with that many, the growth of the worst sweep, the peak of memory with
the most episodes above that with a hundredth of them, and each sweep's growth with its lowest and highest
round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from agent_system import BaseAgent, BaseEnv, BaseOrchestra, Observation, Outcome, Task, Turn
from agent_system.memory import SearchMemory
from agent_system.record import EpisodeRecord, Sample, SampleIdentity, SampleRequest
from agent_system.reward import assign_rewards
from agent_system.rollout import AgentBinding, Collector, CollectorSettings, EnvFactory
from agent_system.rollout.batch import build_batch
from agent_system.rollout.episode_store import load_episodes, save_episodes
from agent_system.rollout.metrics import collect_metrics
from agent_system.testing import make_tokenizer
from benchmarks.controller import FreeEngine, make_collector, sentence
from benchmarks.shared.lines_plot import Series, plot_lines
from benchmarks.shared.short import parse_args
from verl.protocol import DataProto
from verl.protocol.generate import Generation, SamplingParams
from verl.trainer.config import AlgorithmConfig, DataConfig
from verl.trainer.config.reward import RewardConfig
from verl.trainer.ppo.batching import (
    balance_order,
    combine_batches,
    pad_zero_weight,
    split_batch_by_policies,
    split_batch_by_wg_ids,
    trim_padding,
)
from verl.trainer.ppo.collect.step_samples import StepSamples
from verl.trainer.ppo.credit.advantage import compute_advantage
from verl.trainer.ppo.credit.record import write_credit
from verl.trainer.ppo.metric_utils import compute_agent_metrics, compute_data_metrics
from verl.utils.dataset import RLHFDataset, TaskLoader
from verl.utils.dataset.files import write_rows

logger = logging.getLogger("scale")
GROUP = 8
RANKS = 8
TASKS_PER_STEP = 128


class Stopwatch:
    """CPU seconds of this process inside `with` blocks."""

    seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add the time of the block."""
        start = time.process_time()
        yield
        self.seconds += time.process_time() - start


class Worker(BaseAgent):
    prompt = "Problem: {env_prompt}\n\n{memory}"


class Remembering(Worker):
    """An agent with a state, which is copied for every reply."""

    memory_class = SearchMemory


class Days(BaseEnv):
    """An environment that shows the number of the day, and rewards every agent each day."""

    blocking = False

    def reset(self, task: Task) -> Observation:
        self.day = 0
        self.names: Sequence[str] = task.extra["names"]
        return Observation(task.prompt)

    def step(self, action: str) -> Outcome:
        self.day += 1
        local: dict[int | str, float] = dict.fromkeys(self.names, 0.1)
        return Outcome(observation=Observation(f"Day {self.day}."), team=0.5, local=local)


class Together(BaseOrchestra):
    """All agents act at once."""

    async def run(self, turn: Turn) -> str:
        replies = await asyncio.gather(*(turn.act(name) for name in self.agents))
        return replies[0].action


class InTurn(BaseOrchestra):
    """One agent acts each day."""

    async def run(self, turn: Turn) -> str:
        return (await turn.act(self.agents[turn.step % len(self.agents)])).action


def team_of(kind: type[BaseOrchestra], agents: Sequence[BaseAgent], turns: int, episodes: int) -> Collector:
    """Return a collector whose agents share one engine with short replies."""
    rng = random.Random(0)
    tokenizer = make_tokenizer([sentence(rng, 400) for _ in range(20)], vocab_size=1024)
    texts = [sentence(rng, 12) for _ in range(500)]
    ids = [
        (*text, tokenizer.eos_token_id) for text in tokenizer(texts, add_special_tokens=False)["input_ids"]
    ]
    engine = FreeEngine({"None": [Generation(reply, (-0.5,) * len(reply), "stop") for reply in ids]})
    sampling = SamplingParams(max_tokens=64)
    names = [agent.agent_id for agent in agents]
    bindings = {
        name: AgentBinding(name, "p", "p", engine, tokenizer, sampling, sampling, 4096) for name in names
    }
    settings = CollectorSettings(
        max_concurrent_episodes=episodes, max_steps=turns, max_failure_rate=0.0, history_length=2
    )
    orchestra = type(kind.__name__, (kind,), {"agents": tuple(names)})()
    return Collector(orchestra, dict(zip(names, agents, strict=True)), EnvFactory(Days), bindings, settings)


@dataclass(frozen=True)
class Play:
    """A collection: `n` episodes of each task."""

    collector: Collector
    tasks: Sequence[Task]
    n: int

    def cost(self) -> float:
        """Return the CPU milliseconds of a call."""
        watch = Stopwatch()
        with watch.running():
            result = asyncio.run(self.collector.collect(self.tasks, self.n, step=1))
        assert result.batch is not None
        return 1000 * watch.seconds / len(result.batch)


class Episodes:
    """Episodes in flight, all of them at once; cost of a call in milliseconds."""

    def __init__(self) -> None:
        self.most = 0
        self.peaks: dict[int, float] = {}

    def cost(self, size: int) -> float:
        """Play `size` episodes of Solver and Verifier."""
        # a new one, as its caches would hold all prompts of a smaller size
        collector = make_collector(size, 2 * size)
        rng = random.Random(size)
        tasks = [
            Task(f"task-{i}", sentence(rng, 40), "words", str(i % 10)) for i in range(max(size // GROUP, 1))
        ]
        cost = Play(collector, tasks, GROUP).cost()
        engine: Any = collector.runtimes["Solver"].binding.client
        self.most = max(self.most, engine.most)
        self.peaks.setdefault(size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return cost


def in_turn(size: int, calls: int) -> Play:
    """Return episodes of `size` turns, in each of which one of two agents acts."""
    agents = [Remembering("First"), Worker("Second")]
    n = max(calls // size, 1)
    return Play(team_of(InTurn, agents, size, n), [Task("t", "Count.", extra={"names": ("First",)})], n)


def together(size: int, calls: int) -> Play:
    """Return episodes of a team of `size` agents that all act in each of two turns."""
    agents = [Worker(f"Agent {number}") for number in range(size)]
    n = max(calls // (2 * size), 1)
    task = Task("t", "Count.", extra={"names": [agent.agent_id for agent in agents]})
    return Play(team_of(Together, agents, 2, n), [task], n)


def tasks_cost(size: int, folder: Path) -> float:
    """Return the milliseconds of a task that is read and checked, and drawn in steps of an epoch."""
    file = folder / f"tasks_{size}.jsonl"
    if not file.exists():
        row = {
            "data_source": "words",
            "prompt": [{"role": "user", "content": "How many apples are left in the box?"}],
            "reward_model": {"style": "rule", "ground_truth": "7"},
        }
        write_rows((row | {"extra_info": {"number": number}} for number in range(size)), file)
    watch = Stopwatch()
    with watch.running():
        tasks = RLHFDataset(str(file), None, DataConfig())
        loader = TaskLoader(tasks, min(TASKS_PER_STEP, size))
        for _ in range(len(loader)):
            loader.take(loader.batch_size)
    return 1000 * watch.seconds / size


@dataclass(frozen=True)
class Rows:
    """Rows of a step: episodes of 4 turns in which two of the agents act.

    Attributes:
        agents: names of agents, each with a policy of its own.
        groups: worker groups, over which the policies are spread.
    """

    agents: int = 2
    groups: int = 1

    def episodes(self, rows: int) -> list[EpisodeRecord]:
        """Return the records before rewards are assigned."""
        rng = random.Random(rows)
        replies = [
            Generation(tuple(range(k)), (-0.5,) * k, "stop", version=1)
            for k in range(4, 17)
            for _ in range(4)
        ]
        request = SampleRequest(prompt_text="How many?", prompt_ids=tuple(range(12)), max_tokens=64)
        policies = [(f"agent {a}", f"policy_{a}", f"group_{a % self.groups}") for a in range(self.agents)]
        episodes = []
        for number in range(rows // 8):
            samples = []
            for place in range(8):
                agent, policy, group = policies[(number * 2 + place % 2) % self.agents]
                identity = SampleIdentity(
                    policy_id=policy, wg_id=group, turn=place // 2 + 1, call=place % 2, order=place,
                    prior_replies=place, anchor="State.",
                )  # fmt: skip
                samples.append(
                    Sample(
                        agent_id=agent, text="Seven.", action="7", valid=True, fields={}, identity=identity,
                        request=request, generation=rng.choice(replies),
                    )
                )  # fmt: skip
            uid = f"step1/words:{number // GROUP}/0"
            reward = float(rng.random() < 0.5)
            episodes.append(
                EpisodeRecord(
                    uid=uid, traj_uid=f"{uid}#{number % GROUP}", task_id=f"words:{number // GROUP}",
                    data_source="words", index=number % GROUP, samples=tuple(samples), team_reward=reward,
                    turns=4, turn_rewards=(0.0, 0.0, 0.0, reward),
                )
            )  # fmt: skip
        return episodes

    @property
    def names(self) -> list[str]:
        """The agents."""
        return [f"agent {number}" for number in range(self.agents)]

    def batch(self, records: Sequence[EpisodeRecord]) -> tuple[list[EpisodeRecord], DataProto]:
        """Assign rewards, and return the records and the batch, as at the end of a collection."""
        rewarded, _ = assign_rewards(records, RewardConfig())
        collect_metrics(rewarded, self.names)
        batch = build_batch(rewarded)
        assert batch is not None
        return rewarded, batch

    def batch_cost(self, size: int) -> float:
        """Return the milliseconds of a row from its record to the batch."""
        records = self.episodes(size)
        watch = Stopwatch()
        with watch.running():
            self.batch(records)
        return 1000 * watch.seconds / size

    def split_cost(self, size: int) -> float:
        """Return the milliseconds of a row that goes to its policy's ranks and back."""
        _, batch = self.batch(self.episodes(size))
        watch = Stopwatch()
        with watch.running():
            for split in (split_batch_by_policies, split_batch_by_wg_ids):
                parts = split(batch)
                for part in parts.values():
                    whole, _ = pad_zero_weight(trim_padding(part.batch), RANKS)
                    whole.select_idxs(balance_order(whole, RANKS))
                combine_batches(parts)
        return 1000 * watch.seconds / size

    def credit_cost(self, size: int, folder: Path) -> float:
        """Return the milliseconds of a row for advantages, metrics and the file of credit."""
        records, batch = self.batch(self.episodes(size))
        rewards = torch.zeros(batch.batch["responses"].shape)
        rewards[:, 0] = torch.as_tensor(batch.non_tensor_batch["reward"].astype(np.float32))
        batch.batch["token_level_scores"] = batch.batch["token_level_rewards"] = rewards
        samples = StepSamples(batch, records, {}, 1)
        config = AlgorithmConfig()
        watch = Stopwatch()
        with watch.running():
            compute_advantage(batch, "grpo", config=config)
            compute_data_metrics(batch, use_critic=False, fixed_width=False)
            compute_agent_metrics(batch, config)
            write_credit(folder, 1, samples, batch, config)
        return 1000 * watch.seconds / size

    def files_cost(self, size: int, folder: Path) -> float:
        """Return the milliseconds of a row that is written to a trajectory file, and to a checkpoint
        and read from it.
        """
        records, _ = assign_rewards(self.episodes(size), RewardConfig())
        watch = Stopwatch()
        with watch.running():
            write_rows((record.to_json() for record in records), folder / "train.jsonl")
            save_episodes(records, folder)
            load_episodes(folder)
        return 1000 * watch.seconds / size


@dataclass(frozen=True)
class Sweep:
    """One size that grows.

    Attributes:
        unit: what `cost` is the cost of.
        what: the size, for messages.
        cost: milliseconds of a unit at a size.
        sizes: ascending; the last but one is about a tenth of the last.
    """

    unit: str
    what: str
    cost: Callable[[int], float]
    sizes: Sequence[int]


def sweeps_of(args: argparse.Namespace, episodes: Episodes, folder: Path) -> dict[str, Sweep]:
    """Return the sweeps at the sizes of the command line."""

    def decades(largest: int, smallest: int) -> list[int]:
        sizes = [largest // 10, largest]
        while sizes[0] // 10 >= smallest:
            sizes.insert(0, sizes[0] // 10)
        return sizes

    rows = decades(args.rows, 10_000)
    # those of a split by groups are fewer: they are split at three sizes
    split_rows = args.rows // 5
    agents = sorted({2, max(args.agents // 10, 2), args.agents})
    groups = sorted({1, min(args.groups // 2, 2), args.groups})

    def turns_cost(size: int) -> float:
        return in_turn(size, args.calls).cost()

    def agents_cost(size: int) -> float:
        return together(size, args.calls).cost()

    def groups_cost(size: int) -> float:
        return Rows(agents=4 * size, groups=size).split_cost(split_rows)

    def credit_cost(size: int) -> float:
        return Rows(agents=64).credit_cost(size, folder)

    def files_cost(size: int) -> float:
        return Rows().files_cost(size, folder)

    return {
        "episodes": Sweep("call", "episodes in flight", episodes.cost, decades(args.episodes, 100)),
        "turns": Sweep("call", "turns", turns_cost, decades(args.turns, 10)),
        "agents": Sweep("call", "agents", agents_cost, agents),
        "tasks": Sweep("task", "tasks", partial(tasks_cost, folder=folder), decades(args.tasks, 1000)),
        "batch": Sweep("row", "rows", Rows().batch_cost, rows),
        "split": Sweep("row", "rows", Rows(agents=64, groups=16).split_cost, rows),
        "groups": Sweep("row", "worker groups", groups_cost, groups),
        "credit": Sweep("row", "rows", credit_cost, rows),
        "files": Sweep("row", "rows", files_cost, decades(args.file_rows, 10_000)),
    }


def measured(name: str, sweep: Sweep, rounds: int) -> tuple[dict[int, float], list[float]]:
    """Return the median cost by size in milliseconds, and the growth in each round."""
    costs: dict[int, list[float]] = {size: [] for size in sweep.sizes}
    sweep.cost(sweep.sizes[0])  # imports and caches
    for number in range(rounds):
        for size in sweep.sizes if number % 2 == 0 else sweep.sizes[::-1]:
            costs[size].append(sweep.cost(size))
    largest = sweep.sizes[-1]
    tenth = sweep.sizes[-2]
    growth = [high / low for high, low in zip(costs[largest], costs[tenth], strict=True)]
    cost = {size: median(values) for size, values in costs.items()}
    listed = ", ".join(f"{size:,}: {value:.4f}" for size, value in cost.items())
    logger.info(
        "%s: milliseconds of a %s by %s: %s; growth %.2f [%.2f, %.2f]",
        name, sweep.unit, sweep.what, listed, median(growth), min(growth), max(growth),
    )  # fmt: skip
    return cost, growth


def main() -> None:
    """Measure the sweeps and report the worst growth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweeps", nargs="*", default=None, help="default: all")
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--calls", type=int, default=8000, help="of a collection with more turns or agents")
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--file-rows", type=int, default=100_000)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plot", type=Path, default=None, help="draw the costs as SVG")
    args = parse_args(parser, calls=2000, tasks=100_000, rows=50_000, file_rows=10_000)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    torch.set_num_threads(1)
    episodes = Episodes()
    growth: dict[str, list[float]] = {}
    series = []
    call_ms: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        sweeps = sweeps_of(args, episodes, Path(folder))
        for name in args.sweeps or sweeps:
            cost, growth[name] = measured(name, sweeps[name], args.rounds)
            series.append(Series(f"{name}: a {sweeps[name].unit} by {sweeps[name].what}", list(cost.items())))
            call_ms = cost if name == "episodes" else call_ms
    if args.plot is not None:
        plot_lines(args.plot, series, "size", "ms of CPU")
    peaks = episodes.peaks
    worst = max(growth, key=lambda name: median(growth[name]))
    logger.info("the worst growth is that of %s", worst)
    logger.info(
        json.dumps(
            {
                "episodes_in_flight": episodes.most,
                "cpu_ms_per_call": round(call_ms[args.episodes], 4) if call_ms else None,
                "linear": round(median(growth[worst]), 3),
                "mib": round(max(peaks.values()) - min(peaks.values())) if peaks else None,
                "growth": {name: round(median(values), 3) for name, values in growth.items()},
                "spread": {
                    name: [round(min(values), 3), round(max(values), 3)] for name, values in growth.items()
                },
            }
        )
    )


if __name__ == "__main__":
    main()
