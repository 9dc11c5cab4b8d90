"""Clip-Cov: remove tokens of high covariance from the gradient, to prevent entropy collapse."""

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
from verl.trainer.ppo.core_algos.policy_losses.covariance import token_covariance
from verl.trainer.ppo.core_algos.policy_losses.preparation import (
    MiniBatch,
    prepared_columns,
    register_preparation,
)

SHARE = "clip_cov_share"


@register_preparation("clip_cov")
def clip_cov_share(mini: MiniBatch, config: LossConfig | None) -> dict[str, torch.Tensor]:
    """Return the probability of each token `[bsz, response_len]` to be removed, over the whole
    mini-batch.

    Raises:
        ValueError: `clip_cov_ratio` is not positive.
    """
    settings = config.policy_loss
    if settings.clip_cov_ratio <= 0:
        raise ValueError(
            f"clip_cov: actor.policy_loss.clip_cov_ratio={settings.clip_cov_ratio} must be positive"
        )
    covariance, tokens = token_covariance(mini)
    unclipped, clipped = _losses(clamped_log_ratio(mini.log_prob, mini.old_log_prob), mini.advantages, config)
    candidate = (
        (covariance > settings.clip_cov_lb) & (covariance < settings.clip_cov_ub) & (clipped <= unclipped)
    )
    candidate_count = float(mini.ranks.sum((mini.token_weights * candidate).sum()))
    removed = max(int(settings.clip_cov_ratio * tokens), 1)
    return {SHARE: candidate.to(covariance.dtype) * min(1.0, removed / max(candidate_count, 1e-9))}


@register_policy_loss(
    "clip_cov",
    reads=(
        "clip_ratio_low",
        "clip_ratio_high",
        "policy_loss.clip_cov_ratio",
        "policy_loss.clip_cov_lb",
        "policy_loss.clip_cov_ub",
    ),
    positive=("policy_loss.clip_cov_ratio",),
    uses_every_row=True,
)
def compute_policy_loss_clip_cov(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Clip-Cov: remove a few of the tokens whose covariance of advantage and log-prob lies in a band from the
    gradient (arXiv 2505.22617).

        L = (1 - q) max(-r A, -clip(r, 1 - low, 1 + high) A),  q = min(1, k / n) for the n tokens in the band that PPO does not clip, else 0
        covariance = (A - mean A) (log_prob - mean log_prob),  k = max(1, clip_cov_ratio * tokens)

    The paper samples k of the n tokens; q is the probability of a token to be sampled, so that this is the
    expectation of that loss: without noise and independent of the cut into micro-batches. Means and counts
    are over the mini-batch, which needs an additional forward pass.

    Keys: `actor.policy_loss.clip_cov_ratio`, `actor.policy_loss.clip_cov_lb`,
    `actor.policy_loss.clip_cov_ub`, `actor.clip_ratio_low`, `actor.clip_ratio_high`.
    Use when: entropy collapses early in long runs; plain PPO otherwise.
    Fails when: the band is empty (small advantages or confident policies): it is then PPO without dual clip.

    Args:
        others: see `core_algos.policy_losses`.

    Returns:
        the loss and the metrics `actor/pg_clipfrac` (fraction of tokens removed by covariance) and
        `actor/ppo_kl`: token means.

    Raises:
        ValueError: `clip_cov_ratio` not positive.
    """
    check_loss_inputs(response_mask, old_log_prob, log_prob, advantages, rollout_is_weights)
    clip_range(config, "clip_cov")
    share = prepared_columns("clip_cov", config, old_log_prob, log_prob, advantages, response_mask)[SHARE]
    log_ratio = clamped_log_ratio(log_prob, old_log_prob)
    losses = torch.maximum(*_losses(log_ratio, advantages, config)) * (1.0 - share)
    loss = weighted_loss(losses, response_mask, loss_agg_mode, config, rollout_is_weights)
    return loss, token_metrics(response_mask, pg_clipfrac=share, ppo_kl=-log_ratio)


def _losses(
    log_ratio: torch.Tensor, advantages: torch.Tensor, config: LossConfig | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the token losses `[bsz, response_len]` without and with the clip."""
    low, high = clip_range(config, "clip_cov")
    ratio = torch.exp(log_ratio)
    return -advantages * ratio, -advantages * torch.clamp(ratio, 1 - low, 1 + high)
