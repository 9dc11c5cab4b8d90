"""RLOO: the baseline of a reply is the mean score of the other replies in its group."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from verl.trainer.config.algorithm import EstimatorConfig
from verl.trainer.plan.registry import register_adv_est
from verl.trainer.ppo.core_algos.estimators.outcome import ScoredUnits, singleton_advantage


@register_adv_est("rloo", "rloo_vectorized", reads=(), checks_rewards=True)
def compute_rloo_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    epsilon: float = 1e-6,
    config: EstimatorConfig = None,
    *,
    traj_index: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Leave-one-out advantage `A_i = s_i - mean_{j != i} s_j` (arXiv 2402.14740, eq. 4).

    With weights the baseline is the weighted mean of the others, `A_i = (s_i - mean) W / (W - w_i)`. A group
    of one has advantage 0 (`config.singleton="raw"`: its score); a group of equal scores exactly 0.

    Keys: `algorithm.group_by`, `statistics_over`, `call_weighting`, `singleton`.
    Use when: groups are small and an unbiased gradient matters more than its scale.
    Fails when: the scale of rewards differs between groups, since they are not normalized.

    Args:
        others: see `core_algos.estimators`.
    """
    scored = ScoredUnits.of(token_level_rewards, response_mask, index, traj_index, weights)
    stats = scored.stats()
    groups = scored.groups
    unit_weights = 1.0 if scored.weights is None else scored.weights
    total = stats.weight[groups]
    alone = stats.count[groups] == 1
    others = np.where(alone | ~scored.valid, 1.0, total - unit_weights)
    relative = np.where(stats.constant[groups], 0.0, (scored.scores - stats.mean[groups]) * total / others)
    return scored.spread(np.where(alone, singleton_advantage(scored.scores, config), relative), response_mask)


compute_rloo_vectorized_outcome_advantage = compute_rloo_outcome_advantage
