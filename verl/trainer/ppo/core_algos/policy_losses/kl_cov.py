"""KL-Cov: a KL penalty on the tokens of highest covariance, to prevent entropy collapse."""

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
from verl.trainer.ppo.core_algos.policy_losses.covariance import share_of_largest, token_covariance
from verl.trainer.ppo.core_algos.policy_losses.preparation import (
    MiniBatch,
    prepared_columns,
    register_preparation,
)

SHARE = "kl_cov_share"


@register_preparation("kl_cov")
def kl_cov_share(mini: MiniBatch, config: LossConfig | None) -> dict[str, torch.Tensor]:
    """Return the fraction of the penalty of each token `[bsz, response_len]`, over the whole
    mini-batch.

    Raises:
        ValueError: `kl_cov_ratio` is not positive.
    """
    ratio = config.policy_loss.kl_cov_ratio
    if ratio <= 0:
        raise ValueError(f"kl_cov: actor.policy_loss.kl_cov_ratio={ratio} must be positive")
    covariance, tokens = token_covariance(mini)
    return {SHARE: share_of_largest(covariance, mini.token_weights, max(1, int(tokens * ratio)), mini)}


@register_policy_loss(
    "kl_cov",
    reads=("policy_loss.kl_cov_ratio", "policy_loss.ppo_kl_coef"),
    positive=("policy_loss.kl_cov_ratio",),
    uses_every_row=True,
)
def compute_policy_loss_kl_cov(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """KL-Cov: a KL penalty on the k tokens with the largest covariance of advantage and log-prob
    (arXiv 2505.22617).

        L = -r A + q ppo_kl_coef |log r|,  r = exp(log_prob - old_log_prob),  q = 1 for the k tokens of the largest covariance, else 0
        covariance = (A - mean A) (log_prob - mean log_prob),  k = max(1, kl_cov_ratio * tokens)

    Tokens of equal covariance at the boundary share the remaining places. Means and ranking are over the
    mini-batch, which needs an additional forward pass; the ratio is not clipped.

    Keys: `actor.policy_loss.kl_cov_ratio`, `actor.policy_loss.ppo_kl_coef`.
    Use when: entropy collapses early in long runs; softer than clip_cov.
    Fails when: every batch is used for one update: the ratio is 1 and the penalty has no gradient; or for
    many: nothing is clipped.

    Args:
        others: see `core_algos.policy_losses`.

    Returns:
        the loss and the metric `actor/ppo_kl` (token mean of `|log r|`).

    Raises:
        ValueError: `kl_cov_ratio` not positive.
    """
    check_loss_inputs(response_mask, old_log_prob, log_prob, advantages, rollout_is_weights)
    config = need_config(config, "kl_cov")
    share = prepared_columns("kl_cov", config, old_log_prob, log_prob, advantages, response_mask)[SHARE]
    log_ratio = clamped_log_ratio(log_prob, old_log_prob)
    distance = log_ratio.abs()
    losses = -advantages * torch.exp(log_ratio) + config.policy_loss.ppo_kl_coef * share * distance
    loss = weighted_loss(losses, response_mask, loss_agg_mode, config, rollout_is_weights)
    return loss, token_metrics(response_mask, ppo_kl=distance)
