"""Whitening per policy: zero mean and unit variance over the tokens of each policy."""

from __future__ import annotations

import numpy as np
import torch

from verl.trainer.ppo.core_algos.checks import check_columns, check_tokens
from verl.trainer.ppo.core_algos.grouping import checked_weights, group_index


def ordered_sums(values: np.ndarray, groups: np.ndarray, n_groups: int) -> np.ndarray:
    """Return the sum of `values` `[n]` per group in float64, sorted before summing: identical to
    the bit for any order of rows.
    """
    order = np.lexsort((values, groups))
    return np.bincount(groups[order], weights=values[order], minlength=n_groups)


def whiten(
    values: torch.Tensor,
    mask: torch.Tensor,
    policy_index: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> torch.Tensor:
    """Whiten `(x - mean) / sqrt(var + 1e-8)` over the unmasked entries of each policy, `var`
    unbiased.

    Entries of a policy that are all equal (also a single one) become exactly 0, as do masked
    entries. With row weights `w`, `mean = sum(w x) / sum(w)` and
    `var = sum(w (x - mean)^2) / (sum(w) - sum(w^2) / sum(w))`.

    Args:
        values: `[bsz, n]`; masked entries may have any value.
        mask: `[bsz, n]`.
        policy_index: `[bsz]` policy of each row; None: all rows are of one policy.
        weights: `[bsz]` weight of each row in the statistics; None: 1. Rows of weight 0 become 0.

    Returns:
        `[bsz, n]`, float32 (float64 for float64 values).

    Raises:
        ValueError: shapes or devices differ, an unmasked value is not finite, or a weight is
            negative.
    """
    check_tokens(mask, values=values)
    check_columns(mask, policy_index=policy_index, weights=weights)
    weight = np.ones(len(mask)) if weights is None else checked_weights(weights)
    groups = np.zeros(len(mask), dtype=np.int64) if policy_index is None else group_index([policy_index])
    keep = mask.bool()
    x = values.detach().to(torch.float64, copy=True).masked_fill_(~keep, 0.0)
    sums = x.sum(dim=-1).cpu().numpy()
    if not np.isfinite(sums).all():
        raise ValueError(
            f"values to whiten: row {np.flatnonzero(~np.isfinite(sums))[0]} has an unmasked entry "
            "that is not finite"
        )
    size = keep.sum(dim=-1).cpu().double().numpy()
    n_groups = int(groups.max(initial=-1)) + 1
    total = ordered_sums(weight * size, groups, n_groups)
    some = np.where(total > 0, total, 1.0)
    mean = ordered_sums(weight * sums, groups, n_groups) / some
    constant = _constant(x, keep, groups, weight * size > 0, n_groups)
    centred = x.sub_(torch.as_tensor(mean[groups], device=x.device).unsqueeze(-1)).masked_fill_(~keep, 0.0)
    square = ordered_sums(weight * centred.square().sum(dim=-1).cpu().numpy(), groups, n_groups)
    freedom = total - ordered_sums(weight**2 * size, groups, n_groups) / some
    variance = square / np.where(freedom > 0, freedom, 1.0)
    scale = np.where(constant, 0.0, 1.0 / np.sqrt(variance + 1e-8))[groups] * (weight > 0)
    out = centred.mul_(torch.as_tensor(scale, device=x.device).unsqueeze(-1))
    return out.to(torch.promote_types(values.dtype, torch.float32))


def whiten_outcomes(
    outcomes: np.ndarray,
    no_signal: np.ndarray,
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    policy_index: np.ndarray | None,
    weights: np.ndarray | None,
) -> torch.Tensor:
    """Return one number per row, whitened over the tokens of each policy: `[bsz, response_len]`.

    Args:
        outcomes: `[bsz]`.
        no_signal: `[bsz]` rows that are set to 0 after it, as whitening shifts the mean.
        token_level_rewards: `[bsz, response_len]`, for their type.
        response_mask: `[bsz, response_len]`.
        policy_index, weights: as for `whiten`.
    """
    rows = torch.as_tensor(
        outcomes,
        dtype=torch.promote_types(token_level_rewards.dtype, torch.float32),
        device=response_mask.device,
    ).unsqueeze(-1)
    advantages = whiten(rows.expand(response_mask.shape), response_mask, policy_index, weights)
    advantages[torch.as_tensor(no_signal, device=advantages.device)] = 0.0
    return advantages


def _constant(
    x: torch.Tensor, keep: torch.Tensor, groups: np.ndarray, counts: np.ndarray, n_groups: int
) -> np.ndarray:
    """Return whether all unmasked entries of rows with `counts` are equal, per group, by comparison
    with one of them.
    """
    rows = np.flatnonzero(counts)
    reference = np.zeros(n_groups)
    first = keep.int().argmax(dim=-1, keepdim=True)
    reference[groups[rows]] = x.gather(1, first)[:, 0].cpu().numpy()[rows] if len(rows) else 0.0
    other = (
        (x != torch.as_tensor(reference[groups], device=x.device).unsqueeze(-1))
        .logical_and_(keep)
        .any(dim=-1)
        .cpu()
        .numpy()
    )
    constant = np.ones(n_groups, dtype=bool)
    constant[groups[other & counts]] = False
    return constant
