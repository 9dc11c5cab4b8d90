"""Chains: a row whose tokens begin those of another, as an earlier reply of a conversation does, is
read off that row's forward pass.

It is the way to share tokens for models whose state cannot branch, and for rows that are padded;
see `verl.workers.engine.trie` for rows that only begin alike. As there, the model alone sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch

from verl.workers.engine.trie import row_inputs


def longest_rows(rows: Mapping[str, torch.Tensor]) -> list[int]:
    """Return for every row the index of a longest row that begins with its tokens, prompt and
    response: its own if there is no other.

    Tokens are equal if their ids and positions are. Of rows that continue the same one differently,
    one reads it.

    Args:
        rows: `input_ids`, `position_ids` and `attention_mask`, `[bsz, width]`, and `part` `[bsz]` if
            they have parts.
    """
    inputs = row_inputs(rows)
    tokens = [
        row[real].numpy().tobytes()
        for row, real in zip(inputs, rows["attention_mask"].bool().cpu(), strict=True)
    ]
    order = sorted(range(len(tokens)), key=tokens.__getitem__)
    hosts = list(range(len(tokens)))
    # rows that begin with a row's bytes come right after it
    for row, after in reversed(list(pairwise(order))):
        if tokens[after].startswith(tokens[row]):
            hosts[row] = hosts[after]
    return hosts


def members(longest: Sequence[int]) -> dict[int, list[int]]:
    """Return, for a result of `longest_rows`, the rows that are read in each of the longest, itself
    included.
    """
    rows_by_host: dict[int, list[int]] = {}
    for row, host in enumerate(longest):
        rows_by_host.setdefault(host, []).append(row)
    return rows_by_host


def join(rows: Mapping[str, torch.Tensor]) -> tuple[Mapping[str, torch.Tensor], torch.Tensor | None]:
    """Return the rows that the model runs, and the index of the given rows' response tokens among
    theirs.

    A row that is run has a response from the first token that any row needs, and a `response_mask`
    of all that are needed.

    Args:
        rows: `INPUT_KEYS`, and `part` if they have parts.

    Returns:
        the same columns of the rows to run, and an index `[tokens]`: a value per unmasked response
            token of
        these, in row-major order, becomes one per unmasked response token of the given rows; None
        if no row begins another one.
    """
    hosts, owner = torch.tensor(longest_rows(rows), device=rows["input_ids"].device).unique(
        return_inverse=True
    )
    if len(hosts) == len(owner):
        return rows, None
    attention = rows["attention_mask"].bool()
    mask = rows["response_mask"].bool()
    width = attention.shape[1]
    # of each response token in its row
    number = (attention.cumsum(dim=1) - 1)[:, width - mask.shape[1] :][mask]
    of_host = owner[:, None].expand_as(mask)[mask]
    # columns of the tokens, in order
    places = (~attention[hosts]).int().argsort(dim=1, stable=True)
    column = places[of_host, number]
    start = int(column.min()) if len(column) else width - 1
    needed = torch.zeros(len(hosts), width - start, dtype=torch.bool, device=mask.device)
    needed[of_host, column - start] = True
    index = (needed.flatten().cumsum(dim=0) - 1).view(needed.shape)[of_host, column - start]
    names = ("input_ids", "attention_mask", "position_ids", *(["part"] if "part" in rows else []))
    runs = {name: rows[name][hosts] for name in names}
    return runs | {"responses": runs["input_ids"][:, start:], "response_mask": needed}, index
