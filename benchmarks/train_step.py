"""A whole training step of the trainer (collection to weight sync) against a hand-written torch loop
that does the same work, and a tree's step with shared tokens run once against separate rows.

    python benchmarks/train_step.py [--tasks 16] [--group 8] [--repeats 5] [--parts one two tree]

Ours: `RayPPOTrainer` as `verl.trainer.main_ppo` builds it, on Ray, with one agent (`one`) or two
agents with a model each (`two`); a step lasts from the first prompt to the log of its metrics,
including files. After each step the loop of `benchmarks/shared/strong_loop.py` trains as many
models of the same shape in this process on the same prompts, with all cores. Both sides tokenize
the prompts, sample without stop tokens, so that all rows have 42 + 64 tokens, decode and score the
replies, and take one optimizer step on every row. What is not equal: the trainer runs the tokens of
a prompt once for a group in the update, also computes entropies, metrics and records of its
episodes, and sends weights to an engine in another process; the loop samples and trains with one
copy of the weights and knows no other lengths, models, losses or agents. Before it is measured, its
logits are compared with those of transformers.

`tree`: an episode for each prompt of 256 tokens, with `--candidates` candidates of 24 tokens. Steps
alternate between shared tokens run once (`use_prefix_grouper`) and separate rows, in one run of the
local controller, where the engine can be switched.

The first `--warmup` steps of each part are not counted. The last line is JSON: `ratio_1` and
`ratio_2` are the medians over the steps of (ours / loop), `ratio_tree_update` and `ratio_tree_step`
of (shared / separate) of an update and of a whole step, `spread` has the lowest and the highest of
each; `ours_s`, `loop_s` and `tree_s` have medians of seconds, and `peak_gib` an upper bound of the
peak memory of all processes of the trainer of the first part.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
import torch

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
from agent_system.rollout.collector import Collector, CollectResult
from benchmarks.placement import Member
from benchmarks.shared.short import parse_args
from benchmarks.shared.strong_loop import StrongLoop, largest_difference
from recipe.runs import overrides_of
from verl.models.loader import load_causal_lm, load_tokenizer, without_progress_bars
from verl.models.tiny import TinyModelSize, make_tiny_model
from verl.trainer.config import RunConfig

logger = logging.getLogger("train_step")
PARTS = ("one", "two", "tree")
TEAMS = {"one": ("Agent A",), "two": ("Agent A", "Agent B"), "tree": ("Agent A",)}
LR = 1e-4
MICRO_ROWS = 32
LOGIT_TOLERANCE = 1e-5
PROMPT = 42
TREE_PROMPT = 256
TREE_TOKENS = 24
# A chat of one message has so many tokens beside those of its text, each character of which is one.
TEMPLATE = 19
# Pad, begin and end of a turn, and the bytes: no two characters are one token.
WORDS = 3 + 256
PHASES = ("update_actor", "sync_weights", "adv")


class Choir(BaseOrchestra):
    """One call of every agent, all at once."""

    async def run(self, turn: Turn) -> str:
        calls = await asyncio.gather(*(turn.act(name) for name in self.agents))
        return "".join(call.action for call in calls)


for _team, _names in TEAMS.items():
    OrchestraRegistry.register(_team)(type(_team, (Choir,), {"agents": _names}))
    for _name in _names:
        AgentRegistry.register(_name, orchestra=_team)(type(_name, (Member,), {}))


@EnvRegistry.register("choir")
class ChoirHall(BaseEnv):
    """Environment whose rewards are hashes of the texts of replies."""

    blocking = False

    def reset(self, task: Task) -> Observation:
        return Observation(task.prompt)

    def fork(self) -> ChoirHall:
        return ChoirHall(self.config)

    def act(self, agent_id: str, action: str) -> Outcome:
        return Outcome(local=reward_of(action))

    def step(self, action: str) -> Outcome:
        return Outcome(done=True, info={"success": False})


def reward_of(text: str) -> float:
    """Return the reward of a reply; replies of a group differ, so that each has an advantage."""
    return zlib.crc32(text.encode()) % 100 / 100


def question(number: int, length: int) -> str:
    """Return a text of `length` characters, different for each number."""
    digits = random.Random(number).choices("0123456789", k=length)
    return f"Sum: {''.join(digits)}"[:length]


class LoopTeam:
    """The hand-written loop for a team: a model for every agent, one after the other.

    Raises RuntimeError when a model's logits are not those of transformers.
    """

    def __init__(self, model_dir: Path, agents: int, group: int, tokens: int) -> None:
        torch.manual_seed(0)
        self.group = group
        self.tokens = tokens
        self.tokenizer = load_tokenizer(str(model_dir))
        self.loops = []
        for _ in range(agents):
            model = load_causal_lm(str(model_dir), dtype=torch.float32, attn_implementation="sdpa")
            loop = StrongLoop(model, LR, MICRO_ROWS)
            difference = largest_difference(loop, model)
            if not difference < LOGIT_TOLERANCE:
                raise RuntimeError(f"logits of the loop differ from those of transformers by {difference}")
            self.loops.append(loop)

    def step(self, questions: Sequence[str]) -> dict[str, float]:
        """Train every model on replies to the questions and return the seconds."""
        begin = time.perf_counter()
        seconds = {"gen": 0.0, "update": 0.0}
        messages = [[{"role": "user", "content": text}] for text in questions]
        texts = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompts = torch.tensor(self.tokenizer(texts, add_special_tokens=False)["input_ids"])
        for loop in self.loops:
            started = time.perf_counter()
            replies = loop.generate(prompts, self.group, self.tokens)
            seconds["gen"] += time.perf_counter() - started
            rewards = torch.tensor([reward_of(text) for text in self.tokenizer.batch_decode(replies)])
            grouped = rewards.view(-1, self.group)
            advantages = grouped - grouped.mean(1, keepdim=True)
            advantages = (advantages / (grouped.std(1, keepdim=True) + 1e-6)).flatten()
            rows = torch.cat([prompts.repeat_interleave(self.group, 0), replies], 1)
            started = time.perf_counter()
            loop.update(rows, prompts.shape[1], advantages)
            seconds["update"] += time.perf_counter() - started
        return seconds | {"step": time.perf_counter() - begin}


@dataclass
class Watch:
    """Collector and tracker of the trainer at once, which time every step.

    Attributes:
        collector: plays the episodes.
        width: tokens of a prompt.
        tokens: tokens of a reply.
        loop: runs after each step; None without a peer.
        steps: seconds of every step by phase, and `step`.
        peers: seconds of the loop after every step.
        peak_gib: upper bound of the peak memory of this process before the loop ran.
    """

    collector: Collector
    width: int
    tokens: int
    loop: LoopTeam | None = None
    engine: Any = None
    started: float = 0.0
    collected: float = 0.0
    questions: Sequence[str] = ()
    steps: list[dict[str, float]] = field(default_factory=list)
    peers: list[dict[str, float]] = field(default_factory=list)
    rows: int = 0
    peak_gib: float = 0.0

    async def collect(
        self, tasks: Sequence[Task], n: int, *, step: int, validate: bool = False
    ) -> CollectResult:
        """Play the episodes. Raises RuntimeError for a row of another length than the loop's."""
        if self.engine is not None:
            # Separate rows first: the first steps are not counted.
            sharing = "trie" if step % 2 == 0 else "none"
            self.engine.layout = replace(self.engine.layout, sharing=sharing)
        self.questions = [task.prompt for task in tasks]
        self.started = time.perf_counter()
        result = await self.collector.collect(tasks, n, step=step, validate=validate)
        self.collected = time.perf_counter() - self.started
        assert result.batch is not None
        mask = result.batch.batch["attention_mask"]
        if mask.shape[1] != self.width + self.tokens or not bool(mask.all()):
            raise RuntimeError(
                f"rows have {mask.sum(1).tolist()} tokens, expected {self.width} + {self.tokens} in each"
            )
        self.rows = len(mask)
        return result

    def start(self, total_steps: int) -> None:
        """Do nothing."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Stop the time of the trainer's step, and run the loop on the same prompts."""
        whole = time.perf_counter() - self.started - metrics.get("timing_s/save_checkpoint", 0.0)
        seconds = {name: metrics.get(f"timing_s/{name}", 0.0) for name in PHASES}
        seconds = {"gen": self.collected} | seconds
        self.steps.append(seconds | {"step": whole})
        shown = f"step {step}: {whole:.2f} s ({'  '.join(f'{n} {v:.2f}' for n, v in seconds.items())})"
        if not self.peers:
            self.peak_gib = peak_gib(psutil.Process())
        if self.loop is not None:
            self.peers.append(self.loop.step(self.questions))
            peer = self.peers[-1]
            shown += f", loop {peer['step']:.2f} s ({peer['gen']:.2f} + {peer['update']:.2f})"
        logger.info("%s, load %.1f", shown, os.getloadavg()[0])


def peak_gib(*processes: psutil.Process) -> float:
    """Return an upper bound of the common peak memory in GiB: proportional set sizes plus each process's
    difference to its peak.
    """
    total = 0
    for process in processes:
        folder = Path("/proc") / str(process.pid)
        try:
            total += (
                _kib(folder / "smaps_rollup", "Pss:")
                + _kib(folder / "status", "VmHWM:")
                - _kib(folder / "status", "VmRSS:")
            )
        except (OSError, StopIteration):  # the process has ended
            continue
    return total / 2**20


def _kib(path: Path, name: str) -> int:
    return int(next(line for line in path.read_text().splitlines() if line.startswith(name)).split()[1])


def make_config(part: str, args: argparse.Namespace, folder: Path) -> RunConfig:
    """Return the configuration of a run with random models in `folder`, in which every agent is called once
    an episode.
    """
    from verl.trainer.plan.command_line import compose_config

    tree = part == "tree"
    width = TREE_PROMPT if tree else PROMPT
    count = args.tasks * (args.warmup + args.repeats) * (1 + tree)
    run_dir = folder / part
    run_dir.mkdir()
    rows = [
        {
            "prompt": [{"role": "user", "content": question(number, width - TEMPLATE)}],
            "data_source": "choir",
            "reward_model": {"ground_truth": "0"},
            "extra_info": {"index": number},
        }
        for number in range(count)
    ]
    (run_dir / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys: dict[str, Any] = {
        "agent.orchestra_type": part,
        "agent.agent_ids": list(TEAMS[part]),
        "env.env_name": "choir",
        "env.rollout.n": 1 if tree else args.group,
        "actor_rollout_ref.model.path": folder / "model",
        "actor_rollout_ref.actor.optim.lr": LR,
        "actor_rollout_ref.actor.optim.weight_decay": 0,
        "data.train_files": run_dir / "tasks.jsonl",
        "data.shuffle": False,
        "data.train_batch_size": args.tasks,
        "data.max_prompt_length": width,
        "data.max_response_length": min(args.tokens, TREE_TOKENS) if tree else args.tokens,
        "trainer.controller": "local" if tree else "ray",
        "trainer.device": "cpu",
        "trainer.default_local_dir": run_dir / "run",
        "trainer.total_training_steps": (args.warmup + args.repeats) * (1 + tree),
        "trainer.val_before_train": False,
        "trainer.save_freq": -1,
    }
    if len(TEAMS[part]) > 1:
        keys["agent.specialization"] = "full"
    if tree:
        keys |= {"algorithm.preset": "at_grpo", "rollout.tree.k": args.candidates}
    return compose_config([*overrides_of(keys), *args.overrides])


def without_stops(bindings: Mapping[str, Any]) -> dict[str, AgentBinding]:
    """Return the bindings of agents whose replies end at their limit alone."""
    return {
        name: replace(binding, sampling=replace(binding.sampling, stop_token_ids=()))
        for name, binding in bindings.items()
    }


def measure(part: str, args: argparse.Namespace, folder: Path) -> Watch:
    """Train as `main_ppo` does, with a `Watch` as collector and tracker, and return it."""
    from agent_system.launch.checks import check_run
    from agent_system.launch.collector import agent_bindings, collector_settings
    from verl.trainer.ppo.controller import build_controller
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.team import TeamWorkers

    config = make_config(part, args, folder)
    checked = check_run(config)
    loop = None if part == "tree" else LoopTeam(folder / "model", len(TEAMS[part]), args.group, args.tokens)
    controller = build_controller(config)
    team = TeamWorkers(config, checked.plan, controller)
    try:
        team.start()
        bindings = agent_bindings(config, checked.plan, checked.tokenizers, team.engines.clients)
        collector = Collector.from_names(
            orchestra_type=part,
            env_name="choir",
            bindings=without_stops(bindings),
            settings=collector_settings(config, checked.plan),
        )
        watch = Watch(collector, config.data.max_prompt_length, config.data.max_response_length, loop)
        # it stands for both: it begins and ends a step
        both: Any = watch
        trainer = RayPPOTrainer(config, checked.plan, team, both, checked.train, None, both, checked.run_dir)
        if part == "tree":
            # The local worker's engine, which exists once its model is loaded.
            load = team.init_model

            def init_model(*steps: int) -> None:
                load(*steps)
                watch.engine = next(iter(team.policies.values())).worker.engine  # type: ignore[attr-defined]

            team.init_model = init_model  # type: ignore[assignment, method-assign]
        trainer.fit()
        watch.peak_gib += peak_gib(*psutil.Process().children(recursive=True))
        return watch
    finally:
        team.shutdown()
        controller.shutdown()


def ratios(part: str, watch: Watch, warmup: int) -> dict[str, list[float]]:
    """Return the ratios of a part, each for every counted step."""
    if part != "tree":
        pairs = list(zip(watch.steps, watch.peers, strict=True))[warmup:]
        return {f"ratio_{len(TEAMS[part])}": [ours["step"] / loop["step"] for ours, loop in pairs]}
    pairs = list(zip(watch.steps[1::2], watch.steps[::2], strict=True))[warmup:]
    return {
        "ratio_tree_update": [a["update_actor"] / b["update_actor"] for a, b in pairs],
        "ratio_tree_step": [a["step"] / b["step"] for a, b in pairs],
    }


def medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each number."""
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[-1]}


def main() -> None:
    """Measure several steps of every part and report medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--group", type=int, default=8, help="replies to a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="of a reply")
    parser.add_argument("--candidates", type=int, default=4, help="of each call in a tree")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=2, help="steps of each part that are not counted")
    parser.add_argument("--repeats", type=int, default=5, help="counted steps")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads of the loop")
    parser.add_argument("overrides", nargs="*", help="hydra overrides of our runs")
    args = parse_args(parser, repeats=2, warmup=1)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    logger.setLevel(logging.INFO)
    torch.set_num_threads(args.threads)
    size = TinyModelSize(
        hidden_size=args.hidden,
        intermediate_size=3 * args.hidden,
        num_layers=args.layers,
        weight_std=0.02,
    )
    found: dict[str, list[float]] = {}
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        with without_progress_bars():
            make_tiny_model(Path(folder) / "model", [""], size=size, vocab_size=WORDS)
        for part in args.parts:
            logger.info("%s", part)
            watch = measure(part, args, Path(folder))
            found |= ratios(part, watch, args.warmup)
            if part == "tree":
                pairs = {"shared": watch.steps[1::2], "separate": watch.steps[::2]}
                result["tree_s"] = {name: medians(rows[args.warmup :]) for name, rows in pairs.items()}
                continue
            result.setdefault("ours_s", {})[part] = medians(watch.steps[args.warmup :])
            result.setdefault("loop_s", {})[part] = medians(watch.peers[args.warmup :])
            result.setdefault("rows", {})[part] = watch.rows
            result.setdefault("peak_gib", round(watch.peak_gib, 2))
    values = {name: round(statistics.median(numbers), 3) for name, numbers in found.items()}
    spread = {name: [round(min(numbers), 3), round(max(numbers), 3)] for name, numbers in found.items()}
    logger.info(json.dumps(values | {"spread": spread, "load": round(os.getloadavg()[0], 1)} | result))


if __name__ == "__main__":
    main()
