"""verl's older signature of the clipped loss."""

from __future__ import annotations

import torch

from verl.trainer.ppo.core_algos.aggregation import agg_loss, masked_mean
from verl.trainer.ppo.core_algos.policy_losses.vanilla import ClippedLoss


def compute_policy_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    cliprange: float | None = None,
    cliprange_low: float | None = None,
    cliprange_high: float | None = None,
    clip_ratio_c: float = 3.0,
    loss_agg_mode: str = "token-mean",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return `vanilla` with verl's older signature: the whole mini-batch at once, without a config.

    Args:
        old_log_prob, log_prob, advantages, response_mask: `[bsz, response_len]`.
        cliprange: clip range; `cliprange_low` and `cliprange_high` override one side each.
        clip_ratio_c: dual-clip constant.
        loss_agg_mode: see `agg_loss`.

    Returns:
        loss, fraction of clipped tokens, mean of `old_log_prob - log_prob`, fraction of
        dual-clipped tokens: scalars.

    Raises:
        ValueError: a side without a clip range, or `clip_ratio_c <= 1`.
    """
    low = cliprange if cliprange_low is None else cliprange_low
    high = cliprange if cliprange_high is None else cliprange_high
    if low is None or high is None:
        raise ValueError("compute_policy_loss needs cliprange, or both cliprange_low and cliprange_high")
    parts = ClippedLoss.of(old_log_prob, log_prob, advantages, low, high, clip_ratio_c)
    loss = agg_loss(parts.losses, response_mask, loss_agg_mode)
    clipped, kl, lower = (
        masked_mean(v.float(), response_mask) for v in (parts.clipped, -parts.log_ratio, parts.dual_clipped)
    )
    return loss, clipped, kl, lower
