"""Tokens per second of an engine against `transformers` static-cache `generate`, same model, same
slots, same run.

    python benchmarks/rollout.py [--engine hf] [--device cpu] [--hidden 128] [--slots 64]
    python benchmarks/rollout.py --engine hf,vllm [--models 4x256,12x512] [--prompts 64,512]
    python benchmarks/rollout.py --window 128 --prompt 1792 --equal-tokens 256 --slots 16

equal: as many requests as slots, all of the same length, at once. staggered: reply lengths uniform
in 8..`--longest`, a slot gets its next request when one ends (the peer runs batches of `slots`
until their longest reply ends). prefix: `--prefix-slots` requests whose prompts begin with the same
`--shared` tokens. delay: CPU seconds of a decode step, 99th percentile, while a prompt of `--long`
tokens is computed / before; the other replies fill all slots but one and have prompts of `--shared`
tokens and more. End-of-text is disabled on both sides, and only requested tokens count. Rounds
alternate; the last line is the median of each with `spread`, the lowest and highest, and with
`--device cuda` the engine's median tokens per second too. Weights are random, in bf16 on a GPU,
where the peer and `hf` do not compile the model, and `vllm` does.

With `--engine hf,vllm` the engines take turns with the same requests, for every model, number of
requests and length of prompts; `over_vllm` is the smallest of the median ratios of their tokens per
second. With `--window` the engine runs the same model with and without a sliding window in every
layer, in equal rounds alone, and the last line is the median ratio of their tokens per second.
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

WARM_STEPS = 8
DELAY_STEPS = 72  # decode steps before the long prompt comes


def make_requests(
    lengths: Sequence[int], seed: int, args: argparse.Namespace, shared: int = 0, prompt: int | None = None
) -> list[GenerateRequest]:
    """Return requests with different random prompts of `prompt` tokens, after `shared` that are the
    same.
    """
    rng = random.Random(seed)
    beginning = tuple(rng.randrange(args.vocab) for _ in range(shared))
    own = args.prompt if prompt is None else prompt
    prompts = [beginning + tuple(rng.randrange(args.vocab) for _ in range(own)) for _ in lengths]
    return [
        GenerateRequest(p, SamplingParams(n), seed=seed * 10_000 + i)
        for i, (p, n) in enumerate(zip(prompts, lengths, strict=True))
    ]


def start_engine(
    model: Any, limit: int, args: argparse.Namespace, name: str | None = None, slots: int | None = None
) -> RolloutEngine:
    """Return an engine (`--engine`) with these weights, for at most `limit` tokens of prompt and
    reply.
    """
    rollout = RolloutConfig(
        name=name or args.engine,
        max_num_seqs=slots or args.slots,
        gpu_memory_utilization=0.5,
        free_cache_engine=False,
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
    """Return the seconds and CPU seconds of all requests in batches of `slots`, each batch as long
    as its longest reply.
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
        # transformers makes a static cache at least as long as those before, and attends to all of it.
        model.__dict__.pop("_previous_max_cache_length", None)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        assert out.shape[1] == ids.shape[1] + longest
    return now() - started, time.process_time() - cpu


def step_delay(engine: RolloutEngine, seed: int, args: argparse.Namespace) -> float:
    """Return the 99th percentile of the CPU seconds of a decode step while a long prompt is
    computed, relative to the steps before.
    """
    slots = args.prefix_slots
    passes = args.long // 32  # more steps than the prompt has passes
    others = make_requests([DELAY_STEPS + passes] * (slots - 1), seed, args, shared=args.shared)
    (long,) = make_requests([1], seed + 1, args, prompt=args.long)
    before: list[float] = []
    beside: list[float] = []

    async def until(count: int | None, flight: asyncio.Future[Any], times: list[float]) -> None:
        """Note the CPU seconds of `count` steps in which all others are sampled; of all until
        `flight` ends for None.
        """
        sampled = engine.stats()["sampled"]
        started = time.process_time()
        while not flight.done() and (count is None or len(times) < count):
            await asyncio.sleep(0)
            if (now_sampled := engine.stats()["sampled"]) > sampled:
                times += [time.process_time() - started] * (now_sampled - sampled >= len(others))
                sampled = now_sampled
                started = time.process_time()

    async def main() -> None:
        running = asyncio.gather(*(engine.generate(one) for one in others))
        await until(WARM_STEPS, running, [])
        await until(DELAY_STEPS - WARM_STEPS, running, before)
        await until(None, asyncio.ensure_future(engine.generate(long)), beside)
        await running

    asyncio.run(main())
    return percentile(beside) / percentile(before)


def percentile(values: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def parse_list(text: str) -> list[int]:
    """Return the numbers of a list with commas."""
    return [int(word) for word in text.split(",")]


def compare_engines(args: argparse.Namespace) -> None:
    """Print the tokens per second of the first engine relative to the second, at several sizes."""
    names = args.engine.split(",")
    medians: dict[str, float] = {}
    spread: dict[str, list[float]] = {}
    for size in args.models.split(","):
        args.layers, args.hidden = (int(word) for word in size.split("x"))
        args.head_dim = 64
        model = random_model(args).eval()
        limit = max(parse_list(args.prompts)) + args.equal_tokens
        slots = max(parse_list(args.requests_at_once))
        engines = {name: start_engine(model, limit, args, name, slots) for name in names}
        for prompt in parse_list(args.prompts):
            for count in parse_list(args.requests_at_once):
                ratios = []
                for repeat in range(-1, args.repeats):  # the first round is a warm-up
                    wanted = [8 if repeat < 0 else args.equal_tokens] * count
                    rounds = [
                        run_engine(engine, make_requests(wanted, repeat + 1, args, prompt=prompt), count)[0]
                        for engine in engines.values()
                    ]
                    ratios += [rounds[1] / rounds[0]] * (repeat >= 0)
                at = f"{size} {count} x {prompt}"
                medians[at] = statistics.median(ratios)
                spread[at] = [round(min(ratios), 3), round(max(ratios), 3)]
                sys.stdout.write(f"{at}: {medians[at]:.2f} {spread[at]}\n")
                sys.stdout.flush()
        for engine in engines.values():
            engine.close()
    worst = min(medians, key=lambda at: medians[at])
    result = {f"over_{names[1]}": round(medians[worst], 3), "spread": spread[worst], "at": worst}
    sys.stdout.write(json.dumps(result) + "\n")


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
    parser.add_argument("--engine", choices=("hf", "vllm", "hf,vllm"), default="hf")
    add_model_sizes(parser, vocab=1024)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument(
        "--longest", type=int, default=256, help="longest reply of a staggered round, at least 8"
    )
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--requests", type=int, default=256, help="requests of a staggered round")
    parser.add_argument("--equal-tokens", type=int, default=128, help="reply length of an equal round")
    parser.add_argument("--shared", type=int, default=1024, help="tokens that prompts begin with")
    parser.add_argument("--prefix-slots", type=int, default=64, help="slots of prefix and delay")
    parser.add_argument("--long", type=int, default=4096, help="tokens of the prompt that delays others")
    parser.add_argument("--models", default="4x256,12x512", help="layers x hidden size, of two engines")
    parser.add_argument("--requests-at-once", default="1,8,64", help="of two engines")
    parser.add_argument("--prompts", default="64,512", help="tokens of prompts of two engines")
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
    if "," in args.engine:
        compare_engines(args)
        return
    peer = random_model(args).eval()
    values = measure(peer, args)
    for name, ratios in values.items():
        sys.stdout.write(
            f"{name}: min {min(ratios):.2f} median {statistics.median(ratios):.2f} max {max(ratios):.2f}\n"
        )
    result: dict[str, Any] = {name: round(statistics.median(ratios), 3) for name, ratios in values.items()}
    result["spread"] = {
        name: [round(min(ratios), 3), round(max(ratios), 3)]
        for name, ratios in values.items()
        if not name.endswith("_per_s")
    }
    sys.stdout.write(json.dumps(result) + "\n")


def measure(peer: Any, args: argparse.Namespace) -> dict[str, list[float]]:
    """Return the values of every round, by name."""
    limit = args.prompt + max(args.longest, args.equal_tokens)
    engine = start_engine(peer, limit, args)
    warm_up = make_requests([8] * args.slots, 99, args)
    run_engine(engine, warm_up, args.slots), run_peer(peer, warm_up, args.slots)
    long_limit = max(args.long + 1, args.shared + args.prompt + DELAY_STEPS + args.long // 32)
    long_engine = start_engine(peer, long_limit, args, slots=args.prefix_slots)
    # The cache of `hf` grows with the first long prompt.
    run_engine(long_engine, make_requests([1], 98, args, prompt=args.long), 1)
    values: dict[str, list[float]] = {"equal": [], "staggered": [], "prefix": []}
    rates: dict[str, list[float]] = {name: [] for name in values}
    for repeat in range(args.repeats):
        rng = random.Random(repeat)
        prefix_tokens = [max(1, args.equal_tokens // 2)] * args.prefix_slots
        work = {
            "equal": (engine, make_requests([args.equal_tokens] * args.slots, repeat, args)),
            "staggered": (
                engine,
                make_requests([rng.randint(8, args.longest) for _ in range(args.requests)], repeat, args),
            ),
            "prefix": (long_engine, make_requests(prefix_tokens, repeat, args, shared=args.shared)),
        }
        for name, (used, requests) in work.items():
            slots = args.prefix_slots if name == "prefix" else args.slots
            tokens = sum(request.sampling.max_tokens for request in requests)
            mine, my_cpu = run_engine(used, requests, slots)
            theirs, their_cpu = run_peer(peer, requests, slots)
            values[name].append(theirs / mine)
            rates[name].append(tokens / mine)
            sys.stdout.write(
                f"{name} seed {repeat}: engine {tokens / mine:.0f} tokens/s, peer {tokens / theirs:.0f}, "
                f"ratio {theirs / mine:.2f} (CPU time {their_cpu / my_cpu:.2f})\n"
            )
            sys.stdout.flush()
        if args.engine == "hf":
            values.setdefault("delay", []).append(step_delay(long_engine, 1000 + 2 * repeat, args))
            sys.stdout.write(f"delay seed {repeat}: {values['delay'][-1]:.2f}\n")
    engine.close()
    long_engine.close()
    if args.device != "cpu":
        values |= {f"{name}_tokens_per_s": rates[name] for name in ("equal", "staggered")}
    return values


if __name__ == "__main__":
    main()
