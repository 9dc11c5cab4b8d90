"""GRPO: a reply is as good as it beats the other replies of its group."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from verl.trainer.ppo.core_algos.estimators.outcome import broadcast, outcome_scores, singleton_advantage
from verl.trainer.ppo.core_algos.grouping import group_index, group_stats
from verl.trainer.ppo.core_algos.registry import AdvantageEstimator, register_adv_est


@register_adv_est(AdvantageEstimator.GRPO)
def compute_grpo_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    *,
    traj_index: np.ndarray | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Group-relative advantage `A = (s - mean_g) / (std_g + epsilon)` of the outcome score `s` (DeepSeekMath, arXiv 2402.03300, eq. 3).

    Without the division this is Dr. GRPO (arXiv 2503.20783). A group of one has advantage 0 (`config.singleton="raw"`: its
    score), a group of equal scores exactly 0; rows whose mask is empty are in no statistic.

    Args:
        token_level_rewards: `[bsz, response_len]`.
        response_mask: `[bsz, response_len]`.
        index: `[bsz]` group of each row.
        epsilon: added to the standard deviation.
        norm_adv_by_std_in_grpo: divide by the unbiased standard deviation.
        config: `AlgorithmConfig`; only `singleton` is read.
        traj_index: `[bsz]`; when given, the rows of one trajectory are averaged first and share one advantage.

    Returns:
        advantages and returns, the same tensor, `[bsz, response_len]`.
    """
    scores, valid = outcome_scores(token_level_rewards, response_mask)
    if traj_index is not None:
        return _over_trajectories(scores, valid, response_mask, index, traj_index, epsilon, norm_adv_by_std_in_grpo, config)
    groups = group_index([index])
    return broadcast(_relative(scores, valid, groups, epsilon, norm_adv_by_std_in_grpo, config), response_mask)


def _relative(scores: np.ndarray, valid: np.ndarray, groups: np.ndarray, epsilon: float, by_std: bool, config: Any) -> np.ndarray:
    stats = group_stats(scores, groups, valid)
    scale = stats.std[groups] + epsilon if by_std else 1.0
    relative = np.where(stats.constant[groups], 0.0, (scores - stats.mean[groups]) / scale)
    return np.where(stats.count[groups] == 1, singleton_advantage(scores, config), relative)


def _over_trajectories(
    scores: np.ndarray,
    valid: np.ndarray,
    response_mask: torch.Tensor,
    index: np.ndarray,
    traj_index: np.ndarray,
    epsilon: float,
    by_std: bool,
    config: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    trajectory = group_index([index, traj_index])
    per_traj = group_stats(scores, trajectory, valid)
    first = np.unique(trajectory, return_index=True)[1]
    groups = group_index([index])[first]
    advantages = _relative(per_traj.mean, per_traj.count > 0, groups, epsilon, by_std, config)
    return broadcast(advantages[trajectory], response_mask)
