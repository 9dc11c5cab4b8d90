"""Memory and time of an update of a model with a large vocabulary, with scores computed in the head against
whole logits.

    python benchmarks/memory.py [--tokens 4096] [--vocab 151936] [--hidden 256] [--repeats 3] [--short]

Both ways are `actor_rollout_ref.model.use_fused_kernels`. An update trains all weights on `--tokens` response
tokens in one micro-batch. Its peak is measured in a process of its own, above what the process holds between
two updates: weights, gradients, states of the optimizer. Times are CPU seconds, of rounds that alternate
between both ways in one process.

The last line is JSON: `peak_ratio` (highest bytes of an update, in the head / whole logits), `time_ratio`
(the head alone, forward and backward, at `--head-hidden` and `--head-tokens`), `time_ratio_frozen` (the same
with a head that is not trained, as with adapters), `time_ratio_update` (the update whose peak is measured),
`time_ratio_512` (an update at 512 words); medians, `spread` has the lowest and the highest of each.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.shared.device import random_model
from benchmarks.shared.short import parse_args
from verl.trainer.config import ActorConfig, FSDPConfig, ModelConfig, OptimConfig
from verl.workers.engine import FSDPEngine, MicroBatchRule, UpdatePlan, init_mesh, update_policy
from verl.workers.engine.head_scores import Head, ScoreRequest, token_scores

ROOT = Path(__file__).resolve().parents[1]
WAYS = {"head": True, "logits": False}
PROMPT = 32
RESPONSE = 64
FEW_WORDS = 512
MIB = 2**20


def make_rows(tokens: int, vocab: int) -> dict[str, torch.Tensor]:
    """Return random rows with so many response tokens in all, without anything in common."""
    generator = torch.Generator().manual_seed(0)
    count = max(1, tokens // RESPONSE)
    ids = torch.randint(3, vocab, (count, PROMPT + RESPONSE), generator=generator)
    replies = torch.ones(count, RESPONSE, dtype=torch.long)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.arange(ids.shape[1]).expand_as(ids).clone(),
        "responses": ids[:, PROMPT:].clone(),
        "response_mask": replies,
        "advantages": torch.randn(replies.shape, generator=generator),
        "old_log_probs": torch.full(replies.shape, -math.log(vocab)),
    }


def make_updates(
    args: argparse.Namespace, vocab: int, tokens: int, *ways: str
) -> list[Callable[..., object]]:
    """Return the update of an engine for each way, from the same weights on the same rows; its argument is
    how many of them, without it all.
    """
    sizes = argparse.Namespace(
        vocab=vocab, hidden=args.hidden, layers=args.layers, head_dim=args.head_dim, device="cpu"
    )
    rows = make_rows(tokens, vocab)
    rule = MicroBatchRule(None, len(rows["input_ids"]), packed=True)
    engines = []
    with tempfile.TemporaryDirectory() as folder:
        random_model(sizes, "fp32").save_pretrained(folder)
        for way in ways:
            engines.append(
                FSDPEngine(
                    ModelConfig(path=folder), FSDPConfig(), OptimConfig(), init_mesh("cpu", 0, 1),
                    fused_head=WAYS[way],
                )
            )  # fmt: skip
    config = ActorConfig(ppo_micro_batch_size_per_gpu=8)

    def update(engine: FSDPEngine, count: int | None = None) -> object:
        some = {name: value[:count] for name, value in rows.items()}
        return update_policy(engine, config, some, UpdatePlan(temperature=1.0), rule)

    return [partial(update, engine) for engine in engines]


def resident(field: str) -> int:
    """Return a field of this process's memory in bytes: `VmRSS` now, `VmHWM` the highest."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field)]
    return int(line.split()[1]) * 1024


def peak(args: argparse.Namespace) -> int:
    """Return by how much an update's highest memory exceeds that between two updates."""
    (update,) = make_updates(args, args.vocab, args.tokens, args.peak)
    update(1)  # makes the states of the optimizer
    idle = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest is from now on
    update()
    return resident("VmHWM") - idle


def peaks(args: argparse.Namespace) -> dict[str, list[float]]:
    """Return the peaks of both ways in MiB, each of a process of its own."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    names = ("tokens", "vocab", "hidden", "layers", "head_dim")
    sizes = [word for name in names for word in (f"--{name.replace('_', '-')}", str(getattr(args, name)))]
    for _ in range(args.peak_repeats):
        for way in WAYS:
            command = [sys.executable, __file__, "--peak", way, *sizes]
            done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
            found[way].append(int(done.stdout.splitlines()[-1]) / MIB)
            sys.stdout.write(f"peak, {way}: {found[way][-1]:,.0f} MiB\n")
            sys.stdout.flush()
    return found


def ratios(name: str, repeats: int, *runs: Callable[[], object]) -> list[float]:
    """Return the CPU seconds of the first / of the second, for each round behind one of warm-up."""
    found = []
    for turn in range(repeats + 1):
        seconds = []
        for run in runs:
            start = time.process_time()
            run()
            seconds.append(time.process_time() - start)
        if turn:
            found.append(seconds[0] / seconds[1])
            sys.stdout.write(f"{name}: {seconds[0]:.2f} s, whole logits {seconds[1]:.2f} s\n")
            sys.stdout.flush()
    return found


def head_runs(args: argparse.Namespace, frozen: bool) -> list[Callable[[], object]]:
    """Return forward and backward of a head alone, both ways."""
    torch.manual_seed(0)
    hidden = torch.randn(args.head_tokens, args.head_hidden, requires_grad=True)
    weight = (torch.randn(args.vocab, args.head_hidden) / args.head_hidden**0.5).requires_grad_(not frozen)
    gradient = torch.randn(args.head_tokens)
    request = ScoreRequest(torch.randint(0, args.vocab, (args.head_tokens,)), entropy_gradient=False)

    def run(head: Head | None) -> None:
        outputs = hidden if head is not None else torch.nn.functional.linear(hidden, weight)
        token_scores(outputs, request, head).log_probs.backward(gradient)
        hidden.grad = None
        weight.grad = None

    return [lambda: run(Head(weight)), lambda: run(None)]


def middle(values: list[float]) -> float:
    """Return the median, to three digits behind the point."""
    return round(statistics.median(values), 3)


def main() -> None:
    """Print the repeats, and the medians as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=4096, help="response tokens of an update")
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--head-hidden", type=int, default=1024, help="hidden size of the head alone")
    parser.add_argument("--head-tokens", type=int, default=1024, help="tokens of the head alone")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peak-repeats", type=int, default=3)
    parser.add_argument("--peak", choices=tuple(WAYS), help=argparse.SUPPRESS)
    args = parse_args(parser, tokens=1024, repeats=2, peak_repeats=1, head_tokens=512)
    torch.set_num_threads(1)
    if args.peak:
        sys.stdout.write(f"{peak(args)}\n")
        return
    found_peaks = peaks(args)
    found: dict[str, list[float]] = {
        "peak_ratio": [a / b for a, b in zip(found_peaks["head"], found_peaks["logits"], strict=True)]
    }
    found["time_ratio"] = ratios("head", args.repeats, *head_runs(args, frozen=False))
    found["time_ratio_frozen"] = ratios("frozen head", args.repeats, *head_runs(args, frozen=True))
    few = make_updates(args, FEW_WORDS, args.tokens, *WAYS)
    found["time_ratio_512"] = ratios(f"update, {FEW_WORDS} words", 3 * args.repeats, *few)
    large = make_updates(args, args.vocab, args.tokens, *WAYS)
    found["time_ratio_update"] = ratios("update", args.repeats, *large)
    result: dict[str, Any] = {name: middle(values) for name, values in found.items()}
    result |= {f"{way}_mib": round(statistics.median(values)) for way, values in found_peaks.items()}
    result["spread"] = {name: [round(min(v), 3), round(max(v), 3)] for name, v in found.items()}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
