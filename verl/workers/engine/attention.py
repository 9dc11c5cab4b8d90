"""Attention over a packed sequence without flash-attn: rows are padded for the attention kernel only.

Everything else in the model runs on the packed tokens. Rows are grouped into buckets of similar length;
inside a bucket they are padded on the right, so that under a causal kernel no real token attends to padding,
no mask is needed and the result is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

PACKED_ATTENTION = "verl_packed_sdpa"
_BUCKET_FILL = 0.75


@dataclass(frozen=True)
class Bucket:
    """Consecutive rows of a packed sequence that share one attention call.

    Attributes:
        start, stop: token range in the packed sequence.
        rows, width: the padded shape.
        gather: `[rows * width]` index into the range, or None when all rows are `width` long.
        scatter: `[stop - start]` index back into the padded tokens, or None in the same case.
    """

    start: int
    stop: int
    rows: int
    width: int
    gather: torch.Tensor | None
    scatter: torch.Tensor | None


@dataclass(frozen=True)
class PackPlan:
    """The buckets of one packed sequence, in order, without gaps."""

    buckets: tuple[Bucket, ...]


def plan_packing(lengths: Sequence[int], device: torch.device) -> PackPlan:
    """Return the plan for rows of these lengths, packed in this order (sorted by length, they need the least
    padding).
    """
    buckets: list[Bucket] = []
    row, start = 0, 0
    while row < len(lengths):
        end = row + 1
        low = high = lengths[row]
        while end < len(lengths) and min(low, lengths[end]) >= _BUCKET_FILL * max(high, lengths[end]):
            low, high = min(low, lengths[end]), max(high, lengths[end])
            end += 1
        bucket = _bucket(start, torch.tensor(lengths[row:end]), device)
        buckets.append(bucket)
        row, start = end, bucket.stop
    return PackPlan(tuple(buckets))


def _bucket(start: int, lengths: torch.Tensor, device: torch.device) -> Bucket:
    rows, width, total = len(lengths), int(lengths.max()), int(lengths.sum())
    if rows * width == total:
        return Bucket(start, start + total, rows, width, None, None)
    real = torch.arange(width)[None] < lengths[:, None]
    first = lengths.cumsum(0) - lengths
    gather = torch.where(real, first[:, None] + torch.arange(width)[None], first[:, None])
    scatter = real.flatten().nonzero().squeeze(1)
    return Bucket(start, start + total, rows, width, gather.flatten().to(device), scatter.to(device))


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
    """Compute causal attention inside each row of a packed sequence (transformers' attention interface).

    Args:
        query: `[1, heads, tokens, head_dim]`; key and value likewise, with as many or fewer heads.
        pack_plan: from `plan_packing`, passed to the model as a keyword argument.

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
        mask = None
        if sliding_window is not None and bucket.width > sliding_window:
            distance = torch.arange(bucket.width, device=q.device)
            distance = distance[:, None] - distance[None]
            mask = (distance >= 0) & (distance < sliding_window)
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


def register_packed_attention() -> None:
    """Register `attn_implementation=PACKED_ATTENTION` with transformers; may be called again."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED_ATTENTION, packed_attention)
