"""Tokens per second of an engine against `transformers` static-cache `generate`, same model, same slots, same
run.

    python benchmarks/rollout.py [--engine hf] [--device cpu] [--hidden 128] [--layers 4] [--slots 64] [--equal-tokens 128] [--repeats 3]
    python benchmarks/rollout.py --window 128 --prompt 1792 --equal-tokens 256 --slots 16

equal: as many requests as slots, all of the same length, at once. staggered: reply lengths uniform in
8..`--longest`, a slot gets its next request when one ends (the peer runs batches of `slots` until their
longest reply ends). End-of-text is disabled on both sides, and only requested tokens count. Rounds alternate;
the last line is the median ratio of each, and with `--device cuda` the engine's median tokens per second too.
Weights are random, in bf16 on a GPU, where the peer and `hf` do not compile the model, and `vllm` does. With
`--window` the engine runs the same model with and without a sliding window in every layer, in equal rounds
alone, and the last line is the median ratio of their tokens per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from transformers import GenerationConfig

from benchmarks.shared.device import add_device, add_model_sizes, check_device, now, random_model
from benchmarks.shared.short import parse_args
from verl.protocol.generate import GenerateRequest, SamplingParams
from verl.trainer.config import ActorRolloutRefConfig, ModelConfig, RolloutConfig
from verl.workers.rollout.base import RolloutEngine
from verl.workers.rollout.server import build_engine


def make_requests(lengths: Sequence[int], seed: int, args: argparse.Namespace) -> list[GenerateRequest]:
    """Return requests with different random prompts."""
    rng = random.Random(seed)
    prompts = [tuple(rng.randrange(args.vocab) for _ in range(args.prompt)) for _ in lengths]
    return [
        GenerateRequest(p, SamplingParams(n), seed=seed * 10_000 + i)
        for i, (p, n) in enumerate(zip(prompts, lengths, strict=True))
    ]


def start_engine(model: Any, limit: int, args: argparse.Namespace) -> RolloutEngine:
    """Return the engine `--engine` with these weights, for at most `limit` tokens of prompt and reply."""
    rollout = RolloutConfig(
        name=args.engine, max_num_seqs=args.slots, gpu_memory_utilization=0.5, free_cache_engine=False
    )
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = ActorRolloutRefConfig(model=ModelConfig(path=folder), rollout=rollout)
        engine = build_engine(
            config, max_model_len=limit, device=args.device, seed=0, num_threads=args.threads
        )
    engine.update_weights({name: p.detach() for name, p in model.named_parameters()}, version=1)
    return engine


def run_engine(
    engine: RolloutEngine, requests: Sequence[GenerateRequest], concurrent: int
) -> tuple[float, float]:
    """Return the seconds and CPU seconds of all requests, with `concurrent` requests in flight."""

    async def main() -> None:
        queue = list(reversed(requests))

        async def client() -> None:
            while queue:
                request = queue.pop()
                (reply,) = await engine.generate(request)
                assert len(reply.token_ids) == request.sampling.max_tokens

        await asyncio.gather(*(client() for _ in range(concurrent)))

    started, cpu = now(), time.process_time()
    asyncio.run(main())
    return now() - started, time.process_time() - cpu


def run_peer(model: Any, requests: Sequence[GenerateRequest], slots: int) -> tuple[float, float]:
    """Return the seconds and CPU seconds of all requests in batches of `slots`, each batch as long as its
    longest reply.
    """
    started, cpu = now(), time.process_time()
    for begin in range(0, len(requests), slots):
        batch = requests[begin : begin + slots]
        longest = max(request.sampling.max_tokens for request in batch)
        settings = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=longest, eos_token_id=None,
            pad_token_id=0,
            cache_implementation="static", disable_compile=True,
        )  # fmt: skip
        ids = torch.tensor([request.prompt_ids for request in batch], device=model.device)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        assert out.shape[1] == ids.shape[1] + longest
    return now() - started, time.process_time() - cpu


def compare_windows(args: argparse.Namespace) -> None:
    """Print the tokens per second of the engine with a sliding window relative to those without."""
    limit = args.prompt + args.equal_tokens
    models = {"window": random_model(args, window=args.window), "full": random_model(args)}
    engines = {name: start_engine(model, limit, args) for name, model in models.items()}
    ratios = []
    for repeat in range(-1, args.repeats):  # the first round is a warm-up
        wanted = [8 if repeat < 0 else args.equal_tokens] * args.slots
        seconds = {}
        cpu = {}
        for name, engine in engines.items():
            seconds[name], cpu[name] = run_engine(engine, make_requests(wanted, repeat + 1, args), args.slots)
        if repeat >= 0:
            ratios.append(seconds["full"] / seconds["window"])
            rates = ", ".join(f"{name} {sum(wanted) / value:.0f} tokens/s" for name, value in seconds.items())
            of_cpu = f"CPU time {cpu['full'] / cpu['window']:.2f}"
            sys.stdout.write(f"seed {repeat}: {rates}, ratio {ratios[-1]:.2f} ({of_cpu})\n")
            sys.stdout.flush()
    for engine in engines.values():
        engine.close()
    sys.stdout.write(json.dumps({"window": round(statistics.median(ratios), 3)}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_device(parser)
    parser.add_argument("--engine", choices=("hf", "vllm"), default="hf")
    add_model_sizes(parser, vocab=1024)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument(
        "--longest", type=int, default=256, help="longest reply of a staggered round, at least 8"
    )
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--requests", type=int, default=256, help="requests of a staggered round")
    parser.add_argument("--equal-tokens", type=int, default=128, help="reply length of an equal round")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--window",
        type=int,
        help="compare the engine with itself: a sliding window in every layer against none",
    )
    args = parse_args(parser, repeats=1, requests=128)
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    check_device(args.device)
    if args.window is not None:
        compare_windows(args)
        return
    limit = args.prompt + max(args.longest, args.equal_tokens)
    peer = random_model(args).eval()
    engine = start_engine(peer, limit, args)
    warm_up = make_requests([8] * args.slots, 99, args)
    run_engine(engine, warm_up, args.slots), run_peer(peer, warm_up, args.slots)
    ratios: dict[str, list[float]] = {"equal": [], "staggered": []}
    rates: dict[str, list[float]] = {"equal": [], "staggered": []}
    for repeat in range(args.repeats):
        rng = random.Random(repeat)
        lengths = {
            "equal": [args.equal_tokens] * args.slots,
            "staggered": [rng.randint(8, args.longest) for _ in range(args.requests)],
        }
        for name, wanted in lengths.items():
            requests = make_requests(wanted, repeat, args)
            mine, my_cpu = run_engine(engine, requests, args.slots)
            theirs, their_cpu = run_peer(peer, requests, args.slots)
            ratios[name].append(theirs / mine)
            rates[name].append(sum(wanted) / mine)
            shown = f"engine {sum(wanted) / mine:.0f} tokens/s, peer {sum(wanted) / theirs:.0f}"
            sys.stdout.write(
                f"{name} seed {repeat}: {shown}, ratio {theirs / mine:.2f} (CPU time "
                f"{their_cpu / my_cpu:.2f})\n"
            )
            sys.stdout.flush()
    engine.close()
    for name, values in ratios.items():
        sys.stdout.write(
            f"{name}: min {min(values):.2f} median {statistics.median(values):.2f} max {max(values):.2f}\n"
        )
    result = {name: round(statistics.median(values), 3) for name, values in ratios.items()}
    if args.device != "cpu":
        result |= {f"{name}_tokens_per_s": round(statistics.median(values)) for name, values in rates.items()}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
