"""CISPO: clip the importance weight instead of the gradient."""

from __future__ import annotations

from typing import Any

import torch

from verl.trainer.plan.registry import register_policy_loss
from verl.trainer.ppo.core_algos.policy_losses.common import (
    LossConfig,
    check_loss_inputs,
    clamped_log_ratio,
    clip_range,
    token_metrics,
    weighted_loss,
)


@register_policy_loss("cispo", reads=("clip_ratio_low", "clip_ratio_high"))
def compute_policy_loss_cispo(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """CISPO: REINFORCE with a clipped, detached importance weight (arXiv 2506.13585, eq. 4-5).

        L = -sg(clip(r, 1 - low, 1 + high)) A log_prob,  r = exp(log_prob - old_log_prob)

    Every token keeps its gradient; the clip only bounds its weight.

    Keys: `actor.clip_ratio_low`, `actor.clip_ratio_high`; the paper has no lower bound
    (`clip_ratio_low=1`).
    Use when: PPO clips rare but important tokens (reflections, branching points of the reasoning).
    Fails when: samples are so old that clipped weights differ much from the true ones; there is no trust
    region.

    Args:
        others: see `core_algos.policy_losses`.

    Returns:
        the loss and the metrics `actor/pg_clipfrac`, `actor/ppo_kl` (token means), `actor/pg_clipfrac_lower`
        (always 0).
    """
    check_loss_inputs(response_mask, old_log_prob, log_prob, advantages, rollout_is_weights)
    low, high = clip_range(config, "cispo")
    log_ratio = clamped_log_ratio(log_prob.detach(), old_log_prob)
    ratio = torch.exp(log_ratio)
    weight = torch.clamp(ratio, 1 - low, 1 + high)
    loss = weighted_loss(
        -weight * advantages * log_prob, response_mask, loss_agg_mode, config, rollout_is_weights
    )
    metrics = token_metrics(response_mask, pg_clipfrac=ratio != weight, ppo_kl=-log_ratio)
    return loss, metrics | {"actor/pg_clipfrac_lower": 0.0}
