"""GPG: scores relative to their group, times the ratio of all rows to rows with a non-zero score."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from verl.trainer.config.algorithm import EstimatorConfig
from verl.trainer.plan.registry import register_adv_est
from verl.trainer.ppo.core_algos.checks import check_columns
from verl.trainer.ppo.core_algos.estimators.outcome import (
    ScoredUnits,
    broadcast,
    outcome_scores,
    zero_without_signal,
)
from verl.trainer.ppo.core_algos.estimators.whitening import ordered_sums
from verl.trainer.ppo.core_algos.grouping import group_index


@register_adv_est("gpg", reads=(), whole_batch=True)
def compute_gpg_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    epsilon: float = 1e-6,
    f_norm: float = 1.0,
    alpha: float = 1.0,
    config: EstimatorConfig = None,
    *,
    traj_index: np.ndarray | None = None,
    policy_index: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `A = alpha (s - mean_g) / f_norm`, `alpha = rows / rows with a non-zero score`
    (arXiv 2504.02546, alpha as in verl).

    Rows are those of the row's policy. A group of one has advantage 0 (`config.singleton="raw"`:
    `alpha s / f_norm`); a group of equal scores exactly 0.

    Keys: `algorithm.group_by`, `statistics_over`, `call_weighting`, `singleton`.
    Use when: many scores of a batch are 0, and the step size should not depend on their number.
    Fails when: nearly all scores are 0: alpha is then large and determined by a few rows.

    Args:
        f_norm: divisor of the advantage.
        alpha: unused; it is computed, as in verl.
        others: see `core_algos.estimators`.
    """
    check_columns(
        response_mask, index=index, traj_index=traj_index, policy_index=policy_index, weights=weights
    )
    scored = ScoredUnits.of(token_level_rewards, response_mask, index, traj_index, weights)
    stats = scored.stats()
    relative = zero_without_signal(scored, stats, scored.scores - stats.mean[scored.groups], config) / f_norm
    rows = relative if scored.unit is None else relative[scored.unit]
    scores, valid = outcome_scores(token_level_rewards, response_mask)
    weight = valid.astype(np.float64) if scored.row_weights is None else valid * scored.row_weights
    scale = _rows_per_signal(scores, weight, policy_index)
    return broadcast(np.where(weight > 0, scale * rows, 0.0), response_mask, token_level_rewards.dtype)


def _rows_per_signal(scores: np.ndarray, weight: np.ndarray, policy_index: np.ndarray | None) -> np.ndarray:
    """Return the weight of all rows of a row's policy over that of its rows with a non-zero score
    (1 without any): `[bsz]`.
    """
    policies = np.zeros(len(scores), dtype=np.int64) if policy_index is None else group_index([policy_index])
    n_policies = int(policies.max(initial=-1)) + 1
    rows = ordered_sums(weight, policies, n_policies)
    signal = ordered_sums(np.where(scores != 0, weight, 0.0), policies, n_policies)
    return np.where(signal > 0, rows / np.where(signal > 0, signal, 1.0), 1.0)[policies]
