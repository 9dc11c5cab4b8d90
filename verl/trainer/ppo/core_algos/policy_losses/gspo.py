"""GSPO: one importance ratio per sequence."""

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

# Upper bound of the log of a sequence's ratio.
LOG_SEQUENCE_RATIO_MAX = 10.0


@register_policy_loss("gspo", reads=("clip_ratio_low", "clip_ratio_high"), averages="seq-mean-token-mean")
def compute_policy_loss_gspo(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """GSPO-token: PPO's clip on the length-normalised ratio of the whole reply (arXiv 2507.18071, eq. 7 and
    13-14).

        s_i = exp(mean_t(log_prob - old_log_prob)),  s_it = sg(s_i) pi_it / sg(pi_it),  L = max(-s_it A, -clip(s_it, 1 - low, 1 + high) A)

    Every token of a reply has the same ratio, so that a reply is clipped as a whole; losses are averaged over
    the tokens of a reply, then over replies.

    Keys: `actor.clip_ratio_low`, `actor.clip_ratio_high`; the paper's ranges are small
    (3e-4, 4e-4).
    Use when: replies are long or the model is a mixture of experts, so that ratios of single tokens are
    noisy.
    Fails when: PPO's clip range of 0.2 is kept (nothing is ever clipped), or advantages differ within a
    reply.

    Args:
        loss_agg_mode: unused; always `seq-mean-token-mean`.
        others: see `core_algos.policy_losses`.

    Returns:
        the loss and the metrics `actor/pg_clipfrac`, `actor/ppo_kl` (token means), `actor/pg_clipfrac_lower`
        (always 0).
    """
    check_loss_inputs(response_mask, old_log_prob, log_prob, advantages, rollout_is_weights)
    low, high = clip_range(config, "gspo")
    log_ratio = log_prob.detach() - old_log_prob
    straight_through = log_prob - log_prob.detach()
    ratio = torch.exp(
        (straight_through + row_mean(log_ratio, response_mask).unsqueeze(-1)).clamp(
            max=LOG_SEQUENCE_RATIO_MAX
        )
    )
    unclipped = -advantages * ratio
    clipped = -advantages * torch.clamp(ratio, 1 - low, 1 + high)
    loss = weighted_loss(
        torch.maximum(unclipped, clipped), response_mask, "seq-mean-token-mean", config, rollout_is_weights
    )
    metrics = token_metrics(response_mask, pg_clipfrac=clipped > unclipped, ppo_kl=-log_ratio)
    return loss, metrics | {"actor/pg_clipfrac_lower": 0.0}
