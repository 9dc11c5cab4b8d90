"""PPO's clipped objective, with dual clip and clip-higher."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class ClippedLoss:
    """PPO's loss per token, `[bsz, response_len]`, and masks of active bounds."""

    losses: torch.Tensor
    log_ratio: torch.Tensor
    clipped: torch.Tensor
    dual_clipped: torch.Tensor

    @staticmethod
    def of(
        old_log_prob: torch.Tensor,
        log_prob: torch.Tensor,
        advantages: torch.Tensor,
        low: float,
        high: float,
        dual: float,
    ) -> ClippedLoss:
        """Evaluate the objective. Raises ValueError unless the dual-clip constant is above 1."""
        if dual <= 1.0:
            raise ValueError(f"actor.clip_ratio_c={dual}: the dual-clip constant must be greater than 1")
        log_ratio = clamped_log_ratio(log_prob, old_log_prob)
        ratio = torch.exp(log_ratio)
        unclipped = -advantages * ratio
        clipped = -advantages * torch.clamp(ratio, 1 - low, 1 + high)
        pessimistic = torch.maximum(unclipped, clipped)
        bound = -advantages * dual
        losses = torch.where(advantages < 0, torch.minimum(bound, pessimistic), pessimistic)
        return ClippedLoss(losses, log_ratio, clipped > unclipped, (pessimistic > bound) & (advantages < 0))


@register_policy_loss("vanilla", reads=("clip_ratio_low", "clip_ratio_high", "clip_ratio_c"))
def compute_policy_loss_vanilla(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """PPO's clipped objective (arXiv 1707.06347, eq. 7), with dual clip and clip-higher.

        L = max(-r A, -clip(r, 1 - low, 1 + high) A),  r = exp(log_prob - old_log_prob)

    Where A < 0 the loss is at most `-clip_ratio_c A` (dual clip, arXiv 1912.09729). `low != high` is DAPO's
    clip-higher (arXiv 2503.14476).

    Keys: `actor.clip_ratio_low`, `actor.clip_ratio_high`, `actor.clip_ratio_c`.
    Use when: in doubt; it is the baseline for the other losses.
    Fails when: many updates reuse one batch (clipped tokens have no gradient), or long replies make token
    ratios noisy (see gspo).

    Args:
        others: see `core_algos.policy_losses`.

    Returns:
        the loss and the metrics `actor/pg_clipfrac`, `actor/ppo_kl`, `actor/pg_clipfrac_lower` (means over
        tokens of this micro-batch).

    Raises:
        ValueError: `clip_ratio_c <= 1`.
    """
    check_loss_inputs(response_mask, old_log_prob, log_prob, advantages, rollout_is_weights)
    low, high = clip_range(config, "vanilla")
    parts = ClippedLoss.of(old_log_prob, log_prob, advantages, low, high, config.clip_ratio_c)
    loss = weighted_loss(parts.losses, response_mask, loss_agg_mode, config, rollout_is_weights)
    return loss, token_metrics(
        response_mask,
        pg_clipfrac=parts.clipped,
        ppo_kl=-parts.log_ratio,
        pg_clipfrac_lower=parts.dual_clipped,
    )
