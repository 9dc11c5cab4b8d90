"""Pass@k: only the best reply of a group has an advantage, its margin over the second best."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from verl.trainer.config.algorithm import EstimatorConfig
from verl.trainer.plan.registry import register_adv_est
from verl.trainer.ppo.core_algos.checks import check_columns
from verl.trainer.ppo.core_algos.estimators.outcome import ScoredUnits, zero_without_signal
from verl.utils.names import own_key


@register_adv_est(
    "grpo_passk",
    reads=("norm_adv_by_std_in_grpo",),
    checks_rewards=True,
    cannot_weigh="compares the two best calls",
)
def compute_grpo_passk_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: EstimatorConfig = None,
    *,
    traj_index: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `A = s_best - s_second` for the best reply of its group; 0 for all others (arXiv 2503.19595).

    Optionally divided by `std_g + epsilon` (unbiased). If the two best scores are equal, all advantages are
    0. A group of one has advantage 0 (`config.singleton="raw"`: its score); verl refuses such a group.

    Keys: `algorithm.group_by`, `statistics_over`, `norm_adv_by_std_in_grpo`,
    `singleton`.
    Use when: k replies are sampled and one good reply is enough (the metric is pass@k).
    Fails when: rewards are 0/1 and two replies of a group succeed: its advantages are 0, so the signal
    vanishes as the policy improves.

    Args:
        norm_adv_by_std_in_grpo: divide by the standard deviation; overridden by the key of this name in
            `config`.
        weights: must be equal: a maximum cannot be weighted.
        others: see `core_algos.estimators`.

    Raises:
        ValueError: weights differ.
    """
    check_columns(response_mask, index=index, traj_index=traj_index, weights=weights)
    scored = ScoredUnits.of(token_level_rewards, response_mask, index, traj_index, weights)
    if scored.weights is not None and len(np.unique(scored.weights[scored.valid])) > 1:
        raise ValueError(
            "adv_estimator=grpo_passk compares the two best replies and cannot weigh calls; set "
            "algorithm.call_weighting=sample"
        )
    by_std = own_key(config, "norm_adv_by_std_in_grpo", norm_adv_by_std_in_grpo)
    stats = scored.stats()
    relative = np.zeros(len(scored.scores))
    units = np.flatnonzero(scored.valid)
    units = units[np.lexsort((scored.scores[units], scored.groups[units]))]
    # In this order the best of a group is last; if the second best is equal, the gap is 0.
    group = scored.groups[units]
    last = np.flatnonzero(np.append(group[1:] != group[:-1], True)[: len(group)])
    last = last[stats.count[group[last]] > 1]
    gap = scored.scores[units[last]] - scored.scores[units[last - 1]]
    relative[units[last]] = gap / (stats.std[group[last]] + epsilon) if by_std else gap
    return scored.spread(zero_without_signal(scored, stats, relative, config), response_mask)
