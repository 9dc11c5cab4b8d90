"""Partition sequences so that every part holds about the same number of tokens."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def get_seqlen_balanced_partitions(
    seqlen_list: Sequence[int], k_partitions: int, equal_size: bool
) -> list[list[int]]:
    """Split indices into `k_partitions` parts with nearly equal sums, by Karmarkar and Karp's
    largest differencing.

    Args:
        seqlen_list: tokens of each sequence.
        k_partitions: number of parts, none of them empty.
        equal_size: every part gets the same number of sequences.

    Returns:
        one sorted list of indices per part; the same input gives the same output.

    Raises:
        ValueError: fewer sequences than parts, or `equal_size` with a number of sequences that is
            no multiple of `k_partitions`.
    """
    count = len(seqlen_list)
    if k_partitions < 1 or count < k_partitions:
        raise ValueError(f"cannot split {count} sequences into {k_partitions} parts, none of them empty")
    if equal_size and count % k_partitions:
        raise ValueError(
            f"{count} sequences do not divide into {k_partitions} parts of equal size; pad them to "
            "a multiple first"
        )
    order = sorted(range(count), key=lambda i: (-int(seqlen_list[i]), i))
    if equal_size:
        tuples = [
            [[i] for i in order[start : start + k_partitions]] for start in range(0, count, k_partitions)
        ]
    else:
        tuples = [[[i], *([] for _ in range(k_partitions - 1))] for i in order]
    parts = _difference(tuples, seqlen_list)
    return [sorted(part) for part in (parts if equal_size else _fill_empty(parts, seqlen_list))]


def _difference(tuples: list[list[list[int]]], lengths: Sequence[int]) -> list[list[int]]:
    """Merge the two solutions of largest spread, heaviest part with lightest, until one solution is
    left.
    """
    heap = []
    for serial, parts in enumerate(tuples):
        sums = [sum(int(lengths[i]) for i in part) for part in parts]
        heap.append((min(sums) - max(sums), serial, sums, parts))
    heapq.heapify(heap)
    serial = len(heap)
    while len(heap) > 1:
        _, _, sums_a, parts_a = heapq.heappop(heap)
        _, _, sums_b, parts_b = heapq.heappop(heap)
        sums = [a + b for a, b in zip(sums_a, reversed(sums_b), strict=True)]
        parts = [a + b for a, b in zip(parts_a, reversed(parts_b), strict=True)]
        heaviest_first = sorted(range(len(sums)), key=lambda j: -sums[j])
        sums = [sums[j] for j in heaviest_first]
        parts = [parts[j] for j in heaviest_first]
        heapq.heappush(heap, (sums[-1] - sums[0], serial, sums, parts))
        serial += 1
    return heap[0][3]


def _fill_empty(parts: list[list[int]], lengths: Sequence[int]) -> list[list[int]]:
    """Move the shortest sequence of the part with the most sequences to every empty part."""
    for part in parts:
        if not part:
            donor = max(parts, key=len)
            part.append(donor.pop(min(range(len(donor)), key=lambda j: lengths[donor[j]])))
    return parts
