"""Rows as paths of a trie: a token that several rows begin with is run once, and each row reads its
scores off its own path.

The model alone sees the trie. Log-probs, entropies and values go back to the rows that they belong
to, and autograd sums over the rows what a shared token needs, so masks, advantages, weights, ratios
of whole replies, means over rows and mini-batches are those of single rows, for every loss. At a
branch a token has several next tokens: its logits are computed once and read for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from verl.workers.engine.attention import BUCKET_FILL, PackPlan, plan_branches
from verl.workers.engine.mixed_adapters import Run, token_runs

# Keys and values of a token are at most about this share of what its activations take.
GATHERED_SHARE = 1 / 8
# Logits of a scored token, their gradient, and two temporaries of as many numbers.
LOGITS_COPIES = 4
# `[tokens, 2]` int64: id and position of each token; with parts `[tokens, 3]`: before them the part
# of the row, so that rows of different parts share nothing.
Row = np.ndarray


@dataclass(frozen=True)
class Trie:
    """Distinct tokens of some rows.

    A row's own tokens are those behind the beginning that it shares with the row before it, in
    lexicographic order from the last row to the first; they stand together. Those of rows that
    share nothing come first, longest first.

    Attributes:
        tokens: `[size]` ids.
        positions: `[size]` position ids.
        plan: what each token attends to.
        before: `[n]` for each unmasked response token of the rows, in row-major order, the index of
            the token before it.
        runs: which tokens belong to which part; empty without parts.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    plan: PackPlan
    before: torch.Tensor
    runs: tuple[Run, ...]


def token_rows(rows: Mapping[str, torch.Tensor]) -> list[Row]:
    """Return the tokens of each row that a model has to run: those before its last unmasked
    response token.

    Args:
        rows: `input_ids`, `position_ids`, `attention_mask` `[bsz, width]`, `response_mask`, and
            `part` `[bsz]` if they have parts.
    """
    attention = rows["attention_mask"].bool().cpu().numpy()
    mask = rows["response_mask"].bool().cpu().numpy()
    inputs = row_inputs(rows).numpy()
    prompt_len = attention.shape[1] - mask.shape[1]
    result: list[Row] = []
    for row, real in enumerate(attention):
        scored = np.flatnonzero(mask[row])
        stop = prompt_len + int(scored[-1]) if len(scored) else 0
        result.append(inputs[row, :stop][real[:stop]])
    return result


def row_inputs(rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return what must be equal for two rows to share a token, `[bsz, width, 2]` or with parts
    `[bsz, width, 3]`, on the CPU: see `Row`.
    """
    columns = [rows["input_ids"], rows["position_ids"]]
    if "part" in rows:
        columns.insert(0, rows["part"][:, None].expand_as(rows["input_ids"]))
    return torch.stack(columns, dim=-1).long().cpu()


def shared_lengths(rows: Sequence[Row]) -> tuple[list[int], list[int]]:
    """Return the order of rows from the lexicographically last one to the first, and for each place
    in it with how many tokens of the row before it the row begins.

    A row that begins another one comes after it.
    """
    order = sorted(range(len(rows)), key=lambda row: rows[row].tobytes(), reverse=True)
    shared = [0]
    for before, row in pairwise(order):
        length = min(len(rows[before]), len(rows[row]))
        differ = (rows[before][:length] != rows[row][:length]).any(axis=1)
        shared.append(int(differ.argmax()) if differ.any() else length)
    return order, shared[: len(order)]


def count_run(rows: Sequence[Row]) -> int:
    """Return the number of distinct tokens of rows: those that a trie runs."""
    order, shared = shared_lengths(rows)
    return sum(len(rows[row]) - begin for row, begin in zip(order, shared, strict=True))


def logits_share(config: Any) -> float:
    """Return what a scored token keeps for its logits, as a share of what a token keeps in all
    layers.

    Both are estimates for layers as in Llama: inputs of norms and projections, queries, keys and
    values, and four numbers for each of the feed-forward width.

    Args:
        config: of a language model.
    """
    text = config.get_text_config()
    width = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    if isinstance(width, (list, tuple)):  # layers of different widths
        width = sum(width) / len(width)
    return LOGITS_COPIES * text.vocab_size / (text.num_hidden_layers * (9 * text.hidden_size + 4 * width))


def plan_tries(
    rows: Sequence[Row], scored: Sequence[int], budget: int | None, most_rows: int, share: float
) -> list[list[int]]:
    """Split rows into micro-batches in the order of `shared_lengths`; a beginning that is shared
    across a cut is run in both.

    A budget stands for the memory of that many tokens of single rows. So a micro-batch is charged
    for the tokens that it runs, for the logits of scored tokens, which single rows would have as
    well, and a row for the keys and values of its shared beginning, which its attention gathers.

    Args:
        rows: of `token_rows`.
        scored: number of scored tokens of each row.
        budget: most tokens of a micro-batch, or None to split by rows; a row above it is alone.
        most_rows: rows of a micro-batch without a budget.
        share: of `logits_share`; 0 where no logits are kept.
    """
    result: list[list[int]] = []
    density = max((count / (len(row) + 1) for row, count in zip(rows, scored, strict=True)), default=0.0)
    most = (budget or 0) * (1.0 + share * density)
    cost = 0.0
    for row, begin in zip(*shared_lengths(rows), strict=True):
        logits = share * scored[row]
        added = len(rows[row]) - begin + begin * GATHERED_SHARE + logits
        full = not result or (len(result[-1]) >= most_rows if budget is None else cost + added > most)
        if full:
            result.append([])
            cost = 0.0
            # Nothing before it in the micro-batch has its beginning.
            added = len(rows[row]) + logits
        result[-1].append(row)
        cost += added
    return result


def build_trie(rows: Mapping[str, torch.Tensor]) -> Trie:
    """Return the trie of the rows of a micro-batch; without a token to score it has one token that
    nothing is read from.

    Args:
        rows: as `token_rows`.
    """
    device = rows["input_ids"].device
    paths = token_rows(rows)
    order, shared = shared_lengths(paths)
    suffix_lengths = {row: len(paths[row]) - begin for row, begin in zip(order, shared, strict=True)}
    begins = dict(zip(order, shared, strict=True))
    parts: list[int] = rows["part"].tolist() if "part" in rows else []
    roots = sorted(
        (row for row in order if suffix_lengths[row] and not begins[row]),
        key=lambda row: (
            (_length_class(suffix_lengths[row]), parts[row], -suffix_lengths[row])
            if parts
            else -suffix_lengths[row]
        ),
    )
    branches = sorted(
        (row for row in order if suffix_lengths[row] and begins[row]),
        key=lambda row: (-begins[row], -suffix_lengths[row], parts[row] if parts else 0),
    )
    start: dict[int, int] = {}
    size = 0
    stacked = (*roots, *branches)
    for row in stacked:
        start[row] = size
        size += suffix_lengths[row]
    where: dict[int, np.ndarray] = {}
    inputs = np.zeros((max(size, 1), 2), dtype=np.int64)
    above = np.zeros(0, dtype=np.int64)
    for row in order:
        stands = np.arange(suffix_lengths[row]) + start.get(row, 0)
        inputs[stands] = paths[row][begins[row] :, -2:]
        above = where[row] = np.concatenate([above[: begins[row]], stands])
    plan = plan_branches(
        [suffix_lengths[row] for row in roots] or [1] * (not size),
        [(where[row][: begins[row]], suffix_lengths[row]) for row in branches],
        device,
    )
    return Trie(
        torch.from_numpy(inputs[:, 0].copy()).to(device),
        torch.from_numpy(inputs[:, 1].copy()).to(device),
        plan,
        _before(rows, where).to(device),
        tuple(
            token_runs([parts[row] for row in stacked], [suffix_lengths[row] for row in stacked])
            if parts
            else ()
        ),
    )


def _length_class(length: int) -> int:
    """Return a number that rows have in common whose lengths differ so little that their attention
    is one call: within it rows of one part stand together.
    """
    return round(math.log(length) / math.log(BUCKET_FILL))


def _before(rows: Mapping[str, torch.Tensor], where: Mapping[int, np.ndarray]) -> torch.Tensor:
    """Return `Trie.before`, given the index of each token of each row."""
    attention = rows["attention_mask"].bool().cpu()
    mask = rows["response_mask"].bool().cpu()
    number = (attention.cumsum(dim=1) - 1)[:, attention.shape[1] - mask.shape[1] :].numpy()
    pieces = [where[row][number[row][scored] - 1] for row, scored in enumerate(mask.numpy())]
    return torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.int64), *pieces]))
