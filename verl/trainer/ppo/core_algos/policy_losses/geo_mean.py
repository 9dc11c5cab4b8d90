"""GMPO: the geometric mean of the clipped token ratios of a reply."""

from __future__ import annotations

from typing import Any

import torch

from verl.trainer.plan.registry import register_policy_loss
from verl.trainer.ppo.core_algos.policy_losses.common import (
    LossConfig,
    check_loss_inputs,
    clip_range,
    row_mean,
    token_metrics,
    weighted_loss,
)

# Keeps the logarithm of a weight of zero finite.
WEIGHT_FLOOR = 1e-10


@register_policy_loss(
    "geo_mean",
    "gmpo",
    reads=("clip_ratio_low", "clip_ratio_high"),
    averages="over replies, each by its geometric mean",
)
def compute_policy_loss_geo_mean(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """GMPO: maximise the geometric instead of the arithmetic mean of the token ratios (arXiv 2507.20673).

        L_i = -A_i exp(mean_t sgn(A) min(sgn(A) x_it, sgn(A) clip(x_it, -low, high))),  x = log_prob - old_log_prob

    A_i is the mean advantage of the reply's tokens; the loss is the mean of L_i over the replies.

    Keys: `actor.clip_ratio_low`, `actor.clip_ratio_high`: bounds of the log-ratio (the
    paper's are 0.4).
    Use when: tokens with extreme ratios make `vanilla` unstable; the clip range may then be wide.
    Fails when: advantages differ within a reply (only their mean is used).

    Args:
        loss_agg_mode: unused.
        rollout_is_weights: `[bsz, response_len]` detached weights; the weight of a reply is their geometric
            mean.
        others: see `core_algos.policy_losses`.

    Returns:
        the loss and the metrics `actor/pg_clipfrac` (clipped tokens with A > 0), `actor/pg_clipfrac_lower`
        (with A < 0), `actor/ppo_kl`.
    """
    check_loss_inputs(response_mask, old_log_prob, log_prob, advantages, rollout_is_weights)
    low, high = clip_range(config, "geo_mean")
    log_ratio = log_prob - old_log_prob
    clamped = torch.clamp(log_ratio, -low, high)
    sign = torch.sign(advantages)
    pessimistic = sign * torch.minimum(sign * log_ratio, sign * clamped)
    losses = -row_mean(advantages, response_mask) * torch.exp(row_mean(pessimistic, response_mask))
    if rollout_is_weights is not None:
        losses = losses * torch.exp(row_mean(torch.log(rollout_is_weights + WEIGHT_FLOOR), response_mask))
    real = response_mask.bool().any(dim=-1, keepdim=True)
    loss = weighted_loss(losses.unsqueeze(-1), real, "seq-mean-token-sum", config, None)
    clipped = log_ratio != clamped
    return loss, token_metrics(
        response_mask,
        pg_clipfrac=clipped & (advantages > 0),
        ppo_kl=-log_ratio,
        pg_clipfrac_lower=clipped & (advantages < 0),
    )
