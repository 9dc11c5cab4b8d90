"""Packed and padded forward passes: from rows of a batch to log-probs and entropies, or values, of
the response tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from verl.workers.engine.attention import PACKED_ATTENTION, plan_packing
from verl.workers.engine.chains import join
from verl.workers.engine.head_call import linear_head, scores_in_head
from verl.workers.engine.head_scores import LogitMap, ScoreRequest, TokenScores, token_scores
from verl.workers.engine.layout import Form, RowLayout
from verl.workers.engine.mixed_adapters import Run, token_runs
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


@dataclass(frozen=True)
class ModelCall:
    """One call of a model.

    Attributes:
        inputs: of the model.
        keep: positions at which a language-model head is needed, or how many of the last.
        pick: selects, from what there is at these positions, what is read: `[count, size]`.
        index: for each unmasked response token of the rows, in row-major order, which of these is
            the one before it; None if they are in this order.
        runs: of the input's tokens, by the parts of the rows; none for rows without parts.
    """

    inputs: dict[str, Any]
    keep: torch.Tensor | int
    pick: Callable[[torch.Tensor], torch.Tensor]
    index: torch.Tensor | None = None
    runs: Sequence[Run] = ()


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
    *,
    logit_map: LogitMap | None = None,
    entropy_gradient: bool = True,
    use_runs: UseRuns | None = None,
) -> Scores:
    """Run rows through a causal language model; see `Scores`.

    Args:
        model: the model; for packed rows with `PACKED_ATTENTION` or flash attention.
        rows: `INPUT_KEYS`; without rows (ranks must call the model equally often) the scores are
            empty. Optionally `part` `[bsz]`: rows of different parts share no tokens.
        temperature: of the sampler; if it differs, `[parts]` for rows with parts, else `[bsz]`, and
            then rows of different temperatures must not share tokens.
        layout: of the rows.
        sum_pi_squared: also sum the squared probabilities.
        logit_map: scores are computed in the head, tile by tile, and this is what the model does to
            its logits (see `verl.workers.engine.head_check`); None if the model computes them
            whole.
        entropy_gradient: entropies are differentiable.
        use_runs: see `UseRuns`; for rows with parts.
    """
    call = _plan(model, rows, layout)
    if use_runs is not None:
        if "part" not in rows:
            raise ValueError("rows of several adapters need a column `part`")
        use_runs(call.runs, call.inputs["input_ids"].numel())
    mask = rows["response_mask"].bool()
    if isinstance(temperature, torch.Tensor) and "part" in rows:
        temperature = temperature[rows["part"]]
    request = ScoreRequest(
        rows["responses"][mask],
        _of_distributions(temperature, mask, call.index),
        call.index,
        sum_pi_squared,
        entropy_gradient,
    )
    scores = scores_of_call(model, call, request, logit_map)
    entropy = scores.entropy
    squares = scores.squares
    # Rows that share a position share what was computed there once.
    if call.index is not None:
        entropy = entropy[call.index]
        squares = None if squares is None else squares[call.index]
    return Scores(
        _scatter(scores.log_probs, mask),
        _scatter(entropy, mask),
        None if squares is None else _scatter(squares, mask),
    )


def scores_of_call(
    model: Any, call: ModelCall, request: ScoreRequest, logit_map: LogitMap | None
) -> TokenScores:
    """Run a call of a language model and return what is wanted of its distributions.

    Args:
        logit_map: as for `score_tokens`; logits are whole, too, where the head has an adapter.
    """
    if logit_map is None or linear_head(model) is None:
        return token_scores(call.pick(_at_kept(model, call)), request)
    run = partial(_output, model, call)
    # A head that skips no position receives all of them.
    pick = call.pick if _skips(model) else lambda hidden: call.pick(_at(hidden, call.keep))
    return scores_in_head(model, run, pick, request, logit_map)


def _of_distributions(
    temperature: float | torch.Tensor, mask: torch.Tensor, index: torch.Tensor | None
) -> float | torch.Tensor:
    """Return temperatures of rows as those of the distributions that their labels are read from."""
    if not isinstance(temperature, torch.Tensor):
        return temperature
    of_labels = temperature[:, None].expand(mask.shape)[mask]
    if index is None:
        return of_labels
    count = int(index.max()) + 1 if len(index) else 0
    return of_labels.new_ones(count).index_copy_(0, index, of_labels)


def value_tokens(model: Any, rows: Mapping[str, torch.Tensor], layout: RowLayout) -> torch.Tensor:
    """Run rows through a value model and return values `[bsz, response_len]` fp32, zero where
    `response_mask` is zero.

    The value of a token is the output at the position before it. Arguments are those of
    `score_tokens`.
    """
    call = _plan(model, rows, layout)
    values = call.pick(_at_kept(model, call)).squeeze(-1).float()
    return _scatter(values if call.index is None else values[call.index], rows["response_mask"].bool())


def _plan(model: Any, rows: Mapping[str, torch.Tensor], layout: RowLayout) -> ModelCall:
    """Return the call of a model that runs rows in a layout."""
    if layout.sharing == "trie":
        trie = build_trie(rows)
        places, index = trie.before.unique(return_inverse=True)
        inputs = {
            "input_ids": trie.tokens[None],
            "position_ids": trie.positions[None],
            "pack_plan": trie.plan,
        }
        return ModelCall(inputs, places, _only_row, index, trie.runs)
    if layout.sharing == "chains" and len(rows["input_ids"]):
        rows, index = join(rows)
        return replace(_FORMS[layout.form](model, rows), index=index)
    return _FORMS[layout.form](model, rows)


def _runs(rows: Mapping[str, torch.Tensor], lengths: Sequence[int]) -> Sequence[Run]:
    """Return the runs of rows of these lengths."""
    return token_runs(rows["part"].tolist(), lengths) if "part" in rows else ()


def _only_row(outputs: torch.Tensor) -> torch.Tensor:
    return outputs[0]


def _packed(model: Any, rows: Mapping[str, torch.Tensor]) -> ModelCall:
    """Return a call that reads the position before each response token."""
    attention = rows["attention_mask"].bool()
    mask = rows["response_mask"].bool()
    count, width = attention.shape
    prompt_len = width - mask.shape[1]
    place = attention.flatten().cumsum(0).view(count, width) - 1
    keep = place[:, prompt_len - 1 : -1][mask]
    tokens = rows["input_ids"][attention]
    positions = rows["position_ids"][attention]
    lengths = attention.sum(dim=1).tolist()
    runs = _runs(rows, lengths)
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
    inputs = {"input_ids": tokens[None], "position_ids": positions[None], **extra}
    return ModelCall(inputs, keep, _only_row, runs=runs)


def _padded(model: Any, rows: Mapping[str, torch.Tensor]) -> ModelCall:
    """As `_packed`, for padded rows, without the columns that are padding in all of them."""
    attention = rows["attention_mask"]
    mask = rows["response_mask"].bool()
    if not len(attention):
        return _without_rows(attention.device)
    prompt_len = attention.shape[1] - mask.shape[1]
    used = attention.bool().any(dim=0).nonzero()
    first = int(used[0])
    last = max(int(used[-1]) + 1, prompt_len + 1)
    window = slice(first, last)
    inputs = {
        "input_ids": rows["input_ids"][:, window],
        "attention_mask": attention[:, window],
        "position_ids": rows["position_ids"][:, window],
    }
    return ModelCall(
        inputs,
        last - prompt_len + 1,
        lambda outputs: outputs[:, :-1][mask[:, : last - prompt_len]],
        runs=_runs(rows, [last - first] * len(attention)),
    )


def _equal(model: Any, rows: Mapping[str, torch.Tensor]) -> ModelCall:
    """As `_packed`, for rows of one length that are run without padding and without a mask."""
    attention = rows["attention_mask"].bool()
    mask = rows["response_mask"].bool()
    count, width = attention.shape
    if not count:
        return _without_rows(attention.device)
    length = int(attention[0].sum())
    number = attention.cumsum(dim=1) - 1  # of each token in its row
    before = number[:, width - mask.shape[1] - 1 : -1][mask]
    first = int(before.min()) if len(before) else length - 1
    inputs = {
        "input_ids": rows["input_ids"][attention].view(count, length),
        "position_ids": rows["position_ids"][attention].view(count, length),
    }
    row = torch.arange(count, device=mask.device)[:, None].expand_as(mask)[mask]
    return ModelCall(
        inputs,
        length - first,
        lambda outputs: outputs[row, before - first],
        runs=_runs(rows, [length] * count),
    )


_FORMS: Mapping[Form, Callable[[Any, Mapping[str, torch.Tensor]], ModelCall]] = {
    "packed": _packed,
    "padded": _padded,
    "equal": _equal,
}


def _without_rows(device: torch.device) -> ModelCall:
    """Return a call with one token that reads no output of it, for a rank without rows."""
    ids = torch.zeros(1, 1, dtype=torch.long, device=device)
    return ModelCall({"input_ids": ids}, ids.new_zeros(0), _only_row)


def _at_kept(model: Any, call: ModelCall) -> torch.Tensor:
    """Return the head's output at the positions of a call; outputs of a head that skips none are
    sliced.
    """
    output = _output(model, call)
    return output if _skips(model) else _at(output, call.keep)


def _output(model: Any, call: ModelCall) -> torch.Tensor:
    """Return a model's output: at the positions of a call, unless its head skips none."""
    parameters = inspect.signature(model.forward).parameters
    inputs = call.inputs
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        # Models without positions of their own (ALiBi, recurrences) take no position_ids.
        inputs = {name: value for name, value in inputs.items() if name in parameters}
    if _skips(model):
        inputs = inputs | {"logits_to_keep": call.keep}
    return model(**inputs, use_cache=False).logits


def _skips(model: Any) -> bool:
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def _at(values: torch.Tensor, keep: torch.Tensor | int) -> torch.Tensor:
    return values[:, keep] if isinstance(keep, torch.Tensor) else values[:, -keep:]


def _scatter(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Scatter token values into `[bsz, response_len]`."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)
