"""Masked sums in float64 over the tokens of each row, and over all tokens in an order that the rows cannot change."""

from __future__ import annotations

from collections.abc import Iterator

import torch

PIECE_ENTRIES = 1 << 16


def check_log_ratio(log_ratio: torch.Tensor, response_mask: torch.Tensor) -> None:
    """Raises ValueError when shapes or devices differ, nothing is unmasked, or an unmasked entry is not finite."""
    if log_ratio.shape != response_mask.shape:
        raise ValueError(f"log-probs {tuple(log_ratio.shape)} do not match response_mask {tuple(response_mask.shape)}")
    if log_ratio.device != response_mask.device:
        raise ValueError(f"log-probs are on {log_ratio.device}, response_mask is on {response_mask.device}; move both to one device")
    if not response_mask.any():
        raise ValueError("response_mask must contain at least one valid token (1)")
    bad = int((~torch.isfinite(log_ratio) & response_mask.bool()).sum())
    if bad:
        raise ValueError(
            f"old_log_probs - rollout_log_probs is not finite for {bad} of {int(response_mask.sum())} tokens; "
            "check that the sampler returns a log-prob for every token of its reply"
        )


def row_sum(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sum of each row's unmasked entries: `[bsz]`, float64; masked entries may hold anything."""
    sums = [torch.where(m.bool(), v, 0.0).double().sum(dim=-1) for v, m in pieces(values, mask)]
    return torch.cat(sums) if len(sums) != 1 else sums[0]


def pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same rows of every tensor, few enough at a time for float64 copies of them to stay in the cache."""
    rows = max(1, PIECE_ENTRIES // max(1, tensors[0][:1].numel()))
    return zip(*(tensor.split(rows) for tensor in tensors), strict=True)


def row_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of each row's unmasked entries: `[bsz]`, float64; 0 for a row without any."""
    return row_sum(values, mask) / mask.sum(dim=-1).clamp(min=1)


def set_mean(values: torch.Tensor) -> float:
    """Mean of a one-dimensional tensor as a set: ordered by value before it is summed, so that no order changes a bit."""
    return float(values.double().sort().values.sum() / max(len(values), 1))


def spread(values: torch.Tensor) -> tuple[float, float, float, float]:
    """(mean, unbiased standard deviation, maximum, minimum) of a tensor; the deviation of one value is 0."""
    values = values.double()
    std = values.std().item() if values.numel() > 1 else 0.0
    return values.mean().item(), std, values.max().item(), values.min().item()
