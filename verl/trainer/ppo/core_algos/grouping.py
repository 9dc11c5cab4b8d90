"""Who is compared with whom: group keys, and statistics of a score within each group.

Statistics are a function of the *set* of rows: scores are ordered by value inside their group before they are summed
(in float64), so that shuffling the batch does not change a single bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class GroupStats:
    """Per-group statistics, each of shape `[n_groups]`; `std` is unbiased and 0 for a group of one."""

    count: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    constant: np.ndarray


def group_index(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Number the distinct tuples of `columns` (each `[bsz]`) from 0: `[bsz]` int64.

    No columns means one global group. Raises ValueError when the lengths differ.
    """
    if len({len(c) for c in columns}) > 1:
        raise ValueError(f"group key columns differ in length: {[len(c) for c in columns]}")
    if not columns:
        raise ValueError("group_index needs at least one column; use np.zeros(bsz) for one global group")
    index = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        numeric = column.dtype != object
        _, inverse = np.unique(column if numeric else column.astype(str), return_inverse=True)
        index = index * (int(inverse.max(initial=-1)) + 1) + inverse.reshape(-1)
        _, index = np.unique(index, return_inverse=True)
    return index.reshape(-1).astype(np.int64)


def group_stats(scores: np.ndarray, index: np.ndarray, valid: np.ndarray | None = None) -> GroupStats:
    """Count, mean, unbiased std and "all equal" of `scores` `[bsz]` per group; rows with `valid` False do not count."""
    n_groups = int(index.max(initial=-1)) + 1
    keep = np.ones(len(scores), dtype=bool) if valid is None else valid.astype(bool)
    s, g = scores[keep].astype(np.float64), index[keep]
    order = np.lexsort((s, g))
    s, g = s[order], g[order]
    count = np.bincount(g, minlength=n_groups)
    safe = np.maximum(count, 1)
    present = np.flatnonzero(count)
    starts = np.concatenate(([0], np.cumsum(count)))[:-1]
    mean, square, constant = np.zeros(n_groups), np.zeros(n_groups), np.ones(n_groups, dtype=bool)
    if len(present):
        mean[present] = np.add.reduceat(s, starts[present]) / safe[present]
        square[present] = np.add.reduceat((s - mean[g]) ** 2, starts[present])
        constant[present] = s[starts[present]] == s[starts[present] + count[present] - 1]
    std = np.sqrt(square / np.maximum(count - 1, 1))
    return GroupStats(count=count, mean=mean, std=np.where(constant, 0.0, std), constant=constant)
