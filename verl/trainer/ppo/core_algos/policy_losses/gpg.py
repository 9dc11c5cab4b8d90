"""GPG: the plain policy gradient."""

from __future__ import annotations

from typing import Any

import torch

from verl.trainer.plan.registry import register_policy_loss
from verl.trainer.ppo.core_algos.policy_losses.common import (
    LossConfig,
    check_loss_inputs,
    need_config,
    weighted_loss,
)


@register_policy_loss("gpg", reads=())
def compute_policy_loss_gpg(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """GPG: REINFORCE without ratio or clip (arXiv 2504.02546).

        L = -A log_prob

    Keys: none.
    Use when: every sample is used for one update of its own policy; with `algorithm.adv_estimator=gpg` this
    is the paper's method.
    Fails when: a batch is used for several updates, or samples are old: the drift is not corrected.

    Args:
        old_log_prob: unused.
        others: see `core_algos.policy_losses`.

    Returns:
        the loss and no metrics.
    """
    check_loss_inputs(response_mask, None, log_prob, advantages, rollout_is_weights)
    config = need_config(config, "gpg")
    return weighted_loss(-log_prob * advantages, response_mask, loss_agg_mode, config, rollout_is_weights), {}
