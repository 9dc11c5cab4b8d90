"""Pass@k: only the best reply of a group has an advantage, its margin over the second best."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from verl.trainer.ppo.core_algos.checks import check_columns
from verl.trainer.ppo.core_algos.estimators.outcome import Compared, settle
from verl.trainer.ppo.registry import register_adv_est
from verl.utils.names import own_key


@register_adv_est("grpo_passk", reads=("norm_adv_by_std_in_grpo",), checks_rewards=True, cannot_weigh="compares the two best calls")
def compute_grpo_passk_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    *,
    traj_index: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`A = s_best - s_second`, for the best reply of its group; 0 for all others (arXiv 2503.19595).

    Divided by `std_g + epsilon` (unbiased) when asked for. Where the two best are equal, nobody is credited. A group of
    one has advantage 0 (`config.singleton="raw"`: its score); verl refuses such a group.

    Keys: `algorithm.group_by`, `group_by_agent_id`, `statistics_over`, `norm_adv_by_std_in_grpo`, `singleton`.
    Use when: k replies are sampled and one good reply is enough (pass@k is what is measured).
    Fails when: rewards are 0/1 and two of a group succeed: the group is silent, so signal fades as the policy improves.

    Args:
        norm_adv_by_std_in_grpo: divide by the standard deviation; the key of this name in `config` takes its place.
        weights: refused unless all equal: a maximum has no weights.
        others: see `core_algos.estimators`.

    Raises:
        ValueError: weights differ.
    """
    check_columns(response_mask, index=index, traj_index=traj_index, weights=weights)
    compared = Compared.of(token_level_rewards, response_mask, index, traj_index, weights)
    if compared.weights is not None and len(np.unique(compared.weights[compared.valid])) > 1:
        raise ValueError(
            "adv_estimator=grpo_passk compares the two best replies and cannot weigh calls; set algorithm.call_weighting=sample"
        )
    by_std = own_key(config, "norm_adv_by_std_in_grpo", norm_adv_by_std_in_grpo)
    stats = compared.stats()
    relative = np.zeros(len(compared.scores))
    units = np.flatnonzero(compared.valid)
    units = units[np.lexsort((compared.scores[units], compared.groups[units]))]
    # In this order the best of a group stands last; where the second best is equal, the gap is 0 for both.
    group = compared.groups[units]
    last = np.flatnonzero(np.append(group[1:] != group[:-1], True)[: len(group)])
    last = last[stats.count[group[last]] > 1]
    gap = compared.scores[units[last]] - compared.scores[units[last - 1]]
    relative[units[last]] = gap / (stats.std[group[last]] + epsilon) if by_std else gap
    return compared.spread(settle(compared, stats, relative, config), response_mask)
