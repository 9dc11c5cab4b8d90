"""Policy update of the training engine against a plain torch loop on the same tokens, in one run.

    python benchmarks/policy_update.py [--device cpu] [--rows 256] [--tokens 120] [--hidden 128] [--layers 4] [--rounds 3]

The last line is one JSON object: seconds of both and `ratio` (engine / bare) for `--rows` rows of `--tokens`
tokens, and of mixed length. The plain loop pads every micro-batch to its longest row; both use the same
number of micro-batches, and on a GPU bf16 with fp32 master weights. Weights are random.

The engine with itself, tokens that rows share run once / rows run one by one: `conversation_ratio` on
conversations of 6 turns, `unshared_ratio` on rows that have nothing in common. For groups of K = 4, 8 and 16
replies of 24 tokens to a prompt of 256, `tokens_saved` is the share of the tokens that is not run,
`time_saved` that of the seconds of single rows; the same rows go through the package `prefix_grouper`, whose
`time_saved` is relative to the plain loop on the same rows (no dynamic batches on either side, gradients of
both checked against each other), and `over_prefix_grouper` is engine / package in seconds. The package is
installed from PyPI into `.cache/peers`; on a GPU it is left out (null): its attention there is flash-attn.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.shared.device import add_device, add_model_sizes, check_device, now, random_model
from benchmarks.shared.short import parse_args
from verl.trainer.config import ActorConfig, FSDPConfig, ModelConfig, OptimConfig
from verl.workers.engine import FSDPEngine, MicroBatchRule, UpdatePlan, init_mesh, update_policy
from verl.workers.engine.trie import count_run, token_rows

TURNS = 6
GROUPS = (4, 8, 16)
PROMPT = 256
REPLY = 24
# Of gradients of the plain loop and of the package, relative to the largest of a parameter.
MOST_DISTANCE = 1e-4


def make_rows(count: int, tokens: int, vocab: int, mixed: bool) -> dict[str, torch.Tensor]:
    """Return random rows, half prompt and half response; `mixed` draws both lengths from a quarter of the
    maximum up to the maximum.
    """
    generator = torch.Generator().manual_seed(0)
    half = tokens // 2
    low = half // 4 if mixed else half
    prompt = torch.randint(low, half + 1, (count, 1), generator=generator)
    response = torch.randint(low, half + 1, (count, 1), generator=generator)
    columns = torch.arange(2 * half)[None]
    attention = ((columns >= half - prompt) & (columns < half + response)).long()
    ids = torch.randint(3, vocab, (count, 2 * half), generator=generator) * attention
    return {
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "responses": ids[:, half:].clone(),
        "response_mask": attention[:, half:].clone(),
        "advantages": torch.randn(count, half, generator=generator),
        "old_log_probs": torch.full((count, half), -math.log(vocab)),
    }


def make_conversations(count: int, tokens: int, vocab: int) -> dict[str, torch.Tensor]:
    """Return `TURNS` rows for each of `count` conversations; a turn adds `tokens` random tokens, half message
    and half reply.
    """
    generator = torch.Generator().manual_seed(0)
    half = tokens // 2
    ids = torch.randint(3, vocab, (count, TURNS * 2 * half), generator=generator)
    rows = torch.cat([ids.roll((TURNS - 1 - turn) * 2 * half, dims=1) for turn in range(TURNS)])
    left = torch.arange(TURNS - 1, -1, -1).repeat_interleave(count)[:, None] * 2 * half
    attention = (torch.arange(rows.shape[1])[None] >= left).long()
    replies = torch.ones(len(rows), half, dtype=torch.long)
    return {
        "input_ids": rows * attention,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "responses": rows[:, -half:].clone(),
        "response_mask": replies,
        "advantages": torch.randn(replies.shape, generator=generator),
        "old_log_probs": torch.full(replies.shape, -math.log(vocab)),
    }


def make_groups(count: int, group: int, vocab: int) -> dict[str, torch.Tensor]:
    """Return `group` random replies to each of `count` random prompts."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, vocab, (count, PROMPT), generator=generator).repeat_interleave(group, dim=0)
    replies = torch.randint(3, vocab, (len(prompts), REPLY), generator=generator)
    ids = torch.cat([prompts, replies], dim=1)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.arange(ids.shape[1]).expand_as(ids).clone(),
        "responses": replies,
        "response_mask": torch.ones_like(replies),
        "advantages": torch.randn(replies.shape, generator=generator),
        "old_log_probs": torch.full(replies.shape, -math.log(vocab)),
    }


def bare_update(
    model: Any, optimizer: torch.optim.AdamW, rows: dict[str, torch.Tensor], micro_batches: int
) -> None:
    """Make one plain update: padded micro-batches, log-softmax, clipped loss, AdamW."""
    plain_loss(model, rows, micro_batches)
    step(model, optimizer)


def step(model: Any, optimizer: torch.optim.AdamW) -> None:
    """Clip the gradient and step."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def plain_loss(model: Any, rows: dict[str, torch.Tensor], micro_batches: int) -> None:
    """Add the gradient of the clipped loss, of padded micro-batches."""
    count, total = len(rows["input_ids"]), rows["response_mask"].sum()
    half = rows["responses"].shape[1]
    for index in torch.arange(count).chunk(micro_batches):
        part = {name: value[index].to(model.device) for name, value in rows.items()}
        inputs = {name: part[name] for name in ("input_ids", "attention_mask", "position_ids")}
        with torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type != "cpu"):
            logits = model(**inputs, use_cache=False, logits_to_keep=half + 1).logits[:, :-1]
        log_probs = torch.log_softmax(logits.float(), -1).gather(-1, part["responses"][..., None]).squeeze(-1)
        ratio = torch.exp((log_probs - part["old_log_probs"]).clamp(-20, 20))
        losses = torch.maximum(-part["advantages"] * ratio, -part["advantages"] * ratio.clamp(0.8, 1.2))
        ((losses * part["response_mask"]).sum() / float(total)).backward()


def fastest(rounds: int, *runs: Callable[[], object]) -> list[float]:
    """Return the lowest wall-clock seconds of each, measured alternately under the same load after one round
    of warm-up.
    """
    best = [float("inf")] * len(runs)
    for turn in range(rounds + 1):
        for i, run in enumerate(runs):
            start = now()
            run()
            if turn:
                best[i] = min(best[i], now() - start)
    return best


def build(args: argparse.Namespace) -> tuple[Any, FSDPEngine]:
    """Return a model on the device and an engine with the same weights."""
    bare = random_model(args, "fp32").train()
    if args.gradient_checkpointing:
        bare.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    with tempfile.TemporaryDirectory() as folder:
        bare.save_pretrained(folder)
        model = ModelConfig(path=folder, enable_gradient_checkpointing=args.gradient_checkpointing)
        return bare, FSDPEngine(model, FSDPConfig(), OptimConfig(), init_mesh(args.device, 0, 1))


def transposed(results: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Return every key of mappings with its values."""
    return [(key, [result[key] for result in results]) for key in results[0]]


def group_savings(
    args: argparse.Namespace, group: int, budget: int, update: Callable[..., None], bare: Any
) -> dict[str, Any]:
    """Return what is saved on groups of `group` replies: shares of tokens and of seconds, and those of the
    package `prefix_grouper` beside them, which is run on a CPU alone.
    """
    rows = make_groups(max(1, args.rows // group), group, args.vocab)
    run_share = count_run(token_rows(rows)) / int(rows["attention_mask"].sum())
    engine = [partial(update, rows, budget, False), partial(update, rows, budget, True)]
    packages: list[Callable[[], object]] = []
    if args.device == "cpu":
        single = -(-len(rows["input_ids"]) * (PROMPT + REPLY) // budget)
        joined = -(-len(rows["input_ids"]) // group * (PROMPT + group * REPLY) // budget)
        packages = package_updates(bare, rows, group, single, joined)
    seconds = fastest(args.rounds, *engine, *packages)
    result: dict[str, Any] = {
        "tokens_saved": round(1 - run_share, 3),
        "time_saved": round(1 - seconds[1] / seconds[0], 3),
        "prefix_grouper_time_saved": None,
        "over_prefix_grouper": None,
    }
    if packages:
        result["prefix_grouper_time_saved"] = round(1 - seconds[3] / seconds[2], 3)
        result["over_prefix_grouper"] = round(seconds[1] / seconds[3], 3)
    return result


def package_updates(
    bare: Any, rows: dict[str, torch.Tensor], group: int, single: int, joined: int
) -> list[Callable[[], object]]:
    """Return an update of the plain loop, in `single` micro-batches, and one with `prefix_grouper`, in
    `joined`, each of a copy of the model; raise ValueError if their gradients differ.
    """
    from benchmarks.shared.prefix_peer import (
        PrefixGrouperUpdate,  # a package that is installed when asked for
    )

    plain = deepcopy(bare)
    package = PrefixGrouperUpdate(deepcopy(bare), group)
    package.backward(rows, joined)
    plain_loss(plain, rows, single)
    for (name, expected), parameter in zip(plain.named_parameters(), package.model.parameters(), strict=True):
        assert expected.grad is not None and parameter.grad is not None
        distance = (expected.grad - parameter.grad).abs().max() / expected.grad.abs().max()
        if distance > MOST_DISTANCE:
            raise ValueError(
                f"prefix_grouper: the gradient of {name} is off by {distance:.1e} of its largest"
            )
    steps = [
        partial(step, model, torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True))
        for model in (plain, package.model)
    ]

    def plain_update() -> None:
        plain_loss(plain, rows, single)
        steps[0]()

    def package_update() -> None:
        package.backward(rows, joined)
        steps[1]()

    return [plain_update, package_update]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_device(parser)
    add_model_sizes(parser, vocab=512)
    parser.add_argument("--gradient-checkpointing", action="store_true", help="in both")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=120, help="of a row, half prompt and half response")
    parser.add_argument("--micro-batches", type=int, default=4, help="of an update; more need less memory")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    args = parse_args(parser, rounds=1)
    check_device(args.device)
    torch.set_num_threads(args.threads)
    bare, engine = build(args)
    optimizer = torch.optim.AdamW(bare.parameters(), lr=1e-6, fused=True)
    result: dict[str, float] = {"rows": args.rows, "tokens": args.tokens}

    exact = engine.layout

    def update(rows: dict[str, torch.Tensor], token_budget: int, share: bool = False) -> None:
        engine.layout = exact if share else replace(exact, sharing="none")
        rule = MicroBatchRule(token_budget=token_budget, rows=1, packed=True)
        update_policy(engine, ActorConfig(), rows, UpdatePlan(temperature=1.0), rule)

    for name, mixed in (("equal", False), ("mixed", True)):
        rows = make_rows(args.rows, args.tokens, args.vocab, mixed)
        budget = -(-int(rows["attention_mask"].sum()) // args.micro_batches) + args.tokens
        plain = partial(bare_update, bare, optimizer, rows, args.micro_batches)
        ours, theirs = fastest(args.rounds, partial(update, rows, budget), plain)
        result |= {
            f"{name}_engine_s": round(ours, 4),
            f"{name}_bare_s": round(theirs, 4),
            f"{name}_ratio": round(ours / theirs, 3),
        }
    runs = max(1, 32 // args.micro_batches)
    for name, rows, budget in (
        (
            "conversation",
            make_conversations(max(1, args.rows // TURNS), args.tokens, args.vocab),
            runs * args.tokens * TURNS,
        ),
        ("unshared", make_rows(args.rows, args.tokens, args.vocab, False), runs * args.tokens * 2),
    ):
        single, shared = fastest(
            args.rounds, partial(update, rows, budget, False), partial(update, rows, budget, True)
        )
        result |= {
            f"{name}_single_s": round(single, 4),
            f"{name}_shared_s": round(shared, 4),
            f"{name}_ratio": round(shared / single, 3),
        }
    budget = runs * (PROMPT + REPLY)
    saved = [group_savings(args, group, budget, update, bare) for group in GROUPS]
    of_groups = {key: dict(zip(map(str, GROUPS), values, strict=True)) for key, values in transposed(saved)}
    print(json.dumps(result | of_groups))


if __name__ == "__main__":
    main()
