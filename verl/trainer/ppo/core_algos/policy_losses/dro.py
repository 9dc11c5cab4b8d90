"""DRO: policy gradient with a quadratic penalty on the log-ratio."""

from __future__ import annotations

from typing import Any

import torch

from verl.trainer.plan.registry import register_policy_loss
from verl.trainer.ppo.core_algos.policy_losses.common import (
    LossConfig,
    check_loss_inputs,
    need_config,
    token_metrics,
    weighted_loss,
)


@register_policy_loss(
    "dro", reads=("policy_loss.dro_beta",), positive=("policy_loss.dro_beta",), uses_every_row=True
)
def compute_policy_loss_dro(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """DRO: a squared penalty instead of a clip keeps the policy near the old one
    (arXiv 2405.19107, policy part; as Kimi k1.5, arXiv 2501.12599).

        L = -(A log_prob - beta / 2 (log_prob - old_log_prob)^2)

    Keys: `actor.policy_loss.dro_beta` (required).
    Use when: samples are old or from another policy and importance ratios would explode; this loss has no
    ratios.
    Fails when: beta does not match the scale of advantages: too small, the policy gradient is unbounded; too
    large, nothing is learned.

    Args:
        others: see `core_algos.policy_losses`.

    Returns:
        the loss and the metric `actor/ppo_kl` (token mean).

    Raises:
        ValueError: `dro_beta` not positive.
    """
    check_loss_inputs(response_mask, old_log_prob, log_prob, advantages, rollout_is_weights)
    beta = need_config(config, "dro").policy_loss.dro_beta
    if beta is None or beta <= 0:
        raise ValueError(f"dro: actor.policy_loss.dro_beta={beta} must be a positive number")
    log_ratio = log_prob - old_log_prob
    losses = 0.5 * beta * log_ratio.square() - advantages * log_prob
    loss = weighted_loss(losses, response_mask, loss_agg_mode, config, rollout_is_weights)
    return loss, token_metrics(response_mask, ppo_kl=-log_ratio)
