"""Policy update of the training engine against a plain torch loop on the same tokens, in one run.

    python benchmarks/policy_update.py [--rows 256] [--tokens 120] [--threads 1] [--rounds 3]

Prints one JSON object: seconds of both and `ratio` (engine / bare) for rows of equal and of mixed length. The plain loop pads
every micro-batch to its longest row; both use the same number of micro-batches. `conversation_ratio` compares the engine with itself, on
conversations of 6 turns: with merged rows / with single rows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from verl.trainer.config import ActorConfig, FSDPConfig, ModelConfig, OptimConfig
from verl.workers.engine import FSDPEngine, MicroBatchRule, UpdatePlan, init_mesh, update_policy

VOCAB = 512
MICRO_BATCHES = 4
TURNS = 6


def make_rows(count: int, tokens: int, mixed: bool) -> dict[str, torch.Tensor]:
    """Return random rows, half prompt and half response; `mixed` draws both lengths from a quarter of the maximum up to the maximum."""
    generator = torch.Generator().manual_seed(0)
    half = tokens // 2
    low = half // 4 if mixed else half
    prompt = torch.randint(low, half + 1, (count, 1), generator=generator)
    response = torch.randint(low, half + 1, (count, 1), generator=generator)
    columns = torch.arange(2 * half)[None]
    attention = ((columns >= half - prompt) & (columns < half + response)).long()
    ids = torch.randint(3, VOCAB, (count, 2 * half), generator=generator) * attention
    return {
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "responses": ids[:, half:].clone(),
        "response_mask": attention[:, half:].clone(),
        "advantages": torch.randn(count, half, generator=generator),
        "old_log_probs": torch.full((count, half), -6.2),
    }


def make_conversations(count: int, tokens: int) -> dict[str, torch.Tensor]:
    """Return `TURNS` rows for each of `count` conversations; a turn adds `tokens` random tokens, half message and half reply."""
    generator = torch.Generator().manual_seed(0)
    half = tokens // 2
    ids = torch.randint(3, VOCAB, (count, TURNS * 2 * half), generator=generator)
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
        "old_log_probs": torch.full(replies.shape, -6.2),
    }


def bare_update(model: Qwen3ForCausalLM, optimizer: torch.optim.AdamW, rows: dict[str, torch.Tensor]) -> None:
    """Make one plain update: padded micro-batches, log-softmax, clipped loss, AdamW."""
    count, total = len(rows["input_ids"]), rows["response_mask"].sum()
    half = rows["responses"].shape[1]
    for index in torch.arange(count).chunk(MICRO_BATCHES):
        part = {name: value[index] for name, value in rows.items()}
        logits = model(
            input_ids=part["input_ids"],
            attention_mask=part["attention_mask"],
            position_ids=part["position_ids"],
            use_cache=False,
            logits_to_keep=half + 1,
        ).logits[:, :-1]
        log_probs = torch.log_softmax(logits.float(), -1).gather(-1, part["responses"][..., None]).squeeze(-1)
        ratio = torch.exp((log_probs - part["old_log_probs"]).clamp(-20, 20))
        losses = torch.maximum(-part["advantages"] * ratio, -part["advantages"] * ratio.clamp(0.8, 1.2))
        ((losses * part["response_mask"]).sum() / total).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def fastest(rounds: int, *runs: Callable[[], object]) -> list[float]:
    """Return the lowest wall-clock seconds of each, measured alternately under the same load after one round of warm-up."""
    best = [float("inf")] * len(runs)
    for turn in range(rounds + 1):
        for i, run in enumerate(runs):
            start = time.perf_counter()
            run()
            if turn:
                best[i] = min(best[i], time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    bare = Qwen3ForCausalLM(config).train()
    optimizer = torch.optim.AdamW(bare.parameters(), lr=1e-6, fused=True)
    with tempfile.TemporaryDirectory() as folder:
        bare.save_pretrained(folder)
        engine = FSDPEngine(ModelConfig(path=folder), FSDPConfig(), OptimConfig(), init_mesh("cpu", 0, 1))
    result: dict[str, float] = {"rows": args.rows, "tokens": args.tokens}
    for name, mixed in (("equal", False), ("mixed", True)):
        rows = make_rows(args.rows, args.tokens, mixed)
        budget = -(-int(rows["attention_mask"].sum()) // MICRO_BATCHES) + args.tokens
        rule = MicroBatchRule(token_budget=budget, rows=1, packed=True)

        def engine_update(rows: dict[str, torch.Tensor] = rows, rule: MicroBatchRule = rule) -> None:
            update_policy(engine, ActorConfig(), rows, UpdatePlan(temperature=1.0), rule)

        def plain_update(rows: dict[str, torch.Tensor] = rows) -> None:
            bare_update(bare, optimizer, rows)

        ours, theirs = fastest(args.rounds, engine_update, plain_update)
        result |= {f"{name}_engine_s": round(ours, 4), f"{name}_bare_s": round(theirs, 4), f"{name}_ratio": round(ours / theirs, 3)}
    rows = make_conversations(max(1, args.rows // TURNS), args.tokens)
    rule = MicroBatchRule(token_budget=args.tokens * TURNS * 8, rows=1, packed=True)

    def update(merge_rows: bool) -> None:
        engine.merge_rows = merge_rows
        update_policy(engine, ActorConfig(), rows, UpdatePlan(temperature=1.0), rule)

    single, merged = fastest(args.rounds, lambda: update(False), lambda: update(True))
    result |= {"single_rows_s": round(single, 4), "merged_rows_s": round(merged, 4), "conversation_ratio": round(merged / single, 3)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
