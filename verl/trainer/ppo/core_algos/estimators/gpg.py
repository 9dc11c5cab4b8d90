"""GPG: scores relative to their group, times the number of rows over that of rows whose score is not 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from verl.trainer.ppo.core_algos.checks import check_columns
from verl.trainer.ppo.core_algos.estimators.outcome import Compared, broadcast, outcome_scores, settle
from verl.trainer.ppo.core_algos.estimators.whitening import ordered_sums
from verl.trainer.ppo.core_algos.grouping import group_index
from verl.trainer.ppo.registry import register_adv_est


@register_adv_est("gpg", reads=())
def compute_gpg_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    epsilon: float = 1e-6,
    f_norm: float = 1.0,
    alpha: float = 1.0,
    config: Any = None,
    *,
    traj_index: np.ndarray | None = None,
    policy_index: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`A = alpha (s - mean_g) / f_norm`, `alpha = rows / rows whose score is not 0` (arXiv 2504.02546, alpha as in verl).

    Rows are those of the row's policy. A group of one has advantage 0 (`config.singleton="raw"`: `alpha s / f_norm`); a group of
    equal scores exactly 0.

    Keys: `algorithm.group_by`, `group_by_agent_id`, `statistics_over`, `call_weighting`, `singleton`.
    Use when: many scores of a batch are 0 and the step should not shrink with their share.
    Fails when: nearly all scores are 0: alpha is then large and rests on a handful of rows.

    Args:
        f_norm: what the advantage is divided by.
        alpha: unused, as in verl, which computes it too.
        others: see `core_algos.estimators`.
    """
    check_columns(response_mask, index=index, traj_index=traj_index, policy_index=policy_index, weights=weights)
    compared = Compared.of(token_level_rewards, response_mask, index, traj_index, weights)
    stats = compared.stats()
    relative = settle(compared, stats, compared.scores - stats.mean[compared.groups], config) / f_norm
    rows = relative if compared.unit is None else relative[compared.unit]
    scores, valid = outcome_scores(token_level_rewards, response_mask)
    weight = valid.astype(np.float64) if compared.row_weights is None else valid * compared.row_weights
    scale = _rows_per_signal(scores, weight, policy_index)
    return broadcast(np.where(weight > 0, scale * rows, 0.0), response_mask, token_level_rewards.dtype)


def _rows_per_signal(scores: np.ndarray, weight: np.ndarray, policy_index: np.ndarray | None) -> np.ndarray:
    """Weight of all rows of a row's policy over that of the rows whose score is not 0 (1 where there is none): `[bsz]`."""
    policies = np.zeros(len(scores), dtype=np.int64) if policy_index is None else group_index([policy_index])
    n_policies = int(policies.max(initial=-1)) + 1
    rows = ordered_sums(weight, policies, n_policies)
    signal = ordered_sums(np.where(scores != 0, weight, 0.0), policies, n_policies)
    return np.where(signal > 0, rows / np.where(signal > 0, signal, 1.0), 1.0)[policies]
