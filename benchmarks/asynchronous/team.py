"""A team whose episodes have four calls, one policy, tools that take time and replies of forced lengths, in
any mode.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from math import log
from pathlib import Path
from typing import Any, ClassVar

from agent_system import (
    AgentRegistry,
    BaseEnv,
    BaseOrchestra,
    EnvRegistry,
    Observation,
    OrchestraRegistry,
    Outcome,
    Task,
    Turn,
)
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.prompt import Prompt
from benchmarks.placement import Member, run_forked, shared_settings, train
from recipe.runs import overrides_of, read_metrics
from verl.protocol.generate import Generation, SamplingParams

CALLS = 4
AGENTS = ("Planner", "Worker")
EPISODES = "episodes.json"
# group and length of the replies of the episode in this context
REPLIES: ContextVar[list[tuple[str, int]]] = ContextVar("replies")


@dataclass(frozen=True)
class Workload:
    """Log-normal waits after each call, and log-normal lengths of replies.

    Attributes:
        wait_s, wait_sigma: median in seconds, 0 for no waits, and sigma.
        tokens, tokens_sigma: median length, and sigma.
        task_sigma: sigma of a factor of the length that all replies to a task have in common.
    """

    wait_s: float = 0.0
    wait_sigma: float = 0.0
    tokens: float = 24.0
    tokens_sigma: float = 0.0
    task_sigma: float = 0.0

    def length(self, seed: int, longest: int, task: str = "") -> int:
        """Return the length of the reply to the request with this seed for a task, in 1..`longest`."""
        median = log(self.tokens) + random.Random(task).gauss(0.0, self.task_sigma)
        return min(max(round(random.Random(seed).lognormvariate(median, self.tokens_sigma)), 1), longest)


@dataclass(frozen=True)
class Mode:
    """A mode of training.

    Attributes:
        keys: configuration of the mode.
        warm_up: steps before the steady state, which are not measured.
        ahead: last steps of a run, during which fewer episodes are in flight than before, which are not
            measured either.
    """

    keys: Mapping[str, Any]
    warm_up: int = 2
    ahead: int = 0


@dataclass(frozen=True)
class Tools:
    """Options under `env.params`: see `Workload`."""

    wait_s: float = 0.0
    wait_sigma: float = 0.0


@dataclass(frozen=True)
class PlayedEpisode:
    """One episode: tokens of every reply, the waits after them, and CPU seconds of the event loop's thread at
    the end.

    `began` is on a clock of its own.
    """

    group: str
    began: float
    tokens: Sequence[int]
    waits_s: Sequence[float]
    thread_s: float


@dataclass(frozen=True)
class MeasuredRun:
    """Steps in the steady state of one run.

    Attributes:
        step_s: seconds from the end of one update to that of the next, of every measured step.
        lines: metrics of the measured steps.
        spans: spans of `timeline.jsonl` that start in the measured steps.
        episodes: all episodes of the run, by their end.
    """

    step_s: list[float]
    lines: list[dict[str, Any]]
    spans: list[dict[str, Any]]
    episodes: list[PlayedEpisode]

    @property
    def mean_step_s(self) -> float:
        """Mean seconds of a step."""
        return statistics.mean(self.step_s)

    @property
    def staleness(self) -> float:
        """Age in steps of the oldest sample."""
        return max(
            value for line in self.lines for name, value in line.items() if name.endswith("/staleness/max")
        )

    def busy_s(self, call: str) -> float:
        """Return the mean seconds of a step in which the worker group was in `call`."""
        return sum(span["end"] - span["start"] for span in self.spans if span["call"] == call) / len(
            self.step_s
        )

    def training(self) -> list[tuple[float, float]]:
        """Return beginning and end of the trainer's work of every step, from old log-probs to the end of the
        update.
        """
        steps: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for span in self.spans:
            if span["call"] in ("compute_log_prob", "update_actor"):
                steps[span["step"]].append(span)
        return [
            (min(span["start"] for span in step), max(span["end"] for span in step))
            for step in steps.values()
        ]

    def training_s(self) -> float:
        """Return the mean seconds of the trainer's work of a step."""
        return statistics.mean(end - start for start, end in self.training())

    def overlap_s(self) -> float:
        """Return the mean seconds of a step in which the engine and the trainer work."""
        sampling = [(span["start"], span["end"]) for span in self.spans if span["call"] == "generate"]
        common = [
            min(one[1], other[1]) - max(one[0], other[0]) for one, other in product(sampling, self.training())
        ]
        return sum(max(seconds, 0.0) for seconds in common) / len(self.step_s)

    def control_ms_per_call(self) -> float:
        """Return the CPU milliseconds per call of the thread that plays the episodes, from the first third of
        the run to its end.
        """
        later = self.episodes[len(self.episodes) // 3 :]
        return 1000 * (later[-1].thread_s - later[0].thread_s) / (CALLS * (len(later) - 1))

    def groups(self) -> list[list[PlayedEpisode]]:
        """Return the groups by their beginning."""
        groups: dict[str, list[PlayedEpisode]] = defaultdict(list)
        for episode in sorted(self.episodes, key=lambda episode: episode.began):
            groups[episode.group].append(episode)
        return list(groups.values())


for _name in AGENTS:
    AgentRegistry.register(_name, orchestra="tool_team")(type(_name, (Member,), {}))


@OrchestraRegistry.register("tool_team")
class ToolTeam(BaseOrchestra):
    """Calls of both agents in turn."""

    agents = AGENTS

    async def run(self, turn: Turn) -> str:
        for call in range(CALLS):
            reply = await turn.act(AGENTS[call % len(AGENTS)])
        return reply.action


@EnvRegistry.register("tools")
class ToolWorld(BaseEnv):
    """Environment in which every action runs a tool for a while; the reward is a hash of the last action."""

    config_class = Tools
    blocking = False
    played: ClassVar[list[PlayedEpisode]] = []

    def reset(self, task: Task) -> Observation:
        self.began = time.perf_counter()
        self.waits: list[float] = []
        self.replies: list[tuple[str, int]] = []
        REPLIES.set(self.replies)
        return Observation(task.prompt)

    async def act(self, agent_id: str, action: str) -> Outcome:
        draw = random.Random(f"{self.seed} {len(self.waits)} {action}")
        self.waits.append(
            draw.lognormvariate(log(self.config.wait_s), self.config.wait_sigma)
            if self.config.wait_s
            else 0.0
        )
        await asyncio.sleep(self.waits[-1])
        return Outcome(local=zlib.crc32(action.encode()) % 100 / 100)

    def step(self, action: str) -> Outcome:
        (group, *_), tokens = zip(*self.replies, strict=True)
        self.played.append(PlayedEpisode(group, self.began, tokens, self.waits, time.thread_time()))
        return Outcome(team=0.0, done=True, info={"success": False})


def train_forced(overrides: list[str], workload: Workload, run_dir: Path) -> None:
    """Train with replies that end at the workload's lengths and nowhere else, and write the episodes."""
    sample = AgentBinding.replies

    async def forced(
        self: AgentBinding,
        prompt: Prompt,
        sampling: SamplingParams,
        n: int,
        seed: int,
        request_id: str,
        priority: int = 0,
    ) -> Sequence[Generation]:
        # step/task/number#episode, and the name of a task may have a slash
        task = request_id.partition("/")[2].rpartition("#")[0].rpartition("/")[0]
        tokens = workload.length(seed, sampling.max_tokens, task)
        REPLIES.get().append((request_id.rpartition("#")[0], tokens))
        cut = replace(sampling, max_tokens=tokens, stop_token_ids=())
        return await sample(self, prompt, cut, n, seed, request_id, priority)

    AgentBinding.replies = forced  # type: ignore[method-assign]
    train(overrides)
    (run_dir / EPISODES).write_text(json.dumps([asdict(episode) for episode in ToolWorld.played]))


def run(
    mode: Mode, workload: Workload, folder: Path, run_dir: Path, args: argparse.Namespace, seed: int = 1
) -> MeasuredRun:
    """Train `args.steps` measured steps and those around them, in a process of its own; lengths and waits
    depend on `seed`.
    """
    steps = mode.warm_up + args.steps + mode.ahead
    settings = shared_settings(folder, args) | {
        "agent.orchestra_type": "tool_team",
        "agent.agent_ids": list(AGENTS),
        "agent.specialization": "prompt",
        "env.env_name": "tools",
        "env.params.wait_s": workload.wait_s,
        "env.params.wait_sigma": workload.wait_sigma,
        "data.seed": seed,
        "rollout.episode_timeout_s": 3600,
        "trainer.total_training_steps": steps,
        "trainer.log_trajectories": 0,
        "trainer.default_local_dir": run_dir,
    }
    run_forked(train_forced, [*overrides_of(settings | dict(mode.keys)), *args.overrides], workload, run_dir)
    return read_run(run_dir, mode.warm_up, args.steps)


def read_run(run_dir: Path, warm_up: int, steps: int) -> MeasuredRun:
    """Return the `steps` steps after the warm-up of a run."""
    spans = [json.loads(line) for line in (run_dir / "timeline.jsonl").read_text().splitlines()]
    ends = sorted(span["end"] for span in spans if span["call"] == "update_actor")[
        warm_up - 1 : warm_up + steps
    ]
    lines = [line for line in read_metrics(run_dir / "metrics.jsonl") if "actor/lr" in line][
        warm_up : warm_up + steps
    ]
    measured = [span for span in spans if ends[0] <= span["start"] < ends[-1]]
    episodes = [PlayedEpisode(**episode) for episode in json.loads((run_dir / EPISODES).read_text())]
    return MeasuredRun([after - before for before, after in pairwise(ends)], lines, measured, episodes)
