"""SAPO: a soft gate instead of a clip."""

from __future__ import annotations

from typing import Any

import torch

from verl.trainer.plan.registry import register_policy_loss
from verl.trainer.ppo.core_algos.policy_losses.common import (
    LossConfig,
    check_loss_inputs,
    clamped_log_ratio,
    need_config,
    token_metrics,
    weighted_loss,
)


@register_policy_loss(
    "sapo", reads=("tau_pos", "tau_neg"), positive=("tau_pos", "tau_neg"), averages="seq-mean-token-mean"
)
def compute_policy_loss_sapo(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """SAPO: a sigmoid gate reduces the weight of tokens as their ratio moves away from 1 (arXiv 2511.20347).

        L = -A (4 / tau) sigmoid(tau (r - 1)),  r = exp(log_prob - old_log_prob),  tau = tau_pos where A > 0, else tau_neg

    Losses are averaged over the tokens of a reply, then over replies.

    Keys: `actor.tau_pos`, `actor.tau_neg` (a larger temperature reduces the weight faster).
    Use when: hard clipping makes training unstable, or clips whole replies (gspo) because of a few off-policy
    tokens.
    Fails when: both temperatures are near 0: it is then unclipped importance sampling.

    Args:
        loss_agg_mode: unused; always `seq-mean-token-mean`.
        others: see `core_algos.policy_losses`.

    Returns:
        the loss and the metrics `actor/ppo_kl` (token mean), `actor/pg_clipfrac` and
        `actor/pg_clipfrac_lower` (always 0).

    Raises:
        ValueError: a temperature that is not positive.
    """
    check_loss_inputs(response_mask, old_log_prob, log_prob, advantages, rollout_is_weights)
    config = need_config(config, "sapo")
    if min(config.tau_pos, config.tau_neg) <= 0:
        raise ValueError(
            f"sapo: actor.tau_pos={config.tau_pos} and actor.tau_neg={config.tau_neg} must be positive"
        )
    log_ratio = clamped_log_ratio(log_prob, old_log_prob)
    tau = torch.where(advantages > 0, config.tau_pos, config.tau_neg).to(advantages.dtype)
    gate = 4.0 / tau * torch.sigmoid(tau * (torch.exp(log_ratio) - 1.0))
    loss = weighted_loss(-gate * advantages, response_mask, "seq-mean-token-mean", config, rollout_is_weights)
    return loss, token_metrics(response_mask, ppo_kl=-log_ratio) | {
        "actor/pg_clipfrac": 0.0,
        "actor/pg_clipfrac_lower": 0.0,
    }
