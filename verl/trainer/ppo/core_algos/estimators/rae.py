"""RAE: every role is compared with what that role has earned lately."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from verl.trainer.ppo.core_algos.estimators.checks import check_columns
from verl.trainer.ppo.core_algos.estimators.outcome import broadcast, outcome_scores
from verl.trainer.ppo.core_algos.grouping import group_index, group_stats
from verl.trainer.ppo.core_algos.own_keys import own_key
from verl.trainer.ppo.core_algos.registry import AdvantageEstimator, register_adv_est


@register_adv_est(AdvantageEstimator.RAE)
def compute_rae_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    agent_index: np.ndarray,
    traj_index: np.ndarray | None = None,
    decay: float = 0.95,
    config: Any = None,
    *,
    state: dict[str, float] | None = None,
    weights: np.ndarray | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`A = s - b_role`, `b_role` the moving average of the role's scores (SPIRAL, arXiv 2506.24119).

    As in the paper the baseline starts at 0, and a batch updates it before it is subtracted. The paper updates once a
    trajectory, `b <- decay b + (1 - decay) R`, so that the order of trajectories matters; here the n trajectories of a
    role in the batch update it by the mean of that over all orders, `b <- decay^n b + (1 - decay^n) mean R`, one and the
    same `b` being subtracted from all of them. A trajectory's score is the mean of the role's rows in it.

    There is no group: a role with one row, or with equal scores, is compared with its past like any other, and its
    advantage is 0 only once the baseline has got there.

    Keys: `algorithm.rae.decay`, `statistics_over`, `call_weighting`.
    Use when: roles earn differently (self-play, zero-sum games) and there is one episode a task, hence no group.
    Fails when: tasks differ in difficulty (the baseline knows the role, not the task), or a batch is so large that
        `decay^n` is nothing: the baseline is then the batch's mean and remembers no past.

    Args:
        token_level_rewards: `[bsz, response_len]`.
        response_mask: `[bsz, response_len]`.
        agent_index: `[bsz]` role of each row: a name that is the same in every batch, not a number of this batch.
        traj_index: `[bsz]` trajectory of each row; None (`statistics_over=samples`, the default is trajectories): every row is one.
        decay: of the moving average, in [0, 1); `config.rae.decay` takes its place when there is a config.
        config: `AlgorithmConfig`.
        state: baseline of each role by its name, updated in place, JSON types; None: they start at 0 and are forgotten.
        weights: `[bsz]` rows of weight 0 do not count and have advantage 0; other weights weigh a row in its trajectory.

    Returns:
        advantages and returns, the same tensor, `[bsz, response_len]`.

    Raises:
        ValueError: decay out of range, shapes or devices that differ, a score is not finite.
    """
    decay = own_key(own_key(config, "rae", None), "decay", decay)
    if not 0 <= decay < 1:
        raise ValueError(f"algorithm.rae.decay={decay}: expected at least 0 and less than 1")
    if agent_index is None:
        raise ValueError("adv_estimator=rae needs agent_index: the samples' agent_id")
    check_columns(response_mask, agent_index=agent_index, traj_index=traj_index, weights=weights)
    scores, valid = outcome_scores(token_level_rewards, response_mask)
    if weights is not None:
        valid = valid & (np.asarray(weights, dtype=np.float64) > 0)
    roles = group_index([agent_index])
    names = [str(agent_index[row]) for row in np.unique(roles, return_index=True)[1]]
    if traj_index is None:
        batch = group_stats(scores, roles, valid)
    else:
        unit = group_index([roles, traj_index])
        trajectories = group_stats(scores, unit, valid, weights)
        batch = group_stats(trajectories.mean, roles[np.unique(unit, return_index=True)[1]], trajectories.count > 0)
    baselines: dict[str, float] = {} if state is None else state
    for role, name in enumerate(names):
        kept = decay ** float(batch.count[role])
        baselines[name] = kept * baselines.get(name, 0.0) + (1.0 - kept) * float(batch.mean[role])
    baseline = np.array([baselines[name] for name in names])[roles]
    return broadcast(np.where(valid, scores - baseline, 0.0), response_mask, token_level_rewards.dtype)
