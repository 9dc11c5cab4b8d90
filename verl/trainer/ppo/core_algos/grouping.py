"""Who is compared with whom: group keys, and statistics of a score within each group.

Statistics are a function of the *set* of rows: scores are ordered by value inside their group before they are summed
(in float64), so that shuffling the batch does not change a single bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Column codes are multiplied into one int64; beyond this product they are numbered anew in between.
MAX_CODE = 2**62
# Numbers spread over at most this many times the rows are codes as they are.
NARROW = 4
# Objects are told apart by their place where each stands in more than so many rows on average.
SHARED = 2
# They are not counted where of the first 16th of the rows fewer than one in 16 shares.
SAMPLE = 16


@dataclass(frozen=True)
class GroupStats:
    """Per-group statistics, each of shape `[n_groups]`; `std` is unbiased and 0 for a group of one.

    `count` is the number of rows that count, `weight` the sum of their weights (`count` without weights).
    """

    count: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    constant: np.ndarray
    weight: np.ndarray


def group_index(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Number the distinct tuples of `columns` (each `[bsz]`, of objects or numbers) from 0 in order of appearance: `[bsz]` int64.

    Values are the same when Python's `==` says so: the text "1" and the number 1 are different keys. None and NaN are one key. Raises
    ValueError when there is no column, or when the lengths differ.
    """
    if not columns:
        raise ValueError("group_index needs at least one column; use np.zeros(bsz) for one global group")
    arrays = [np.asarray(column) for column in columns]
    if len({len(array) for array in arrays}) > 1:
        raise ValueError(f"group key columns differ in length: {[len(array) for array in arrays]}")
    code, size = _codes(arrays[0])
    for array in arrays[1:]:
        code, size = _joined(code, size, *_codes(array))
    return _in_order(code, size)


def _joined(code: np.ndarray, size: int, other: np.ndarray, other_size: int) -> tuple[np.ndarray, int]:
    """Codes of pairs `[bsz]` and a bound that all are below."""
    if _tells(code, size, other):
        return code, size
    if _tells(other, other_size, code):
        return other, other_size
    if size > MAX_CODE // max(other_size, 1):
        code, size = _number(code)
    return code * other_size + other, size * other_size


def _tells(code: np.ndarray, size: int, other: np.ndarray) -> bool:
    """Whether rows of one code are all of one `other` (as an episode's are of one task), so that a pair says no more than `code`."""
    if size > NARROW * len(code):
        return False
    met = np.empty(size, dtype=np.int64)
    met[code] = other
    return bool((met[code] == other).all())


def _codes(column: np.ndarray) -> tuple[np.ndarray, int]:
    """Codes `[bsz]`, the same for equal values, and a bound that all are below; whole numbers in a narrow range are their own codes."""
    coded = _codes_by_place(column) if column.dtype.kind == "O" else None
    return coded or _codes_by_value(column)


def _codes_by_value(column: np.ndarray) -> tuple[np.ndarray, int]:
    """`_codes` of a column whose every row is read."""
    if column.dtype.kind == "O" and _all_integers(column):
        try:
            column = column.astype(np.int64)
        except OverflowError:
            return _number(column)
    if column.dtype.kind in "iu" and len(column):
        lowest, highest = int(column.min()), int(column.max())
        if highest - lowest < max(NARROW * len(column), 256) and highest < MAX_CODE:
            return column.astype(np.int64, copy=False) - lowest if lowest else column.astype(np.int64, copy=False), highest - lowest + 1
    return _number(column)


def _codes_by_place(column: np.ndarray) -> tuple[np.ndarray, int] | None:
    """`_codes` of a column whose rows share their objects, as those of one task or agent do; None when most rows have their own.

    Where an object lies is told apart several times faster than what it says, and without reading it; faster still where the rows that
    share one follow each other, as the collector's do.
    """
    import pandas as pd

    places = np.frombuffer(np.ascontiguousarray(column), dtype=np.intp)
    begins = np.ones(len(places), dtype=bool)
    np.not_equal(places[1:], places[:-1], out=begins[1:])
    heads = np.flatnonzero(begins)
    if SHARED * len(heads) <= len(column) and len(column):
        code, size = _codes_by_value(column[heads])
        return np.repeat(code, np.diff(heads, append=len(column))), size
    some = places[: len(places) // SAMPLE]
    if SAMPLE * len(pd.unique(some)) > (SAMPLE - 1) * len(some):
        return None
    place, distinct = pd.factorize(places)
    if SHARED * len(distinct) >= len(column):  # true of a column without rows as well
        return None
    code, size = _codes_by_value(column[first_rows(place)])
    return code[place], size


def _all_integers(column: np.ndarray) -> bool:
    """Whether a column of objects holds whole numbers alone; the first row answers for most that do not."""
    import pandas as pd

    return len(column) > 0 and isinstance(column[0], int | np.integer) and pd.api.types.infer_dtype(column, skipna=False) == "integer"


def _in_order(code: np.ndarray, size: int) -> np.ndarray:
    """Codes below `size`, numbered from 0 in order of appearance; those that are already are returned as they are."""
    highest = np.maximum.accumulate(code)
    if len(code) == 0 or (code[0] == 0 and code.min() == 0 and np.diff(highest).max(initial=0) <= 1):
        return code
    if size > NARROW * len(code):
        return _number(code)[0]
    rows = np.arange(len(code))
    first = np.empty(size, dtype=np.int64)
    first[code[::-1]] = rows[::-1]  # of rows with one code the last that is written stays: the first
    begun = first[code]
    return (np.cumsum(begun == rows) - 1)[begun]


def _number(column: np.ndarray) -> tuple[np.ndarray, int]:
    """Codes `[bsz]` from 0 in order of appearance, and how many there are; hashing, so linear in the rows."""
    import pandas as pd

    column = column.astype(object) if column.dtype.kind in "US" else column
    codes, distinct = pd.factorize(column)
    missing = codes < 0
    if missing.any():
        # Numbered anew, so that a missing value has its place in the order of appearance as well.
        return _number(np.where(missing, len(distinct), codes))
    return codes.astype(np.int64, copy=False), len(distinct)


def first_rows(index: np.ndarray) -> np.ndarray:
    """First row of every group of a `group_index`, `[n_groups]`."""
    return np.flatnonzero(np.diff(np.maximum.accumulate(index), prepend=-1))


def group_stats(
    scores: np.ndarray,
    index: np.ndarray,
    valid: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    copies: bool = False,
) -> GroupStats:
    """Count, mean, unbiased std and "all equal" of `scores` `[bsz]` per group.

    With weights `w >= 0` the mean is `sum w s / W` and the variance `sum w (s - mean)^2 / (W - sum w^2 / W)`, `W = sum w`: reliability
    weights, under which equal weights of any size give the unweighted statistics.

    Args:
        scores: `[bsz]`.
        index: `[bsz]` group of each row, from 0.
        valid: `[bsz]`; rows that are False do not count.
        weights: `[bsz]`; rows of weight 0 do not count.
        copies: a weight says how many rows a row stands for, so that the variance is `sum w (s - mean)^2 / (W - 1)`; `count` remains that
            of distinct rows.

    Raises:
        ValueError: a weight is negative or not finite.
    """
    n_groups = int(index.max(initial=-1)) + 1
    keep = np.ones(len(scores), dtype=bool) if valid is None else valid.astype(bool)
    if weights is not None:
        weights = np.asarray(weights, dtype=np.float64)
        if not (np.isfinite(weights) & (weights >= 0)).all():
            raise ValueError(f"weights of rows must be finite and at least 0, found {weights.min()} to {weights.max()}")
        keep &= weights > 0
    # -0.0 + 0.0 is 0.0: equal scores have the same bits, so that whichever of them comes first gives the same mean.
    s, g = np.add(scores[keep], 0.0, dtype=np.float64), index[keep]
    if weights is None:
        s, g = _sort_within_groups(s, g)
        w = None
    else:
        w = weights[keep]
        order = np.lexsort((w, s, g))
        s, g, w = s[order], g[order], w[order]
    return _reduce(s, g, w, n_groups, copies)


def _reduce(s: np.ndarray, g: np.ndarray, w: np.ndarray | None, n_groups: int, copies: bool) -> GroupStats:
    """Statistics of rows that are already ordered by group and value."""
    count = np.bincount(g, minlength=n_groups)
    present = np.flatnonzero(count)
    mean, square, constant = np.zeros(n_groups), np.zeros(n_groups), np.ones(n_groups, dtype=bool)
    weight, freedom = count.astype(np.float64), np.maximum(count - 1.0, 1.0)
    if len(present):
        sizes = count[present]
        starts = np.cumsum(sizes) - sizes
        if w is not None:
            weight[present] = np.add.reduceat(w, starts)
            freedom[present] = weight[present] - (1.0 if copies else np.add.reduceat(w * w, starts) / weight[present])
        lowest, highest = s[starts], s[starts + sizes - 1]
        constant[present] = lowest == highest
        # The mean of equal scores is that score; their sum divided again may be off by a bit.
        sums = np.add.reduceat(s if w is None else s * w, starts)
        mean[present] = np.where(constant[present], lowest, sums / weight[present])
        deviation = (s - np.repeat(mean[present], sizes)) ** 2
        square[present] = np.add.reduceat(deviation if w is None else deviation * w, starts)
    variance = np.divide(square, freedom, out=np.zeros(n_groups), where=~constant)
    return GroupStats(count=count, mean=mean, std=np.sqrt(variance), constant=constant, weight=weight)


def _sort_within_groups(s: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores and groups ordered by group, then score.

    Sorting integers is several times faster than sorting row numbers by two keys, so group and score are packed into one: the score
    itself when float32 holds it exactly (as it does rewards), else its rank.
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
