"""REINFORCE on the sampler's tokens, with importance weights."""

from __future__ import annotations

from typing import Any

import torch

from verl.trainer.ppo.core_algos.policy_losses.parts import check_loss_inputs, need_config, token_metrics, weighted_loss


def compute_policy_loss_reinforce(
    rollout_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "seq-mean-token-sum",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """`L = -w A log_prob` with `w = sg(pi / sampler)` truncated, or 1 without weights (Williams 1992).

    Args:
        rollout_log_prob: the sampler's log-probs, for the metric.
        log_prob, advantages, response_mask: `[bsz, response_len]`.
        loss_agg_mode: see `agg_loss`.
        config: `ActorConfig`; `global_batch_info` is passed to `agg_loss`.
        rollout_is_weights: `[bsz, response_len]` detached weights.

    Returns:
        the loss and the metric `actor/ppo_kl`: token mean of `rollout_log_prob - log_prob`.

    Raises:
        ValueError: shapes or devices differ, no config.
    """
    check_loss_inputs(response_mask, rollout_log_prob, log_prob, advantages, rollout_is_weights)
    config = need_config(config, "reinforce")
    loss = weighted_loss(-advantages * log_prob, response_mask, loss_agg_mode, config, rollout_is_weights)
    return loss, token_metrics(response_mask, ppo_kl=rollout_log_prob - log_prob)
