"""RLOO: the baseline of a reply is the mean of the others in its group."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from verl.trainer.ppo.core_algos.estimators.outcome import broadcast, outcome_scores, singleton_advantage
from verl.trainer.ppo.core_algos.grouping import group_index, group_stats
from verl.trainer.ppo.core_algos.registry import AdvantageEstimator, register_adv_est


@register_adv_est(AdvantageEstimator.RLOO)
def compute_rloo_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    epsilon: float = 1e-6,
    config: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Leave-one-out advantage `A_i = s_i - mean_{j != i} s_j` (arXiv 2402.14740).

    A group of one has advantage 0 (`config.singleton="raw"`: its score); a group of equal scores exactly 0.

    Args:
        token_level_rewards: `[bsz, response_len]`.
        response_mask: `[bsz, response_len]`.
        index: `[bsz]` group of each row.
        epsilon: unused, kept for verl's signature.
        config: `AlgorithmConfig`; only `singleton` is read.

    Returns:
        advantages and returns, the same tensor, `[bsz, response_len]`.
    """
    scores, valid = outcome_scores(token_level_rewards, response_mask)
    groups = group_index([index])
    stats = group_stats(scores, groups, valid)
    n = np.maximum(stats.count[groups], 2)
    relative = np.where(stats.constant[groups], 0.0, (scores - stats.mean[groups]) * n / (n - 1))
    advantages = np.where(stats.count[groups] == 1, singleton_advantage(scores, config), relative)
    return broadcast(advantages, response_mask)
