"""OPO: the baseline with minimal gradient variance if the gradient of a reply grows with its
length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from verl.trainer.config.algorithm import EstimatorConfig
from verl.trainer.plan.registry import register_adv_est
from verl.trainer.ppo.core_algos.checks import check_columns
from verl.trainer.ppo.core_algos.estimators.outcome import ScoredUnits, zero_without_signal
from verl.trainer.ppo.core_algos.estimators.whitening import ordered_sums
from verl.trainer.ppo.core_algos.grouping import group_stats


@register_adv_est("opo", reads=(), checks_rewards=True)
def compute_opo_outcome_advantage(
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
    """Return `A = s - b_g`, `b_g = sum_g(len s) / sum_g(len)`, `len` the number of unmasked tokens of a reply
    (arXiv 2505.23585).

    A group of one has advantage 0 (`config.singleton="raw"`: its score); a group of equal scores exactly 0.

    Keys: `algorithm.group_by`, `statistics_over`, `call_weighting`, `singleton`.
    Use when: training is strictly on-policy and replies of a group differ in length.
    Fails when: a few very long replies of a group dominate its baseline.

    Args:
        traj_index: `[bsz]`; if given, a trajectory is one reply: its rows are averaged, its length is the sum
            of theirs.
        weights: `[bsz]` weight of each row in the baseline, times its length (`call_weighting`).
        others: see `core_algos.estimators`.
    """
    check_columns(response_mask, index=index, traj_index=traj_index, weights=weights)
    scored = ScoredUnits.of(token_level_rewards, response_mask, index, traj_index, weights)
    length = response_mask.bool().sum(dim=-1).cpu().double().numpy()
    if scored.row_weights is not None:
        length = length * scored.row_weights
    if scored.unit is not None:
        length = ordered_sums(length, scored.unit, len(scored.scores))
    stats = scored.stats()
    baseline = group_stats(scored.scores, scored.groups, scored.valid, length).mean
    relative = scored.scores - baseline[scored.groups]
    return scored.spread(zero_without_signal(scored, stats, relative, config), response_mask)
