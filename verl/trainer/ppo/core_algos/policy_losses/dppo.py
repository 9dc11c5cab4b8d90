"""DPPO: a trust region in the divergence of policies instead of the ratio."""

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

PROBABILITY_FLOOR = 1e-8


@register_policy_loss("dppo_tv", "dppo", reads=("clip_ratio_low", "clip_ratio_high", "clip_ratio_c"))
def compute_policy_loss_dppo_tv(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """DPPO-Binary-TV: remove a token from the gradient if its probability has changed too much
    (arXiv 2602.04879).

        L = -M min(r, c) A log_prob with r and M detached,  r = exp(log_prob - old_log_prob)
        M = [p - p_old <= high] where A > 0, else [p - p_old >= -low],  p = exp(log_prob)

    The ratio of a rare token may change a lot while the distribution hardly changes: it is kept, while PPO
    would clip it. `dppo` is this loss.

    Keys: `actor.clip_ratio_low`, `actor.clip_ratio_high`: bounds of the probability
    change; `actor.clip_ratio_c`: the maximum ratio c (paper: 20).
    Use when: PPO clips low-probability tokens, or the sampler's log-probs are inaccurate for them.
    Fails when: `clip_ratio_c` is dual clip's default of 3, which truncates many ratios and biases the
    gradient.

    Args:
        others: see `core_algos.policy_losses`.

    Returns:
        the loss and the metrics `actor/pg_clipfrac` (tokens outside the region), `actor/pg_clipfrac_lower`
        (truncated ratios inside it),
        `actor/ppo_kl`: token means.
    """
    check_loss_inputs(response_mask, old_log_prob, log_prob, advantages, rollout_is_weights)
    low, high = clip_range(config, "dppo_tv")
    moved = torch.exp(log_prob.detach()) - torch.exp(old_log_prob)
    inside = torch.where(advantages > 0, moved <= high, moved >= -low)
    return _masked_gradient(
        inside, old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights
    )


@register_policy_loss("dppo_kl", reads=("clip_ratio_low", "clip_ratio_high", "clip_ratio_c"))
def compute_policy_loss_dppo_kl(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """DPPO-Binary-KL: `dppo_tv` with the region measured by the KL between "this token" and "another one"
    (arXiv 2602.04879).

        M = [D <= high or p <= p_old] where A > 0, else [D <= low or p >= p_old]
        D = p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p))

    Keys: `actor.clip_ratio_low`, `actor.clip_ratio_high`: bounds of D;
    `actor.clip_ratio_c`: the maximum ratio.
    Use when: as `dppo_tv`, if changes near probability 0 or 1 should count more.
    Fails when: PPO's clip range of 0.2 is kept: as a bound of a KL it is hardly ever active.

    Args:
        others: see `core_algos.policy_losses`.

    Returns:
        the loss and the metrics of `dppo_tv`.
    """
    check_loss_inputs(response_mask, old_log_prob, log_prob, advantages, rollout_is_weights)
    low, high = clip_range(config, "dppo_kl")
    new = log_prob.detach()
    p = torch.exp(new)
    p_old = torch.exp(old_log_prob)
    others = torch.log((1 - p_old + PROBABILITY_FLOOR) / (1 - p + PROBABILITY_FLOOR))
    divergence = p_old * (old_log_prob - new) + (1 - p_old) * others
    inside = torch.where(
        advantages > 0, (divergence <= high) | (p <= p_old), (divergence <= low) | (p >= p_old)
    )
    return _masked_gradient(
        inside, old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights
    )


def _masked_gradient(
    inside: torch.Tensor,
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str,
    config: LossConfig | None,
    rollout_is_weights: torch.Tensor | None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return the policy-gradient loss of the tokens `inside` the region, with truncated ratios, and
    its metrics.
    """
    log_ratio = clamped_log_ratio(log_prob.detach(), old_log_prob)
    ratio = torch.exp(log_ratio)
    losses = -advantages * ratio.clamp(max=config.clip_ratio_c) * log_prob * inside
    loss = weighted_loss(losses, response_mask, loss_agg_mode, config, rollout_is_weights)
    truncated = (ratio > config.clip_ratio_c) & inside
    return loss, token_metrics(
        response_mask, pg_clipfrac=~inside, ppo_kl=-log_ratio, pg_clipfrac_lower=truncated
    )
