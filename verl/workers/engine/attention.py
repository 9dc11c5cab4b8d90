"""Attention over a packed sequence without flash-attn: rows are padded for the attention kernel
only.

Everything else in the model runs on the packed tokens. Rows are grouped into buckets of similar
length; inside a bucket they are padded on the right, so that under a causal kernel no real token
attends to padding, no mask is needed and the result is exact.

A row may also be a branch: the continuation of a path of tokens that stand elsewhere in the
sequence, as the replies to one prompt are. Its keys are those of the path, gathered, and its own; a
mask hides their padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

PACKED_ATTENTION = "verl_packed_sdpa"
BUCKET_FILL = 0.75
# Branches of at most so many tokens share a bucket whatever their lengths: padding costs less than
# a call.
_SHORT_BRANCH = 16


@dataclass(frozen=True)
class Path:
    """The paths of the branches of one bucket, padded on the right.

    Attributes:
        gather: `[rows * width]` index into the packed sequence.
        lengths: `[rows]` tokens of each path.
        width: of the padded paths.
    """

    gather: torch.Tensor
    lengths: torch.Tensor
    width: int


@dataclass(frozen=True)
class Bucket:
    """Consecutive rows of a packed sequence that share one attention call.

    Attributes:
        start, stop: token range in the packed sequence.
        rows, width: the padded shape.
        gather: `[rows * width]` index into the range, or None when all rows are `width` long.
        scatter: `[stop - start]` index back into the padded tokens, or None in the same case.
        path: what the rows continue; None for rows of their own.
        masks: of the bucket by sliding window (None without one), made when they are first needed.
    """

    start: int
    stop: int
    rows: int
    width: int
    gather: torch.Tensor | None
    scatter: torch.Tensor | None
    path: Path | None = None
    masks: dict[int | None, torch.Tensor | None] = field(default_factory=dict)

    def mask(self, window: int | None) -> torch.Tensor | None:
        """Return which keys each query may see, True where it may, or None where causal attention
        is enough.

        Args:
            window: a query sees the keys less than so many tokens before it.

        Returns:
            `[width, width]`, or with paths `[rows, 1, width, path width + width]`.
        """
        if window not in self.masks:
            self.masks[window] = self._mask(window)
        return self.masks[window]

    def _mask(self, window: int | None) -> torch.Tensor | None:
        if self.path is None:
            if window is None or self.width <= window:
                return None
            distance = torch.arange(self.width)
            distance = distance[:, None] - distance[None]
            return (distance >= 0) & (distance < window)
        lengths = self.path.lengths[:, None]
        places = torch.arange(self.path.width, device=lengths.device).expand(self.rows, -1)
        query_positions = lengths + torch.arange(self.width, device=lengths.device)
        # Padding of a path stands behind every query.
        behind = self.path.width + self.width
        keys = torch.cat([places.masked_fill(places >= lengths, behind), query_positions], dim=1)
        distance = query_positions[:, :, None] - keys[:, None]
        allowed = distance >= 0
        return (allowed if window is None else allowed & (distance < window))[:, None]


@dataclass(frozen=True)
class PackPlan:
    """The buckets of one packed sequence, in order, without gaps."""

    buckets: tuple[Bucket, ...]


def plan_packing(lengths: Sequence[int], device: torch.device) -> PackPlan:
    """Return the plan for rows of these lengths, packed in this order (sorted by length, they need
    the least padding).
    """
    buckets: list[Bucket] = []
    row = 0
    start = 0
    while row < len(lengths):
        end = row + 1
        low = high = lengths[row]
        while end < len(lengths) and min(low, lengths[end]) >= BUCKET_FILL * max(high, lengths[end]):
            low = min(low, lengths[end])
            high = max(high, lengths[end])
            end += 1
        bucket = _bucket(start, torch.tensor(lengths[row:end]), device)
        buckets.append(bucket)
        row = end
        start = bucket.stop
    return PackPlan(tuple(buckets))


def plan_branches(
    roots: Sequence[int], branches: Sequence[tuple[np.ndarray, int]], device: torch.device
) -> PackPlan:
    """Return the plan for rows of these lengths, packed in this order, and behind them branches.

    Args:
        roots: lengths of the rows that continue nothing.
        branches: for each the index, in the packed sequence, of the tokens that it continues, and
            its own length; sorted by both, they need the least padding.
        device: of the plan.
    """
    plan = plan_packing(roots, device)
    buckets = list(plan.buckets)
    start = sum(roots)
    first = 0
    while first < len(branches):
        end = first + 1
        while end < len(branches) and _alike(branches[first : end + 1]):
            end += 1
        bucket = _bucket(
            start,
            torch.tensor([length for _, length in branches[first:end]]),
            device,
            _padded_paths([path for path, _ in branches[first:end]], device),
        )
        buckets.append(bucket)
        first = end
        start = bucket.stop
    return PackPlan(tuple(buckets))


def _padded_paths(paths: Sequence[np.ndarray], device: torch.device) -> Path:
    lengths = torch.tensor([len(path) for path in paths])
    index = np.zeros((len(paths), int(lengths.max())), dtype=np.int64)
    for row, path in zip(index, paths, strict=True):
        # Padding repeats a token of the path: of another row, a value that is not finite would come
        # through the mask, as 0 times it.
        row[: len(path)] = path
        row[len(path) :] = path[0] if len(path) else 0
    return Path(torch.from_numpy(index.flatten()).to(device), lengths.to(device), index.shape[1])


def _alike(branches: Sequence[tuple[np.ndarray, int]]) -> bool:
    """Return whether branches are so similar in length that they may share a bucket."""
    branch_lengths = [length for _, length in branches]
    keys = [len(path) + length for path, length in branches]
    return min(keys) >= BUCKET_FILL * max(keys) and (
        max(branch_lengths) <= _SHORT_BRANCH or min(branch_lengths) >= BUCKET_FILL * max(branch_lengths)
    )


def _bucket(start: int, lengths: torch.Tensor, device: torch.device, path: Path | None = None) -> Bucket:
    rows = len(lengths)
    width = int(lengths.max())
    total = int(lengths.sum())
    if rows * width == total:
        return Bucket(start, start + total, rows, width, None, None, path)
    real = torch.arange(width)[None] < lengths[:, None]
    first = lengths.cumsum(0) - lengths
    # Padding repeats the first token of its row: no real token attends to it.
    gather = torch.where(real, first[:, None] + torch.arange(width)[None], first[:, None])
    scatter = real.flatten().nonzero().squeeze(1)
    return Bucket(start, start + total, rows, width, gather.flatten().to(device), scatter.to(device), path)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    pack_plan: PackPlan | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute causal attention inside each row of a packed sequence (transformers' attention
    interface).

    Args:
        query: `[1, heads, tokens, head_dim]`; key and value likewise, with as many or fewer heads.
        pack_plan: from `plan_packing` or `plan_branches`, passed to the model as a keyword
            argument.

    Returns:
        `[1, tokens, heads, head_dim]` and no attention weights.

    Raises:
        ValueError: no plan, or more than one packed sequence.
    """
    if pack_plan is None or query.shape[0] != 1:
        raise ValueError(
            f"{PACKED_ATTENTION} needs pack_plan and a batch of one packed sequence, got batch "
            f"{query.shape[0]}"
        )
    flat = [states[0].transpose(0, 1) for states in (query, key, value)]
    grouped = query.shape[1] != key.shape[1]
    outputs = []
    for bucket in pack_plan.buckets:
        q, k, v = (_pad(states, bucket) for states in flat)
        if bucket.path is not None:
            k, v = (
                torch.cat([_path(states, bucket.rows, bucket.path), bucket_states], dim=2)
                for states, bucket_states in ((flat[1], k), (flat[2], v))
            )
        mask = bucket.mask(sliding_window)
        if mask is not None:
            mask = mask.to(q.device)
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=grouped,
        )
        out = out.transpose(1, 2).flatten(0, 1)
        outputs.append(out if bucket.scatter is None else out.index_select(0, bucket.scatter))
    return torch.cat(outputs)[None], None


def _pad(states: torch.Tensor, bucket: Bucket) -> torch.Tensor:
    """Pad `[tokens, heads, dim]` to `[rows, heads, width, dim]`."""
    part = states[bucket.start : bucket.stop]
    if bucket.gather is not None:
        part = part.index_select(0, bucket.gather)
    return part.unflatten(0, (bucket.rows, bucket.width)).transpose(1, 2)


def _path(states: torch.Tensor, rows: int, path: Path) -> torch.Tensor:
    """Gather the paths of `[tokens, heads, dim]` as `[rows, heads, path width, dim]`."""
    return states.index_select(0, path.gather).unflatten(0, (rows, path.width)).transpose(1, 2)


def register_packed_attention() -> None:
    """Register `attn_implementation=PACKED_ATTENTION` with transformers; may be called again."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED_ATTENTION, packed_attention)
