"""Checks of inputs of estimators and losses: shapes, devices and non-finite numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def check_tokens(response_mask: torch.Tensor, **tensors: torch.Tensor | None) -> None:
    """Raise ValueError unless every tensor that is not None has the shape `[bsz, response_len]` and
    the device of `response_mask`.
    """
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.shape != response_mask.shape:
            raise ValueError(
                f"{name} {tuple(tensor.shape)} and response_mask {tuple(response_mask.shape)} differ in shape"
            )
        if tensor.device != response_mask.device:
            raise ValueError(
                f"{name} is on {tensor.device}, response_mask on {response_mask.device}; move them "
                "to one device"
            )


def check_columns(response_mask: torch.Tensor, **columns: np.ndarray | torch.Tensor | None) -> None:
    """Raise ValueError unless every column that is not None has one entry per row of
    `response_mask`.
    """
    for name, column in columns.items():
        if column is not None and len(column) != len(response_mask):
            raise ValueError(
                f"{name} has {len(column)} entries for the {len(response_mask)} rows of "
                "response_mask; give one per row"
            )


def check_finite(name: str, values: torch.Tensor, response_mask: torch.Tensor) -> None:
    """Raise ValueError if `values` `[bsz, response_len]` has a NaN or infinity at an unmasked
    token.
    """
    bad = ~torch.isfinite(torch.where(response_mask.bool(), values, 0.0).sum(dim=-1, dtype=torch.float64))
    if bad.any():
        raise ValueError(
            f"{name}: {int(bad.sum())} of {len(bad)} rows are not finite (first: row {int(bad.nonzero()[0])})"
        )


def numbers(name: str, column: Any, valid: np.ndarray) -> np.ndarray:
    """Return a numeric column (array, list or tensor `[bsz]`) as float64. Raises ValueError for a
    non-finite number of a valid row.
    """
    raw = column.detach().cpu().double().numpy() if isinstance(column, torch.Tensor) else column
    values: np.ndarray = np.asarray(raw, dtype=np.float64)
    bad = np.flatnonzero(valid & ~np.isfinite(values))
    if len(bad):
        raise ValueError(f"{name}: {len(bad)} of {len(values)} rows are not finite (first: row {bad[0]})")
    return values


def check_log_ratio(log_ratio: torch.Tensor, response_mask: torch.Tensor) -> None:
    """Raise ValueError if shapes or devices differ, no token is unmasked, or an unmasked entry is
    not finite.
    """
    if log_ratio.shape != response_mask.shape:
        raise ValueError(
            f"log-probs {tuple(log_ratio.shape)} do not match response_mask {tuple(response_mask.shape)}"
        )
    if log_ratio.device != response_mask.device:
        raise ValueError(
            f"log-probs are on {log_ratio.device}, response_mask is on {response_mask.device}; "
            "move both to one device"
        )
    if not response_mask.any():
        raise ValueError("response_mask must contain at least one valid token (1)")
    bad = int((~torch.isfinite(log_ratio) & response_mask.bool()).sum())
    if bad:
        raise ValueError(
            f"old_log_probs - rollout_log_probs is not finite for {bad} of "
            f"{int(response_mask.sum())} tokens; check that the sampler returns a log-prob for "
            "every token of its reply"
        )
