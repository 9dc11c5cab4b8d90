"""PPO's clipped objective, with dual clip and clip-higher."""

from __future__ import annotations

from typing import Any

import torch

from verl.trainer.ppo.core_algos.aggregation import agg_loss, masked_mean
from verl.trainer.ppo.core_algos.registry import register_policy_loss


@register_policy_loss("vanilla")
def compute_policy_loss_vanilla(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """`max(-r A, -clip(r, 1 - low, 1 + high) A)` with `r = exp(log_prob - old_log_prob)` (PPO, arXiv 1707.06347, eq. 7).

    Where A < 0 the loss is at most `-clip_ratio_c A` (dual clip, arXiv 1912.09729). `low != high` is DAPO's clip-higher.

    Args:
        old_log_prob, log_prob, advantages, response_mask: `[bsz, response_len]`.
        loss_agg_mode: see `agg_loss`.
        config: `ActorConfig`; `clip_ratio*` are read, and `global_batch_info` is passed to `agg_loss`.
        rollout_is_weights: `[bsz, response_len]` detached weights of the off-policy correction.

    Returns:
        the loss and the metrics `actor/pg_clipfrac`, `actor/ppo_kl`, `actor/pg_clipfrac_lower` (means over this micro-batch).

    Raises:
        ValueError: no config, or `clip_ratio_c <= 1`.
    """
    if config is None:
        raise ValueError("compute_policy_loss_vanilla needs config (ActorConfig) for the clip ranges")
    if config.clip_ratio_c <= 1.0:
        raise ValueError(f"actor.clip_ratio_c={config.clip_ratio_c}: the dual-clip constant must be greater than 1")
    low = config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low
    high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high
    log_ratio = torch.clamp(log_prob - old_log_prob, min=-20.0, max=20.0)
    ratio = torch.exp(log_ratio)
    unclipped = -advantages * ratio
    clipped = -advantages * torch.clamp(ratio, 1 - low, 1 + high)
    pessimistic = torch.maximum(unclipped, clipped)
    bound = -advantages * config.clip_ratio_c
    losses = torch.where(advantages < 0, torch.minimum(bound, pessimistic), pessimistic)
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    loss = agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)
    with torch.no_grad():
        metrics = {
            "actor/pg_clipfrac": masked_mean((clipped > unclipped).float(), response_mask).item(),
            "actor/ppo_kl": masked_mean(-log_ratio, response_mask).item(),
            "actor/pg_clipfrac_lower": masked_mean(((pessimistic > bound) & (advantages < 0)).float(), response_mask).item(),
        }
    return loss, metrics
