"""A whole training step of the trainer (collection to weight sync, on Ray) against a plain torch loop with
the same tokens, in one run.

    python benchmarks/train_step.py [--tasks 16] [--group 8] [--repeats 5] [key=value ...]

Ours: `RayPPOTrainer` as `verl.trainer.main_ppo` builds it, a Solver and a Verifier with a tiny model each,
every agent with `tasks * group` replies per step; a step lasts from the first prompt to the log of its
metrics, including files. After each step the plain loop processes the same prompts and reply lengths for one
model after the other, with all cores: batches of 64 sampled token by token with a key-value cache, then
forward, clipped loss, backward and AdamW. The first step of both is warm-up.

The last line is JSON: `ratio` is the median of (ours / bare) over the repeats, `cpu_ratio` the same for the
CPU seconds of all processes, and `peak_gib` an upper bound of the peak memory of all processes of the
trainer.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
import torch
from transformers import DynamicCache, PreTrainedModel

from agent_system.environment import Task
from agent_system.rollout.collector import CollectResult
from benchmarks.shared.short import parse_args
from examples.embedded.math.demos import MathCourse, make_demos
from examples.embedded.math.tasks import generate_split, to_row
from verl.models.loader import load_causal_lm, without_progress_bars
from verl.models.tiny import TinyModelSize, make_tiny_model
from verl.protocol import DataProto
from verl.trainer.config import RunConfig
from verl.trainer.plan.placement import build_placement
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.batching import split_batch_by_wg_ids, trim_padding

logger = logging.getLogger("train_step")
BATCH = 64


class BareTeam:
    """The plain loop: every model in this process, one after the other."""

    def __init__(self, model_dir: Path, count: int) -> None:
        torch.manual_seed(0)
        self.models = [
            load_causal_lm(str(model_dir), dtype=torch.float32, attn_implementation="sdpa")
            for _ in range(count)
        ]
        self.optimizers = [
            torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True) for model in self.models
        ]

    def step(self, parts: Sequence[DataProto]) -> dict[str, float]:
        """Sample from and update every model on its own rows; return the seconds."""
        started, cpu = time.perf_counter(), time.process_time()
        for model, part in zip(self.models, parts, strict=True):
            generate(model.eval(), part)
        sampled = time.perf_counter()
        for model, optimizer, part in zip(self.models, self.optimizers, parts, strict=True):
            update(model.train(), optimizer, part)
        ended = time.perf_counter()
        return {
            "gen": sampled - started,
            "update": ended - sampled,
            "step": ended - started,
            "cpu": time.process_time() - cpu,
        }


@torch.inference_mode()
def generate(model: PreTrainedModel, rows: DataProto) -> None:
    """Sample replies to the rows' prompts, each batch as long as its longest reply."""
    width = rows.batch["prompts"].shape[1]
    for begin in range(0, len(rows), BATCH):
        batch = rows.batch[begin : begin + BATCH]
        longest = int(batch["response_mask"].sum(dim=1).max())
        ids, mask = batch["prompts"], batch["attention_mask"][:, : width + longest].clone()
        mask[:, width:] = 1
        positions, cache, replies = batch["position_ids"][:, :width], DynamicCache(), []
        for seen in range(width, width + longest):
            logits = model(
                input_ids=ids,
                attention_mask=mask[:, :seen],
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            ids, positions = torch.multinomial(torch.softmax(logits.float(), -1), 1), positions[:, -1:] + 1
            replies.append(ids)
        assert torch.cat(replies, dim=1).shape == (len(batch), longest)


def update(model: PreTrainedModel, optimizer: torch.optim.Optimizer, rows: DataProto) -> None:
    """Make one optimizer step on all rows, in padded micro-batches."""
    total, width = rows.batch["response_mask"].sum(), rows.batch["responses"].shape[1]
    for begin in range(0, len(rows), BATCH):
        batch = rows.batch[begin : begin + BATCH]
        logits = model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            position_ids=batch["position_ids"],
            use_cache=False,
            logits_to_keep=width + 1,
        ).logits[:, :-1]
        log_probs = (
            torch.log_softmax(logits.float(), -1).gather(-1, batch["responses"][..., None]).squeeze(-1)
        )
        advantages, ratio = batch["advantages"], torch.exp(log_probs - log_probs.detach())
        losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))
        ((losses * batch["response_mask"]).sum() / total).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


@dataclass
class Comparison:
    """Collector and tracker of the trainer at once, which time every step and repeat it with the
    plain loop.
    """

    collector: Any
    bare: BareTeam
    started: float = 0.0
    cpu: float = 0.0
    batch: DataProto | None = None
    ours: list[dict[str, float]] = field(default_factory=list)
    theirs: list[dict[str, float]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    tokens: int = 0
    peak_gib: float = 0.0

    async def collect(
        self, tasks: Sequence[Task], n: int, *, step: int, validate: bool = False
    ) -> CollectResult:
        """Play the episodes and keep their batch."""
        self.started, self.cpu = time.perf_counter(), cpu_seconds()
        result = await self.collector.collect(tasks, n, step=step, validate=validate)
        self.batch = result.batch
        return result

    def start(self, total_steps: int) -> None:
        """Do nothing."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Stop the time of the trainer's step and run the plain loop on the same rows."""
        whole = time.perf_counter() - self.started - metrics.get("timing_s/save_checkpoint", 0.0)
        phases = {
            name.removeprefix("timing_s/"): value
            for name, value in metrics.items()
            if name.startswith("timing_s/")
        }
        self.ours.append(phases | {"step": whole, "cpu": cpu_seconds() - self.cpu})
        if not self.theirs:
            self.peak_gib = peak_gib(psutil.Process())
        assert self.batch is not None
        self.batch.batch["advantages"] = torch.randn(self.batch.batch["responses"].shape)
        parts = [trim_padding(part.batch) for part in split_batch_by_wg_ids(self.batch).values()]
        self.rows = [len(part) for part in parts]
        self.tokens = int(self.batch.batch["response_mask"].sum())
        self.theirs.append(self.bare.step(parts))
        sizes = "  ".join(
            f"{len(p)} rows {p.batch['prompts'].shape[1]}+{p.batch['responses'].shape[1]}" for p in parts
        )
        logger.info(
            "step %d: ours %.2f s, bare %.2f s, ratio %.2f, load %.1f  (%s)",
            step, whole, self.theirs[-1]["step"], whole / self.theirs[-1]["step"], os.getloadavg()[0], sizes,
        )  # fmt: skip


def cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants."""
    me = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (me, *me.children(recursive=True)))


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


def make_config(args: argparse.Namespace, folder: Path) -> RunConfig:
    """Return the configuration of a run with tiny random models in `folder`, in which every agent is called
    once per episode.
    """
    from verl.trainer.plan.command_line import compose_config

    problems, _ = generate_split(args.tasks * 2, 8, 0)
    size = TinyModelSize(hidden_size=args.hidden, intermediate_size=3 * args.hidden)
    conversations = make_demos(MathCourse(count=400), 0, exclude=frozenset())
    with without_progress_bars():
        make_tiny_model(
            folder / "model",
            (m["content"] for conversation in conversations for m in conversation),
            size=size,
        )
    (folder / "tasks.jsonl").write_text(
        "".join(json.dumps(to_row(p, i, "train")) + "\n" for i, p in enumerate(problems))
    )
    base = {
        "actor_rollout_ref.model.path": folder / "model",
        "agent.orchestra.math.max_loop_num": 1,
        "agent.orchestra.math.verify_last": True,
        "agent.orchestra.math.prompt_style": args.prompts,
        "env.rollout.n": args.group,
        "data.train_files": folder / "tasks.jsonl",
        "data.train_batch_size": args.tasks,
        "data.max_prompt_length": 512,
        "data.max_response_length": args.tokens,
        "trainer.device": "cpu",
        "trainer.default_local_dir": folder / "run",
        "trainer.total_training_steps": args.repeats + 1,
        "trainer.val_before_train": False,
    }
    overrides = [f"{name}={value}" for name, value in base.items()] + args.overrides
    return compose_config(overrides)


def measure(config: RunConfig) -> Comparison:
    """Train as `main_ppo` does, with a `Comparison` as collector and tracker, and return it."""
    from agent_system.launch.checks import build_datasets
    from agent_system.launch.collector import build_collector
    from agent_system.launch.first_checks import check_team
    from verl.trainer.plan.derived_values import load_group_tokenizer, resolve_defaults, run_dir_of
    from verl.trainer.ppo.controller import build_controller
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.team import TeamWorkers

    resolve_defaults(config)
    check_team(config)
    plan = RunPlan.of(config, build_placement(config.agent, config.actor_rollout_ref))
    tokenizers = {group.wg_id: load_group_tokenizer(group) for group in plan.groups}
    train, _ = build_datasets(config.data, config.env, config.trainer, next(iter(tokenizers.values())))
    run_dir = run_dir_of(config.trainer)
    controller = build_controller(config)
    team = TeamWorkers(config, plan, controller)
    try:
        team.start()
        collector = build_collector(config, plan, tokenizers, team.engines.clients)
        comparison = Comparison(
            collector, BareTeam(Path(str(config.actor_rollout_ref.model.path)), len(plan.groups))
        )
        RayPPOTrainer(config, plan, team, comparison, train, None, comparison, run_dir).fit()  # type: ignore[arg-type]
        comparison.peak_gib += peak_gib(*psutil.Process().children(recursive=True))
        return comparison
    finally:
        team.shutdown()
        controller.shutdown()


def main() -> None:
    """Measure several steps and report medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48, help="maximum length of a reply")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads of the plain loop")
    parser.add_argument(
        "--prompts",
        choices=("short", "full"),
        default="short",
        help="wording: agent.orchestra.math.prompt_style",
    )
    parser.add_argument("overrides", nargs="*", help="hydra overrides of our run")
    args = parse_args(parser, repeats=2)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    logger.setLevel(logging.INFO)
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        comparison = measure(make_config(args, Path(folder)))
    ours, theirs = comparison.ours[1:], comparison.theirs[1:]
    ratios = [mine["step"] / other["step"] for mine, other in zip(ours, theirs, strict=True)]

    def median(rows: list[dict[str, float]]) -> dict[str, float]:
        names = rows[-1]
        return {name: round(statistics.median(row[name] for row in rows if name in row), 3) for name in names}

    cpu_ratios = [mine["cpu"] / other["cpu"] for mine, other in zip(ours, theirs, strict=True)]
    result = {
        "ratio": round(statistics.median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "cpu_ratio": round(statistics.median(cpu_ratios), 3),
        "ours_s": median(ours),
        "bare_s": median(theirs),
        "rows": comparison.rows,
        "reply_tokens": comparison.tokens,
        "peak_gib": round(comparison.peak_gib, 2),
        "load": round(os.getloadavg()[0], 1),
    }
    logger.info(json.dumps(result))


if __name__ == "__main__":
    main()
