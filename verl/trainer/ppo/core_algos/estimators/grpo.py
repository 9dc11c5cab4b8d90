"""GRPO: advantage of a reply relative to its group."""

from __future__ import annotations

import numpy as np
import torch

from verl.trainer.config.algorithm import EstimatorConfig
from verl.trainer.plan.registry import register_adv_est
from verl.trainer.ppo.core_algos.estimators.outcome import ScoredUnits, singleton_advantage


@register_adv_est("grpo", "grpo_vectorized", reads=("norm_adv_by_std_in_grpo",), checks_rewards=True)
def compute_grpo_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: EstimatorConfig = None,
    *,
    traj_index: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Group-relative advantage `A = (s - mean_g) / (std_g + epsilon)` of the outcome score `s` (DeepSeekMath,
    arXiv 2402.03300, eq. 3).

    Without the division this is Dr. GRPO (arXiv 2503.20783); grouped by task and agent it is Dr. MAS
    (arXiv 2602.08847). A group of one has advantage 0 (`config.singleton="raw"`: its score), a group of equal
    scores exactly 0; rows with an empty mask are excluded from statistics.

    Keys: `algorithm.norm_adv_by_std_in_grpo`, `group_by`, `statistics_over`,
    `call_weighting`, `singleton`.
    Use when: several replies to the same prompt can be sampled, each with one score.
    Fails when: most groups have equal scores; or, with the division, when the differences within a group are
    noise that it amplifies.

    Args:
        others: see `core_algos.estimators`.
    """
    scored = ScoredUnits.of(token_level_rewards, response_mask, index, traj_index, weights)
    return scored.spread(group_relative(scored, epsilon, norm_adv_by_std_in_grpo, config), response_mask)


def group_relative(scored: ScoredUnits, epsilon: float, by_std: bool, config: EstimatorConfig) -> np.ndarray:
    """Return `(s - mean) / (std + epsilon)` of every unit `[n_units]`; without the division if
    `by_std=False`.
    """
    stats = scored.stats()
    groups = scored.groups
    relative = scored.scores - stats.mean[groups]
    if by_std:
        relative /= stats.std[groups] + epsilon
    relative = np.where(stats.constant[groups], 0.0, relative)
    return np.where(stats.count[groups] == 1, singleton_advantage(scored.scores, config), relative)


compute_grpo_vectorized_outcome_advantage = compute_grpo_outcome_advantage
