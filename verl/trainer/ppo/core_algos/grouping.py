"""Groups of rows, and statistics of a score within each group.

Statistics depend on the *set* of rows only: scores are sorted within their group before they are
summed (in float64), so that results are identical to the bit for any order of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Codes of columns are combined into one int64; beyond this product they are renumbered in between.
MAX_CODE = 2**62


@dataclass(frozen=True)
class GroupStats:
    """Per-group statistics, each of shape `[n_groups]`; `std` is unbiased and 0 for a group of one.

    `count` is the number of valid rows with a positive weight, `weight` the sum of their weights
    (`count` without weights).
    """

    count: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    constant: np.ndarray
    weight: np.ndarray


def group_index(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Number the distinct tuples of `columns` (each `[bsz]`, of objects or numbers) from 0 in order
    of appearance: `[bsz]` int64.

    Values are compared with `==`: the string "1" and the number 1 are different keys. None and NaN
    are one key. Raises ValueError without columns, or if lengths differ.
    """
    if not columns:
        raise ValueError("group_index needs at least one column; use np.zeros(bsz) for one global group")
    arrays = [np.asarray(column) for column in columns]
    if len({len(array) for array in arrays}) > 1:
        raise ValueError(f"group key columns differ in length: {[len(array) for array in arrays]}")
    code, size = _number(arrays[0])
    for array in arrays[1:]:
        other, other_size = _number(array)
        if size > MAX_CODE // max(other_size, 1):
            code, size = _number(code)
        code = code * other_size + other
        size = size * other_size
    return code if len(arrays) == 1 else _number(code)[0]


def _number(column: np.ndarray) -> tuple[np.ndarray, int]:
    """Return codes of the distinct values of a column from 0 in order of appearance, `[bsz]` int64,
    and their number.

    Only the first row of each run of equal rows is hashed: rows of a task, and of an episode,
    follow each other.
    """
    # imported here because it is slow to import and checks of settings do not need it
    import pandas as pd

    changes = np.ones(len(column), dtype=bool)
    changes[1:] = column[1:] != column[:-1]
    first = np.flatnonzero(changes)
    runs: Any = np.diff(first, append=len(column))
    values, runs = (column[first], runs) if 2 * len(first) <= len(column) else (column, 1)
    codes, distinct = pd.factorize(values.astype(object) if values.dtype.kind in "US" else values)
    missing = codes < 0
    # renumbered, so that a missing value is numbered in the order of appearance as well
    if missing.any():
        codes, distinct = pd.factorize(np.where(missing, len(distinct), codes))
    return np.repeat(codes.astype(np.int64, copy=False), runs), len(distinct)


def first_rows(index: np.ndarray) -> np.ndarray:
    """Return the first row of every group of a `group_index`, `[n_groups]`."""
    return np.flatnonzero(np.diff(np.maximum.accumulate(index), prepend=-1))


def rows_by_value(column: np.ndarray) -> dict[Any, np.ndarray]:
    """Return the rows of every distinct value of a column `[bsz]`, in ascending order, by value in
    order of first appearance.
    """
    # one pass for all values: comparing the column with each of them takes rows times values
    code = group_index([column])
    counts = np.bincount(code)
    parts = np.split(np.argsort(code, kind="stable"), np.cumsum(counts)[:-1]) if len(counts) else []
    return {column[rows[0]]: rows for rows in parts}


def groups_with(cells: np.ndarray, groups: np.ndarray, marked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return of every cell the number of its groups with a marked row, and that of all its groups:
    `[n_cells]` each.

    Args:
        cells: `[bsz]` cell of each row, a `group_index`.
        groups: `[bsz]` group of each row; one group may be in several cells.
        marked: `[bsz]` bool.
    """
    pairs = group_index([cells, groups])
    has_mark = np.zeros(pairs.max(initial=-1) + 1)
    has_mark[pairs[marked]] = 1
    cell_of_pair = cells[first_rows(pairs)]
    return np.bincount(cell_of_pair, weights=has_mark), np.bincount(cell_of_pair)


def checked_weights(weights: np.ndarray) -> np.ndarray:
    """Return weights of rows as float64. Raises ValueError for a negative or non-finite one."""
    values: np.ndarray = np.asarray(weights, dtype=np.float64)
    if not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(
            f"weights of rows must be finite and at least 0, found {values.min()} to {values.max()}"
        )
    return values


def group_stats(
    scores: np.ndarray,
    index: np.ndarray,
    valid: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    copies: bool = False,
) -> GroupStats:
    """Return count, mean, unbiased std and "all equal" of `scores` `[bsz]` per group.

    With weights `w >= 0` the mean is `sum w s / W` and the variance
    `sum w (s - mean)^2 / (W - sum w^2 / W)`, `W = sum w`: reliability weights, under which equal
    weights of any size give the unweighted statistics.

    Args:
        scores: `[bsz]`.
        index: `[bsz]` group of each row, from 0.
        valid: `[bsz]`; rows that are False are ignored.
        weights: `[bsz]`; rows of weight 0 are ignored.
        copies: weights are numbers of copies of a row, so that the variance is
            `sum w (s - mean)^2 / (W - 1)`; `count` remains that of distinct rows.

    Raises:
        ValueError: a weight is negative or not finite.
    """
    n_groups = int(index.max(initial=-1)) + 1
    keep = np.ones(len(scores), dtype=bool) if valid is None else valid.astype(bool)
    if weights is not None:
        weights = checked_weights(weights)
        keep &= weights > 0
    # -0.0 + 0.0 is 0.0: equal scores have the same bits, so that their order does not change the
    # mean.
    s = np.add(scores[keep], 0.0, dtype=np.float64)
    g = index[keep]
    if weights is None:
        s, g = _sort_within_groups(s, g)
        w = None
    else:
        w = weights[keep]
        order = np.lexsort((w, s, g))
        s = s[order]
        g = g[order]
        w = w[order]
    return _reduce(s, g, w, n_groups, copies)


def _reduce(s: np.ndarray, g: np.ndarray, w: np.ndarray | None, n_groups: int, copies: bool) -> GroupStats:
    """Return statistics of rows that are sorted by group and value."""
    count = np.bincount(g, minlength=n_groups)
    present = np.flatnonzero(count)
    mean = np.zeros(n_groups)
    square = np.zeros(n_groups)
    constant = np.ones(n_groups, dtype=bool)
    weight = count.astype(np.float64)
    freedom = np.maximum(count - 1.0, 1.0)
    if len(present):
        sizes = count[present]
        starts = np.cumsum(sizes) - sizes
        if w is not None:
            weight[present] = np.add.reduceat(w, starts)
            freedom[present] = weight[present] - (
                1.0 if copies else np.add.reduceat(w * w, starts) / weight[present]
            )
        lowest = s[starts]
        highest = s[starts + sizes - 1]
        constant[present] = lowest == highest
        # The mean of equal scores is that score; their sum divided by their number may differ in
        # the last bit.
        sums = np.add.reduceat(s if w is None else s * w, starts)
        mean[present] = np.where(constant[present], lowest, sums / weight[present])
        deviation = (s - np.repeat(mean[present], sizes)) ** 2
        square[present] = np.add.reduceat(deviation if w is None else deviation * w, starts)
    variance = np.divide(square, freedom, out=np.zeros(n_groups), where=~constant)
    return GroupStats(count=count, mean=mean, std=np.sqrt(variance), constant=constant, weight=weight)


def _sort_within_groups(s: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and groups sorted by group, then score.

    Sorting integers is several times faster than sorting row indices by two keys, so group and
    score are packed into one integer: the score itself if it is exact in float32 (as rewards are),
    else its rank.
    """
    with np.errstate(over="ignore"):
        narrow = s.astype(np.float32)
    if not np.array_equal(narrow, s):
        order = np.argsort(s)
        packed = (g[order].astype(np.int64) << 32) + np.arange(len(s))
        packed.sort()
        return s[order[packed & 0xFFFFFFFF]], packed >> 32
    bits = narrow.view(np.int32)
    ordered = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)
    packed = (g.astype(np.int64) << 32) + (ordered.astype(np.int64) + 2**31)
    packed.sort()
    ordered = ((packed & 0xFFFFFFFF) - 2**31).astype(np.int32)
    bits = np.where(ordered < 0, ordered ^ np.int32(0x7FFFFFFF), ordered)
    return bits.view(np.float32).astype(np.float64), packed >> 32
