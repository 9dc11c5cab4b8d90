"""Groups of steps that started in the same state: equal, or similar, anchor observations within a
group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from verl.trainer.ppo.core_algos.grouping import group_index


def build_step_group(
    anchor_obs: np.ndarray,
    index: np.ndarray,
    enable_similarity: bool = False,
    similarity_thresh: float = 0.95,
    *,
    valid: np.ndarray | None = None,
) -> np.ndarray:
    """Number the distinct (group, anchor observation) pairs: `[bsz]` int64 (GiGPO, arXiv 2505.10978, eq. 6).

    Args:
        anchor_obs: `[bsz]` hashable observations (strings, bytes, numbers, tuples); strings for similarity.
        index: `[bsz]` group of each row; steps of different groups are never in one state.
        enable_similarity: also join observations of a group whose `similarity` reaches the threshold. Each
            distinct observation, in sorted order, joins the first earlier representative of a state that is
            similar enough, or represents a new state: the result depends on the set of observations only. At
            most (observations x states) comparisons per group; those that lengths and letter counts exclude
            are skipped.
        similarity_thresh: in (0, 1].
        valid: `[bsz]` bool; rows that are False are ignored and have number -1.

    Raises:
        ValueError: an observation is missing, or the threshold is out of range.
        TypeError: an observation is not hashable, or not a string with similarity.
    """
    anchors = np.fromiter(anchor_obs, dtype=object, count=len(anchor_obs))
    rows = np.arange(len(anchors)) if valid is None else np.flatnonzero(valid)
    missing = rows[[anchor is None for anchor in anchors[rows]]]
    if len(missing):
        raise ValueError(
            f"{len(missing)} of {len(rows)} rows have no anchor observation (first: row "
            f"{missing[0]}), which gigpo needs"
        )
    if enable_similarity and not 0 < similarity_thresh <= 1:
        raise ValueError(
            f"algorithm.gigpo.similarity_thresh={similarity_thresh}: expected more than 0 and at most 1"
        )
    groups = group_index([np.asarray(index)[rows]])
    out = np.full(len(anchors), -1, dtype=np.int64)
    out[rows] = (
        _similar(anchors[rows], groups, similarity_thresh)
        if enable_similarity
        else _equal(anchors[rows], groups)
    )
    return out


def _equal(anchors: np.ndarray, groups: np.ndarray) -> np.ndarray:
    return group_index([groups, _distinct(anchors)[0]])


def _similar(anchors: np.ndarray, groups: np.ndarray, similarity_thresh: float) -> np.ndarray:
    codes, first = _distinct(anchors)
    exact = group_index([groups, codes])
    rows = np.unique(exact, return_index=True)[1]
    state = np.empty(len(rows), dtype=np.int64)
    order = np.argsort(groups[rows], kind="stable")
    for members in np.split(order, np.cumsum(np.bincount(groups[rows]))[:-1]):
        state[members] = members[
            _representatives([anchors[first[codes[rows[m]]]] for m in members], similarity_thresh)
        ]
    return group_index([state[exact]])


def similarity(a: str, b: str) -> float:
    """Return `2 LCS(a, b) / (len(a) + len(b))` in [0, 1], LCS the longest common subsequence of
    characters (`ratio` of rapidfuzz).

    1 for equal strings. At least `difflib.SequenceMatcher.ratio`, whose value depends on the order
    of its arguments.
    """
    if not a and not b:
        return 1.0
    start = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        start += 1
    end = 0
    for x, y in zip(reversed(a[start:]), reversed(b[start:]), strict=False):
        if x != y:
            break
        end += 1
    inner_a = a[start : len(a) - end]
    inner_b = b[start : len(b) - end]
    return 2.0 * (start + end + _common_subsequence(inner_a, inner_b)) / (len(a) + len(b))


def _common_subsequence(a: str, b: str) -> int:
    """Return the length of the longest common subsequence; a column of the table is stored in the
    bits of an integer (Hyyro 2004).
    """
    where: dict[str, int] = {}
    for i, letter in enumerate(a):
        where[letter] = where.get(letter, 0) | (1 << i)
    full = (1 << len(a)) - 1
    column = full
    for letter in b:
        match = column & where.get(letter, 0)
        column = ((column + match) | (column - match)) & full
    return len(a) - column.bit_count()


def _distinct(anchors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the code of each anchor `[bsz]` and one row per code; every anchor is compared with
    that row's, so that hashes may collide.
    """
    hashes = np.fromiter(map(hash, anchors), dtype=np.int64, count=len(anchors))
    _, first, codes = np.unique(hashes, return_index=True, return_inverse=True)
    if np.equal(anchors, anchors[first[codes]]).astype(bool).all():
        return codes, first
    numbered: dict[object, int] = {}
    codes = np.fromiter(
        (numbered.setdefault(a, len(numbered)) for a in anchors), dtype=np.int64, count=len(anchors)
    )
    return codes, np.unique(codes, return_index=True)[1]


def _representatives(texts: Sequence[object], threshold: float) -> np.ndarray:
    """Return the index of the representative of each text's state: `[n]`."""
    wrong = next((text for text in texts if not isinstance(text, str)), None)
    if wrong is not None:
        raise TypeError(
            "algorithm.gigpo.enable_similarity compares strings, but an anchor observation is "
            f"{type(wrong).__name__}"
        )
    words = [str(text) for text in texts]
    letters = _letter_counts(words)
    length = letters.sum(axis=1)
    out = np.empty(len(words), dtype=np.int64)
    states: list[int] = []
    for i in sorted(range(len(words)), key=words.__getitem__):
        common = np.minimum(letters[states], letters[i]).sum(axis=1)
        possible = 2.0 * common >= threshold * (length[states] + length[i]) - 1e-9
        joined = (
            states[k] for k in np.flatnonzero(possible) if similarity(words[states[k]], words[i]) >= threshold
        )
        out[i] = next(joined, -1)
        if out[i] < 0:
            out[i] = i
            states.append(i)
    return out


def _letter_counts(words: Sequence[str]) -> np.ndarray:
    """Return the count of each letter in each text, `[n, letters]`: common letters are an upper
    bound of the common subsequence.
    """
    alphabet = {letter: k for k, letter in enumerate(sorted(set().union(*words)))}
    counts = np.zeros((len(words), max(len(alphabet), 1)), dtype=np.int64)
    for i, word in enumerate(words):
        np.add.at(
            counts[i], np.fromiter((alphabet[letter] for letter in word), dtype=np.int64, count=len(word)), 1
        )
    return counts
