"""REINFORCE++: returns whitened over the batch of a policy, with or without a group baseline."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from verl.trainer.config.algorithm import EstimatorConfig
from verl.trainer.plan.registry import register_adv_est
from verl.trainer.ppo.core_algos.checks import check_columns, check_finite, check_tokens
from verl.trainer.ppo.core_algos.estimators.outcome import (
    ScoredUnits,
    units_without_signal,
    zero_without_signal,
)
from verl.trainer.ppo.core_algos.estimators.whitening import whiten, whiten_outcomes
from verl.utils.names import own_key


@register_adv_est("reinforce_plus_plus", reads=("gamma",), grouped=False, whole_batch=True)
def compute_reinforce_plus_plus_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    config: EstimatorConfig = None,
    *,
    gamma: float | None = None,
    policy_index: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `G_t = r_t + gamma G_(t+1)`, whitened over the tokens of each policy (arXiv 2501.03262).

    Masked tokens inside a reply are skipped without a discount. A policy with equal returns has advantages of
    exactly 0 (for example, a single reply without a discount).

    Keys: `algorithm.gamma`, `call_weighting`.
    Use when: there is one reply per prompt, or groups are too small for their own baseline.
    Fails when: tasks differ in difficulty: replies to easy tasks have positive advantages because the task is
    easy.

    Args:
        gamma: discount per token if there is no config.
        others: see `core_algos.estimators`.

    Returns:
        advantages and returns (before whitening), `[bsz, response_len]`.

    Raises:
        ValueError: neither config nor gamma.
    """
    gamma = own_key(config, "gamma", gamma)
    if gamma is None:
        raise ValueError(
            "adv_estimator=reinforce_plus_plus needs a discount: config.gamma (algorithm.gamma) or gamma="
        )
    check_tokens(response_mask, token_level_rewards=token_level_rewards)
    check_finite("token_level_rewards", token_level_rewards, response_mask)
    mask = response_mask.bool()
    columns = (
        token_level_rewards.detach()
        .to(torch.promote_types(token_level_rewards.dtype, torch.float32))
        .T.contiguous()
    )
    keep = mask.T.contiguous()
    returns = torch.zeros_like(columns)
    later = torch.zeros_like(columns[:1].sum(0))
    for t in range(len(columns) - 1, -1, -1):
        later = torch.where(keep[t], columns[t] + gamma * later, later)
        returns[t] = torch.where(keep[t], later, 0.0)
    returns = returns.T.contiguous()
    return whiten(returns, mask, policy_index, weights), returns


@register_adv_est("reinforce_plus_plus_baseline", reads=(), checks_rewards=True, whole_batch=True)
def compute_reinforce_plus_plus_baseline_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    epsilon: float = 1e-6,
    config: EstimatorConfig = None,
    *,
    traj_index: np.ndarray | None = None,
    policy_index: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `s - mean_g`, whitened over the tokens of each policy (arXiv 2501.03262).

    Rows of a group of one (with `config.singleton="raw"` their value is their score) or of equal scores are 0
    in the whitening, and are set to exactly 0 after it, since whitening shifts the mean.

    Keys: `algorithm.group_by`, `statistics_over`, `call_weighting`, `singleton`.
    Use when: groups are small and their own standard deviation is noisy; that of the batch is more stable.
    Fails when: reply lengths differ much: long replies dominate the mean over tokens.

    Args:
        others: see `core_algos.estimators`.
    """
    check_columns(
        response_mask, index=index, traj_index=traj_index, policy_index=policy_index, weights=weights
    )
    scored = ScoredUnits.of(token_level_rewards, response_mask, index, traj_index, weights)
    stats = scored.stats()
    relative = zero_without_signal(scored, stats, scored.scores - stats.mean[scored.groups], config)
    no_signal = units_without_signal(scored, stats, config)
    if scored.unit is not None:
        relative = relative[scored.unit]
        no_signal = no_signal[scored.unit]
    if scored.row_weights is not None:
        no_signal = no_signal | (scored.row_weights == 0)
    advantages = whiten_outcomes(
        relative, no_signal, token_level_rewards, response_mask, policy_index, weights
    )
    return advantages, advantages
