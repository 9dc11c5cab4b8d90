"""Packed and padded forward passes: from rows of a batch to log-probs and entropies, or values, of
the response tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from verl.workers.engine.attention import PACKED_ATTENTION, plan_packing
from verl.workers.engine.chains import join
from verl.workers.engine.layout import Form, RowLayout
from verl.workers.engine.mixed_adapters import Run, token_runs
from verl.workers.engine.token_scores import sums_of_squares, token_scores
from verl.workers.engine.trie import build_trie

# Is told the runs of tokens of each part, and the number of tokens, before the model runs them.
UseRuns = Callable[[Sequence[Run], int], None]
INPUT_KEYS = ("input_ids", "attention_mask", "position_ids", "responses", "response_mask")


@dataclass(frozen=True)
class Scores:
    """Scores of response tokens, zero where `response_mask` is zero.

    Attributes:
        log_probs: `[bsz, response_len]` fp32, differentiable unless grad is off.
        entropy: `[bsz, response_len]` fp32, in nats.
        sum_pi_squared: `[bsz, response_len]` fp32, the sum over the vocabulary of the squared
            probabilities; None unless asked for.
    """

    log_probs: torch.Tensor
    entropy: torch.Tensor
    sum_pi_squared: torch.Tensor | None = None


def check_rows(rows: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError when a response token has no token before it, or attention is masked at its
    position.
    """
    width = rows["input_ids"].shape[1]
    response_len = rows["responses"].shape[1]
    attention = rows["attention_mask"].bool()
    mask = rows["response_mask"].bool()
    real = mask.any(dim=1)
    if bool(real.any()) and (
        width == response_len or not bool(attention[real, width - response_len - 1].all())
    ):
        raise ValueError(
            "a row has an empty prompt; every row needs at least one prompt token before its response"
        )
    if bool((mask & ~attention[:, width - response_len :]).any()):
        raise ValueError("response_mask is set where attention_mask is not; padding cannot be trained on")


def score_tokens(
    model: Any,
    rows: Mapping[str, torch.Tensor],
    temperature: float | torch.Tensor,
    layout: RowLayout,
    sum_pi_squared: bool = False,
    use_runs: UseRuns | None = None,
) -> Scores:
    """Run rows through a causal language model; see `Scores`.

    Args:
        model: the model; for packed rows with `PACKED_ATTENTION` or flash attention.
        rows: `INPUT_KEYS`; without rows (ranks must call the model equally often) the scores are
            empty. Optionally `part` `[bsz]`: rows of different parts share no tokens.
        temperature: of the sampler; `[parts]` if it differs between parts.
        layout: of the rows.
        sum_pi_squared: also sum the squared probabilities, in another pass over the logits.
        use_runs: see `UseRuns`; for rows with parts.
    """
    logits, index = _outputs(model, rows, layout, use_runs)
    mask = rows["response_mask"].bool()
    if isinstance(temperature, torch.Tensor):
        temperature = _of_logits(temperature[rows["part"]], mask, index, len(logits))
    log_probs, entropy = token_scores(logits, rows["responses"][mask], temperature, index)
    squares = sums_of_squares(logits, temperature) if sum_pi_squared else None
    # Rows that share a position share what was computed there once.
    if index is not None:
        entropy = entropy[index]
        squares = None if squares is None else squares[index]
    return Scores(
        _scatter(log_probs, mask),
        _scatter(entropy, mask),
        None if squares is None else _scatter(squares, mask),
    )


def _of_logits(
    temperatures: torch.Tensor, mask: torch.Tensor, index: torch.Tensor | None, count: int
) -> torch.Tensor:
    """Return the temperature of each row of logits, `[count]`, given that of each row of tokens."""
    of_tokens = temperatures[:, None].expand_as(mask)[mask]
    if index is None:
        return of_tokens
    # Tokens that read one row of logits are of one part.
    return of_tokens.new_ones(count).scatter(0, index, of_tokens)


def value_tokens(model: Any, rows: Mapping[str, torch.Tensor], layout: RowLayout) -> torch.Tensor:
    """Run rows through a value model and return values `[bsz, response_len]` fp32, zero where
    `response_mask` is zero.

    The value of a token is the output at the position before it. Arguments are those of
    `score_tokens`.
    """
    outputs, index = _outputs(model, rows, layout, None)
    values = outputs.squeeze(-1).float()
    return _scatter(values if index is None else values[index], rows["response_mask"].bool())


def _outputs(
    model: Any, rows: Mapping[str, torch.Tensor], layout: RowLayout, use_runs: UseRuns | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return outputs of the head `[count, head]`, and for each unmasked response token of the rows,
    in row-major order, the index of the one before it; None if they are in this order.
    """
    if layout.sharing == "trie":
        trie = build_trie(rows)
        places, index = trie.before.unique(return_inverse=True)
        inputs = {"input_ids": trie.tokens[None], "position_ids": trie.positions[None]}
        if use_runs is not None:
            use_runs(trie.runs, len(trie.tokens))
        return run_head(model, places, pack_plan=trie.plan, **inputs)[0], index
    if layout.sharing == "chains" and len(rows["input_ids"]):
        rows, index = join(rows)
        return _FORMS[layout.form](model, rows, use_runs), index
    return _FORMS[layout.form](model, rows, use_runs), None


def _use_rows(
    use_runs: UseRuns | None, rows: Mapping[str, torch.Tensor], lengths: Sequence[int], tokens: int
) -> None:
    """Tell `use_runs` the runs of rows of these lengths, in a pass of so many tokens."""
    if use_runs is not None:
        use_runs(token_runs(rows["part"].tolist(), lengths), tokens)


def _packed(model: Any, rows: Mapping[str, torch.Tensor], use_runs: UseRuns | None) -> torch.Tensor:
    """Return the head's output at the position before each response token, `[tokens, head]`; a
    language-model head skips others.
    """
    attention = rows["attention_mask"].bool()
    mask = rows["response_mask"].bool()
    count, width = attention.shape
    prompt_len = width - mask.shape[1]
    place = attention.flatten().cumsum(0).view(count, width) - 1
    keep = place[:, prompt_len - 1 : -1][mask]
    tokens = rows["input_ids"][attention]
    positions = rows["position_ids"][attention]
    lengths = attention.sum(dim=1).tolist()
    _use_rows(use_runs, rows, lengths, max(sum(lengths), 1))
    # All ranks have to call the model equally often, also one without rows.
    if not lengths:
        tokens = tokens.new_zeros(1)
        positions = positions.new_zeros(1)
        lengths = [1]
    extra: dict[str, Any] = {}
    if model.config._attn_implementation == PACKED_ATTENTION:
        extra["pack_plan"] = plan_packing(lengths, tokens.device)
    else:
        bounds = torch.tensor([0, *lengths], device=tokens.device, dtype=torch.int32).cumsum(
            0, dtype=torch.int32
        )
        extra = {
            "cu_seq_lens_q": bounds,
            "cu_seq_lens_k": bounds,
            "max_length_q": max(lengths),
            "max_length_k": max(lengths),
        }
    return run_head(model, keep, input_ids=tokens[None], position_ids=positions[None], **extra)[0]


def _padded(model: Any, rows: Mapping[str, torch.Tensor], use_runs: UseRuns | None) -> torch.Tensor:
    """As `_packed`, for padded rows, without the columns that are padding in all of them."""
    attention = rows["attention_mask"]
    mask = rows["response_mask"].bool()
    if not len(attention):
        return _without_rows(model, rows, use_runs)
    prompt_len = attention.shape[1] - mask.shape[1]
    used = attention.bool().any(dim=0).nonzero()
    first = int(used[0])
    last = max(int(used[-1]) + 1, prompt_len + 1)
    window = slice(first, last)
    _use_rows(use_runs, rows, [last - first] * len(attention), (last - first) * len(attention))
    outputs = run_head(
        model,
        last - prompt_len + 1,
        input_ids=rows["input_ids"][:, window],
        attention_mask=attention[:, window],
        position_ids=rows["position_ids"][:, window],
    )
    return outputs[:, :-1][mask[:, : last - prompt_len]]


def _equal(model: Any, rows: Mapping[str, torch.Tensor], use_runs: UseRuns | None) -> torch.Tensor:
    """As `_packed`, for rows of one length that are run without padding and without a mask."""
    attention = rows["attention_mask"].bool()
    mask = rows["response_mask"].bool()
    count, width = attention.shape
    if not count:
        return _without_rows(model, rows, use_runs)
    length = int(attention[0].sum())
    _use_rows(use_runs, rows, [length] * count, length * count)
    number = attention.cumsum(dim=1) - 1  # of each token in its row
    before = number[:, width - mask.shape[1] - 1 : -1][mask]
    first = int(before.min()) if len(before) else length - 1
    outputs = run_head(
        model,
        length - first,
        input_ids=rows["input_ids"][attention].view(count, length),
        position_ids=rows["position_ids"][attention].view(count, length),
    )
    row = torch.arange(count, device=mask.device)[:, None].expand_as(mask)[mask]
    return outputs[row, before - first]


_FORMS: Mapping[Form, Callable[[Any, Mapping[str, torch.Tensor], UseRuns | None], torch.Tensor]] = {
    "packed": _packed,
    "padded": _padded,
    "equal": _equal,
}


def _without_rows(model: Any, rows: Mapping[str, torch.Tensor], use_runs: UseRuns | None) -> torch.Tensor:
    """Run one token and return no output of it, for a rank without rows."""
    ids = torch.zeros(1, 1, dtype=torch.long, device=rows["input_ids"].device)
    _use_rows(use_runs, rows, [], 1)
    return run_head(model, ids.new_zeros(0), input_ids=ids)[0]


def run_head(model: Any, keep: torch.Tensor | int, **inputs: Any) -> torch.Tensor:
    """Return the head's output at the positions `keep` (a number selects the last ones); outputs of
    a head that skips none are sliced.
    """
    parameters = inspect.signature(model.forward).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        # Models without positions of their own (ALiBi, recurrences) take no position_ids.
        inputs = {name: value for name, value in inputs.items() if name in parameters}
    if "logits_to_keep" in parameters:
        return model(**inputs, use_cache=False, logits_to_keep=keep).logits
    outputs = model(**inputs, use_cache=False).logits
    return outputs[:, keep] if isinstance(keep, torch.Tensor) else outputs[:, -keep:]


def _scatter(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Scatter token values into `[bsz, response_len]`."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)
