"""Split rows into micro-batches by a token budget or by rows, the same number on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

# Token budget of a micro-batch where none is set and memory allows it: larger ones are not faster.
MOST_TOKENS = 16384


@dataclass(frozen=True)
class MicroBatchRule:
    """How rows are split.

    Attributes:
        token_budget: maximum number of tokens of one micro-batch (padding included when not
            packed), or None to split by rows.
        rows: maximum number of rows of one micro-batch without a token budget.
        packed: rows are run without padding, so that only their own tokens count.
    """

    token_budget: int | None
    rows: int
    packed: bool

    def __post_init__(self) -> None:
        limit = self.rows if self.token_budget is None else self.token_budget
        if limit < 1:
            raise ValueError(f"micro-batch limit {limit}: expected at least 1")


def plan_micro_batches(lengths: Sequence[int], rule: MicroBatchRule) -> list[list[int]]:
    """Return the row indices of each micro-batch, longest row first; a row over the budget runs
    alone.

    With a budget and packing, micro-batches hold about equally many tokens (Karmarkar-Karp).
    """
    if not lengths:
        return []
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    if rule.token_budget is None:
        return [order[start : start + rule.rows] for start in range(0, len(order), rule.rows)]
    if not rule.packed:
        return _fill_padded(order, lengths, rule.token_budget)
    alone = [[i] for i in order if lengths[i] >= rule.token_budget]
    rest = order[len(alone) :]
    return alone + (_balance(rest, lengths, rule.token_budget) if rest else [])


def _fill_padded(order: list[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Fill micro-batches with rows of similar length up to a padded size of `budget` tokens."""
    result: list[list[int]] = []
    for i in order:
        if result and (len(result[-1]) + 1) * lengths[result[-1][0]] <= budget:
            result[-1].append(i)
        else:
            result.append([i])
    return result


def _balance(order: list[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    sizes = [lengths[i] for i in order]
    for parts in range(-(-sum(sizes) // budget), len(order) + 1):
        split = get_seqlen_balanced_partitions(sizes, parts, equal_size=False)
        if max(sum(sizes[j] for j in part) for part in split) <= budget:
            return [[order[j] for j in part] for part in split]
    return [[i] for i in order]


def same_count(count: int, group: dist.ProcessGroup | None, device: torch.device) -> int:
    """Return the largest `count` over the ranks, so that all of them run the same number of
    collectives.
    """
    if dist.get_world_size(group) == 1:
        return count
    value = torch.tensor(count, device=device)
    dist.all_reduce(value, dist.ReduceOp.MAX, group=group)
    return int(value)
