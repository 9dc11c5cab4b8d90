"""Adapters of one base together, against one adapter on the same rows, in one run.

    python benchmarks/adapters.py [--rows 64] [--few-rows 16] [--rank 8] [--rounds 7]

`update_4` and `update_16` are the CPU seconds of one update of 4 and of 16 adapters, which have
`--rows` rows in all, relative to those of one adapter with all of these rows; `update_16_few_rows`
is the same with `--few-rows`; `serial_16` and `serial_16_few_rows` update the 16 one after the
other instead, as adapters of models that cannot run them together are. `decode_16` are the CPU
seconds of the `hf` engine for replies to `--rows` prompts under 16 adapters, relative to those
under one. Every ratio is the median of rounds that measure all sides one after the other; `spread`
has the lowest and the highest. Weights and tokens are random, and rows have nothing in common. The
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.shared.device import add_model_sizes, random_model
from benchmarks.shared.short import parse_args
from verl.models.loader import without_progress_bars
from verl.protocol import DataProto
from verl.protocol.generate import GenerateRequest, SamplingParams
from verl.trainer.config import ActorConfig, ActorRolloutRefConfig, ModelConfig, OptimConfig, RolloutConfig
from verl.workers.policy_worker import PolicyWorker
from verl.workers.rollout.base import RolloutEngine
from verl.workers.rollout.server import build_engine

COUNTS = (1, 4, 16)


def config_of(folder: str, args: argparse.Namespace) -> ActorRolloutRefConfig:
    """Return the configuration of an adapter and of its base."""
    return ActorRolloutRefConfig(
        model=ModelConfig(path=folder, lora_rank=args.rank, lora_alpha=2 * args.rank),
        actor=ActorConfig(optim=OptimConfig(lr=1e-5)),
        rollout=RolloutConfig(max_num_seqs=args.rows),
    )


def names_of(count: int) -> list[str]:
    """Return the names of so many adapters."""
    return [f"agent_{number}" for number in range(count)]


def make_worker(count: int, folder: str, args: argparse.Namespace) -> PolicyWorker:
    """Return a worker with so many adapters on the model in a folder."""
    config = config_of(folder, args)
    worker = PolicyWorker(
        config,
        use_reference=False,
        seed=0,
        device="cpu",
        num_threads=args.threads,
        adapters=dict.fromkeys(names_of(count), config),
    )
    worker.init_model()
    return worker


def make_rows(count: int, args: argparse.Namespace) -> dict[str, torch.Tensor]:
    """Return random rows."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, args.vocab, (count, args.prompt + args.reply), generator=generator)
    shape = (count, args.reply)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.arange(ids.shape[1]).expand_as(ids).clone(),
        "responses": ids[:, args.prompt :].clone(),
        "response_mask": torch.ones(shape, dtype=torch.long),
        "advantages": torch.randn(shape, generator=generator),
        "old_log_probs": torch.full(shape, -math.log(args.vocab)),
    }


def update(worker: PolicyWorker, count: int, rows: dict[str, torch.Tensor], together: bool) -> None:
    """Update so many adapters with an equal share of the rows each."""
    metas = [{"adapter": name, "temperature": 1.0} for name in names_of(count)]
    index = torch.arange(len(rows["input_ids"])) * count // len(rows["input_ids"])
    if together and count > 1:
        worker.update_actor(
            DataProto.from_dict(tensors=rows | {"adapter_index": index}, meta_info={"adapters": metas})
        )
        return
    for number, meta in enumerate(metas):
        own = {name: value[index == number] for name, value in rows.items()}
        worker.update_actor(DataProto.from_dict(tensors=own, meta_info=meta))


def make_engine(worker: PolicyWorker, count: int, folder: str, args: argparse.Namespace) -> RolloutEngine:
    """Return an engine with so many adapters, which have the weights of a worker's."""
    config = config_of(folder, args)
    engine = build_engine(
        config,
        max_model_len=args.prompt + args.reply,
        device="cpu",
        seed=0,
        num_threads=args.threads,
        adapters=dict.fromkeys(names_of(count), config),
    )
    for name in names_of(count):
        engine.update_weights(dict(worker.engine.weights(name)), adapter=name, version=1)
    return engine


def decode(
    engine: RolloutEngine, count: int, rows: dict[str, torch.Tensor], args: argparse.Namespace
) -> None:
    """Sample a reply to the prompt of each row, under one adapter after the other."""
    prompts = rows["input_ids"][:, : args.prompt].tolist()
    requests = [
        GenerateRequest(
            tuple(prompt), SamplingParams(args.reply), seed=number, adapter=names_of(count)[number % count]
        )
        for number, prompt in enumerate(prompts)
    ]

    async def main() -> None:
        await asyncio.gather(*(engine.generate(request) for request in requests))

    asyncio.run(main())


def cpu_seconds(call: Callable[[], object]) -> float:
    """Return the CPU seconds of this process in a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def measure(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each run in each round, after one of warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            taken = cpu_seconds(run)
            if number:
                seconds[name].append(taken)
        if number:
            shown = "  ".join(f"{name} {taken[-1]:.2f} s" for name, taken in seconds.items())
            sys.stdout.write(f"round {number} of {rounds}: {shown}\n")
            sys.stdout.flush()
    return seconds


def ratios_of(seconds: dict[str, list[float]], names: Sequence[str], of: str) -> dict[str, list[float]]:
    """Return the ratios of some runs to another in each round."""
    return {
        name: [one / other for one, other in zip(seconds[name], seconds[of], strict=True)] for name in names
    }


def main() -> None:
    """Measure rounds of updates and of decoding, and report medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_model_sizes(parser, vocab=512)
    parser.set_defaults(hidden=256, head_dim=64)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--few-rows", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=42, help="tokens of a prompt")
    parser.add_argument("--reply", type=int, default=32, help="tokens of a reply")
    parser.add_argument("--rank", type=int, default=8, help="of every adapter")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    args = parse_args(parser, rounds=3)
    args.device = "cpu"
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder, without_progress_bars():
        random_model(args, "fp32").save_pretrained(folder)
        workers = {count: make_worker(count, folder, args) for count in COUNTS}
        engines = {count: make_engine(workers[count], count, folder, args) for count in (1, 16)}
    ratios: dict[str, list[float]] = {}
    for size, end in ((args.rows, ""), (args.few_rows, "_few_rows")):
        rows = make_rows(size, args)
        runs: dict[str, Callable[[], object]] = {
            f"update_{count}{end}": partial(update, workers[count], count, rows, True) for count in COUNTS
        }
        runs[f"serial_16{end}"] = partial(update, workers[16], 16, rows, False)
        seconds = measure(runs, args.rounds)
        ratios |= ratios_of(seconds, [name for name in runs if "_1_" not in f"{name}_"], f"update_1{end}")
    rows = make_rows(args.rows, args)
    seconds = measure(
        {f"decode_{count}": partial(decode, engine, count, rows, args) for count, engine in engines.items()},
        args.rounds,
    )
    ratios |= ratios_of(seconds, ["decode_16"], "decode_1")
    result: dict[str, object] = {name: round(statistics.median(found), 3) for name, found in ratios.items()}
    result["spread"] = {name: [round(min(found), 3), round(max(found), 3)] for name, found in ratios.items()}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
