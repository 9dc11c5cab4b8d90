"""Measured costs of the simulator: of the engine alone, and of training runs with short and with long
replies.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from benchmarks.asynchronous.simulator import CACHE_BLOCK, Costs, Group, Schedule, run_steps
from benchmarks.asynchronous.team import CALLS, MeasuredRun, Mode, PlayedEpisode, Workload, run
from benchmarks.placement import run_forked
from verl.models.loader import load_causal_lm
from verl.protocol.generate import GenerateRequest, SamplingParams
from verl.workers.rollout.hf_engine import HFEngine

SHORT, LONG = 8, 64  # tokens of the replies of the two runs
PROMPT, LONG_PROMPT, MOST_ROWS = 64, 320, 64
SLOWEST = 0.1


@dataclass(frozen=True)
class EngineCosts:
    """Measured without a trainer: see `Costs`."""

    decode_s: float
    row_s: float
    cache_s: float


def measure_engine(model_dir: Path, decoded: int, seconds: float, out: Path) -> None:
    """Write `EngineCosts`, each measured for about so many seconds with replies of `decoded` tokens."""
    torch.set_num_threads(os.cpu_count() or 1)
    model = load_causal_lm(str(model_dir), dtype=torch.float32, attn_implementation="sdpa")
    engine = HFEngine(model, max_num_seqs=MOST_ROWS, max_model_len=LONG_PROMPT + decoded)

    def decode(rows: int, tokens: int = decoded, prompt: int = PROMPT) -> float:
        """Return the seconds of replies of `tokens` tokens to `rows` prompts."""

        async def replies() -> None:
            prompts = [
                tuple(3 + (row * prompt + place) % 250 for place in range(prompt)) for row in range(rows)
            ]
            await asyncio.gather(
                *[
                    engine.generate(GenerateRequest(prompt, SamplingParams(tokens), seed=7))
                    for prompt in prompts
                ]
            )

        started = time.perf_counter()
        asyncio.run(replies())
        return time.perf_counter() - started

    def step_s(rows: int, prompt: int = PROMPT) -> float:
        """Return the seconds of a decode step."""
        whole, first = (
            repeated(lambda: decode(rows, decoded, prompt), seconds),
            repeated(lambda: decode(rows, 1, prompt), seconds),
        )
        return (whole - first) / (decoded - 1)

    few, many = MOST_ROWS // 8, MOST_ROWS
    cached = statistics.mean(-(-(PROMPT + step) // CACHE_BLOCK) * CACHE_BLOCK for step in range(1, decoded))
    one, wide, longer = step_s(few), step_s(many), step_s(many, LONG_PROMPT)
    cache_s = max(longer - wide, 0.0) / (many * (LONG_PROMPT - PROMPT))
    row_s = max((wide - one) / (many - few) - cache_s * cached, 0.0)
    decode_s = max(one - few * (row_s + cache_s * cached), 0.0)
    out.write_text(json.dumps(asdict(EngineCosts(decode_s, row_s, cache_s))))


def repeated(call: Callable[[], float], seconds: float) -> float:
    """Return the median of `call` after a first call, called for about so many seconds."""
    call()
    found: list[float] = []
    while sum(found) < seconds:
        found.append(call())
    return statistics.median(found)


def played(episodes: list[list[PlayedEpisode]]) -> Iterator[Group]:
    """Yield the groups of a run, over and over."""
    return itertools.cycle(
        [[list(zip(one.tokens, one.waits_s, strict=True)) for one in group] for group in episodes]
    )


def calibrate(
    folder: Path, run_dir: Path, mode: Mode, beside: Mode, args: argparse.Namespace, seed: int
) -> Costs:
    """Return the costs, measured in runs under `run_dir`.

    The time of a decode step, and of an update per token, come from the difference between a run with long
    replies and one with short ones, the rest of a call's time from the latter; `mode` is synchronous and
    computes old log-probs. In `beside` the engine and the trainer work at the same time, which gives their
    speeds.
    """
    lengths = min(SHORT, args.tokens // 2), min(LONG, args.tokens)
    run_forked(measure_engine, folder / "model", lengths[1], args.engine_seconds, run_dir / "engine.json")
    engine = EngineCosts(**json.loads((run_dir / "engine.json").read_text()))
    pairs: list[tuple[MeasuredRun, MeasuredRun]] = []
    for tokens in lengths:
        workload, name = Workload(tokens=tokens), f"calibration-{tokens}"
        alone = run(mode, workload, folder, run_dir / name, args, seed)
        pairs.append((alone, run(beside, workload, folder, run_dir / f"{name}-beside", args, seed)))
    short, long = (alone for alone, _ in pairs)
    replies = args.tasks * args.group * CALLS
    batch_tokens = [mean_of(found, "perf/total_num_tokens") for found in (short, long)]
    costs = Costs(
        **asdict(engine), slots=MOST_ROWS, prompt_tokens=round(batch_tokens[0] / replies) - lengths[0]
    )

    def collecting(found: MeasuredRun, costs: Costs) -> float:
        """Return the simulated seconds of a collection: those of a step in which nothing else takes time."""
        return run_steps(costs, Schedule(), played(found.groups()), args.tasks, 2).step_s(1, 1)

    measured_s = [mean_of(found, "timing_s/gen") for found in (short, long)]
    simulated_s = [collecting(found, costs) for found in (short, long)]
    scale = line(simulated_s, measured_s)[1]
    costs = replace(
        costs, decode_s=costs.decode_s * scale, row_s=costs.row_s * scale, cache_s=costs.cache_s * scale
    )
    update_s, update_token_s = line(batch_tokens, [found.busy_s("update_actor") for found in (short, long)])
    log_prob_s, sync_s = (
        short.busy_s("compute_log_prob"),
        statistics.mean([short.busy_s("sync_weights"), long.busy_s("sync_weights")]),
    )
    engine_speed, update_speed = speeds(pairs)
    rest_s = short.mean_step_s - measured_s[0] - short.busy_s("update_actor") - log_prob_s - sync_s
    return replace(
        costs,
        call_s=max(measured_s[0] - collecting(short, costs), 0.0) / replies,
        update_s=update_s,
        update_token_s=update_token_s,
        log_prob_token_s=log_prob_s / batch_tokens[0],
        sync_s=sync_s,
        rest_s=max(rest_s, 0.0),
        engine_speed=engine_speed,
        update_speed=update_speed,
    )


def speeds(pairs: Sequence[tuple[MeasuredRun, MeasuredRun]]) -> tuple[float, float]:
    """Return the speeds of the engine and of the trainer while both work, from `SLOWEST` to 1 whatever the
    noise.

    Each pair has the same replies, trained one after the other and beside each other: the seconds by which
    sampling or training takes longer in the latter are the part of the overlap in which it stands still.
    """
    overlap_s = sum(beside.overlap_s() for _, beside in pairs)
    sampling_s = sum(beside.busy_s("generate") - alone.busy_s("generate") for alone, beside in pairs)
    training_s = sum(beside.training_s() - alone.training_s() for alone, beside in pairs)
    engine_speed, update_speed = (
        min(max(1 - longer / overlap_s, SLOWEST), 1.0) for longer in (sampling_s, training_s)
    )
    return engine_speed, update_speed


def line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return intercept and slope of the line through two points; through the origin and their mean if one of
    both is negative.
    """
    slope = (y[1] - y[0]) / (x[1] - x[0])
    if slope > 0 and y[0] > slope * x[0]:
        return y[0] - slope * x[0], slope
    return 0.0, sum(y) / sum(x)


def mean_of(found: MeasuredRun, name: str) -> float:
    """Return the mean of a metric over the measured steps."""
    return statistics.mean(line[name] for line in found.lines)
