"""RAE: the baseline of a role is a moving average of its scores."""

from __future__ import annotations

import json
import logging
import math
from functools import cache

import numpy as np
import torch

from verl.trainer.config.algorithm import EstimatorConfig
from verl.trainer.config.names import RAE_ORDERS
from verl.trainer.plan.registry import register_adv_est
from verl.trainer.ppo.core_algos.checks import check_columns
from verl.trainer.ppo.core_algos.estimators.outcome import broadcast, outcome_scores
from verl.trainer.ppo.core_algos.grouping import GroupStats, group_index, group_stats
from verl.utils.names import own_key

logger = logging.getLogger(__name__)

# If a batch leaves less than this weight to earlier rewards, the baseline is about the mean of that
# batch.
SHORT_MEMORY = 0.05


@register_adv_est("rae", reads=("rae",), grouped=False)
def compute_rae_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    agent_index: np.ndarray,
    traj_index: np.ndarray | None = None,
    decay: float = 0.95,
    config: EstimatorConfig = None,
    *,
    data_source: np.ndarray | None = None,
    order: str = "subtract_first",
    state: dict[str, float] | None = None,
    weights: np.ndarray | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `A = s - b`, `b` a moving average of the role's scores in tasks of that `data_source` (SPIRAL,
    arXiv 2506.24119).

    SPIRAL's program subtracts the baseline, then updates it once per trajectory,
    `b <- decay b + (1 - decay) R`; it starts at 0. Here the rows of a batch subtract the baseline of earlier
    batches, so that no row's reward is in its own baseline; then the n trajectories of a role and data source
    update it by the mean of the program's updates over all orders, `b <- decay^n b + (1 - decay^n) mean R`.
    With `update_first`, as in the paper's algorithm, the baseline includes the current batch: the advantage
    of a row is then smaller by `(1 - decay^n) / n` of its score. The score of a trajectory is the mean of the
    role's rows in it.

    `decay` is per trajectory: a batch leaves a weight of `decay^n` to earlier rewards, which is 4 % after 64
    trajectories at 0.95; the baseline is then about the mean of the last batch, and a warning is logged. Use
    `decay^(1/n)` for a decay per batch.

    There are no groups: a role with one row, or with equal scores, is compared with its moving average, and
    its advantage is 0 only when the average has reached its score.

    Keys: `algorithm.rae.decay`, `algorithm.rae.order`, `statistics_over`, `call_weighting`.
    Use when: rewards differ between roles (self-play, zero-sum games) and there is one episode per task,
    hence no group.
    Fails when: tasks of one `data_source` differ in difficulty (the baseline depends on data source and role,
    not on the task).

    Args:
        agent_index: `[bsz]` role of each row: a name that is the same in every batch, not an index in this
            batch.
        traj_index: `[bsz]` trajectory of each row; None (`statistics_over=samples`, the default is
            trajectories): every row is one.
        decay: decay of the moving average, in [0, 1); overridden by `config.rae.decay`.
        data_source: `[bsz]` data source of each row's task, so that games of a mixture have separate
            baselines; None: a single one.
        order: `subtract_first` or `update_first`; overridden by `config.rae.order`.
        state: baselines, updated in place, JSON types, by the role's name or, with `data_source`, by the JSON
            list of data source and role; None: they start at 0 and are discarded.
        weights: `[bsz]`; rows of weight 0 are ignored and have advantage 0; other weights apply to a row in
            the mean of its trajectory.
        others: see `core_algos.estimators`.

    Raises:
        ValueError: decay out of range, or an unknown order.
    """
    rae_config = own_key(config, "rae", None)
    decay = own_key(rae_config, "decay", decay)
    order = own_key(rae_config, "order", order)
    _check_settings(decay, order, agent_index)
    check_columns(response_mask, agent_index=agent_index, traj_index=traj_index)
    check_columns(response_mask, data_source=data_source, weights=weights)
    scores, valid = outcome_scores(token_level_rewards, response_mask)
    if weights is not None:
        valid = valid & (np.asarray(weights, dtype=np.float64) > 0)
    roles = group_index([agent_index] if data_source is None else [data_source, agent_index])
    firsts = np.unique(roles, return_index=True)[1]
    names = [
        str(agent_index[i]) if data_source is None else json.dumps([str(data_source[i]), str(agent_index[i])])
        for i in firsts
    ]
    batch = _trajectory_stats(scores, valid, roles, traj_index, weights)
    baselines: dict[str, float] = {} if state is None else state
    before = np.array([baselines.get(name, 0.0) for name in names])
    batch_decay = decay ** batch.count.astype(np.float64)
    after = batch_decay * before + (1.0 - batch_decay) * batch.mean
    baselines |= {name: float(value) for name, value in zip(names, after, strict=True)}
    if len(batch_decay) and decay > 0 and batch_decay.min() < SHORT_MEMORY:
        _warn_of_short_memory(decay)
    baseline = (after if order == "update_first" else before)[roles]
    return broadcast(np.where(valid, scores - baseline, 0.0), response_mask, token_level_rewards.dtype)


def _check_settings(decay: float, order: str, agent_index: object) -> None:
    if not 0 <= decay < 1:
        raise ValueError(f"algorithm.rae.decay={decay}: expected at least 0 and less than 1")
    if order not in RAE_ORDERS:
        raise ValueError(f"algorithm.rae.order={order!r}: expected one of {', '.join(RAE_ORDERS)}")
    if agent_index is None:
        raise ValueError("adv_estimator=rae needs agent_index: the samples' agent_id")


def _trajectory_stats(
    scores: np.ndarray,
    valid: np.ndarray,
    roles: np.ndarray,
    traj_index: np.ndarray | None,
    weights: np.ndarray | None,
) -> GroupStats:
    """Return the statistics of every role over its trajectories; without them every row is one."""
    if traj_index is None:
        return group_stats(scores, roles, valid)
    unit = group_index([roles, traj_index])
    trajectories = group_stats(scores, unit, valid, weights)
    firsts = np.unique(unit, return_index=True)[1]
    return group_stats(trajectories.mean, roles[firsts], trajectories.count > 0)


@cache
def _warn_of_short_memory(decay: float) -> None:
    logger.warning(
        "algorithm.rae.decay=%g is per trajectory: with %.0f or more trajectories of a role in a "
        "batch, earlier rewards weigh less than %g, and the baseline is about the mean of the last "
        "batch; decay^(1/n) for n trajectories per batch decays by %g per batch",
        decay, math.log(SHORT_MEMORY) / math.log(decay), SHORT_MEMORY, decay,
    )  # fmt: skip
