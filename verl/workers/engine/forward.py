"""Packed and padded forward passes: from rows of a batch to log-probs and entropies, or values, of the response tokens."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from verl.workers.engine.attention import PACKED_ATTENTION, plan_packing
from verl.workers.engine.merging import merge
from verl.workers.engine.token_scores import sums_of_squares, token_scores

INPUT_KEYS = ("input_ids", "attention_mask", "position_ids", "responses", "response_mask")


@dataclass(frozen=True)
class Scores:
    """Scores of response tokens, zero where `response_mask` is zero.

    Attributes:
        log_probs: `[bsz, response_len]` fp32, differentiable unless grad is off.
        entropy: `[bsz, response_len]` fp32, in nats.
        sum_pi_squared: `[bsz, response_len]` fp32, the sum over the vocabulary of the squared probabilities; None unless asked for.
    """

    log_probs: torch.Tensor
    entropy: torch.Tensor
    sum_pi_squared: torch.Tensor | None = None


def check_rows(rows: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError when a response token has no token before it, or attention is masked at its position."""
    width, response_len = rows["input_ids"].shape[1], rows["responses"].shape[1]
    attention, mask = rows["attention_mask"].bool(), rows["response_mask"].bool()
    real = mask.any(dim=1)
    if bool(real.any()) and (width == response_len or not bool(attention[real, width - response_len - 1].all())):
        raise ValueError("a row has an empty prompt; every row needs at least one prompt token before its response")
    if bool((mask & ~attention[:, width - response_len :]).any()):
        raise ValueError("response_mask is set where attention_mask is not; padding cannot be trained on")


def score_tokens(model: Any, rows: Mapping[str, torch.Tensor], temperature: float, packed: bool, sum_pi_squared: bool = False) -> Scores:
    """Run rows through a causal language model; see `Scores`.

    Args:
        model: the model; for packed rows with `PACKED_ATTENTION` or flash attention.
        rows: `INPUT_KEYS`, and `READ_IN` if rows are merged; without rows (ranks must call the model equally often) the scores are empty.
        temperature: of the sampler.
        packed: run the rows as one sequence without padding.
        sum_pi_squared: also sum the squared probabilities, in another pass over the logits.
    """
    runs, index = merge(rows)
    logits = (_packed if packed else _padded)(model, runs)
    mask = rows["response_mask"].bool()
    log_probs, entropy = token_scores(logits, runs["responses"][runs["response_mask"].bool()], temperature)
    squares = _scatter(sums_of_squares(logits, temperature)[index], mask) if sum_pi_squared else None
    return Scores(_scatter(log_probs[index], mask), _scatter(entropy[index], mask), squares)


def value_tokens(model: Any, rows: Mapping[str, torch.Tensor], packed: bool) -> torch.Tensor:
    """Run rows through a value model and return values `[bsz, response_len]` fp32, zero where `response_mask` is zero.

    The value of a token is the output at the position before it. Arguments are those of `score_tokens`.
    """
    runs, index = merge(rows)
    outputs = (_packed if packed else _padded)(model, runs)
    return _scatter(outputs.squeeze(-1).float()[index], rows["response_mask"].bool())


def _packed(model: Any, rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the head's output at the position before each response token, `[tokens, head]`; a language-model head skips others."""
    attention, mask = rows["attention_mask"].bool(), rows["response_mask"].bool()
    count, width = attention.shape
    prompt_len = width - mask.shape[1]
    place = attention.flatten().cumsum(0).view(count, width) - 1
    keep = place[:, prompt_len - 1 : -1][mask]
    tokens, positions, lengths = rows["input_ids"][attention], rows["position_ids"][attention], attention.sum(dim=1).tolist()
    if not lengths:
        tokens, positions, lengths = tokens.new_zeros(1), positions.new_zeros(1), [1]
    extra: dict[str, Any] = {}
    if model.config._attn_implementation == PACKED_ATTENTION:
        extra["pack_plan"] = plan_packing(lengths, tokens.device)
    else:
        bounds = torch.tensor([0, *lengths], device=tokens.device, dtype=torch.int32).cumsum(0, dtype=torch.int32)
        extra = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": max(lengths), "max_length_k": max(lengths)}
    return _run(model, keep, input_ids=tokens[None], position_ids=positions[None], **extra)[0]


def _padded(model: Any, rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """As `_packed`, for padded rows, without the columns that are padding in all of them."""
    attention, mask = rows["attention_mask"], rows["response_mask"].bool()
    if not len(attention):
        ids = torch.zeros(1, 1, dtype=torch.long, device=attention.device)
        return _run(model, ids.new_zeros(0, dtype=torch.long), input_ids=ids)[0]
    prompt_len = attention.shape[1] - mask.shape[1]
    used = attention.bool().any(dim=0).nonzero()
    first, last = int(used[0]), max(int(used[-1]) + 1, prompt_len + 1)
    window = slice(first, last)
    outputs = _run(
        model,
        last - prompt_len + 1,
        input_ids=rows["input_ids"][:, window],
        attention_mask=attention[:, window],
        position_ids=rows["position_ids"][:, window],
    )
    return outputs[:, :-1][mask[:, : last - prompt_len]]


def _run(model: Any, keep: torch.Tensor | int, **inputs: Any) -> torch.Tensor:
    """Return the head's output at the positions `keep` (a number selects the last ones); outputs of a head that skips none are sliced."""
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        return model(**inputs, use_cache=False, logits_to_keep=keep).logits
    outputs = model(**inputs, use_cache=False).logits
    return outputs[:, keep] if isinstance(keep, torch.Tensor) else outputs[:, -keep:]


def _scatter(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Scatter token values into `[bsz, response_len]`."""
    return torch.zeros(mask.shape, device=values.device).masked_scatter(mask, values)
