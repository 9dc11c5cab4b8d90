"""RAE: the baseline of a role is the moving average of its scores."""

from __future__ import annotations

import json
import logging
import math
from functools import cache
from typing import Any

import numpy as np
import torch

from verl.trainer.config.names import RAE_ORDERS
from verl.trainer.ppo.core_algos.checks import check_columns
from verl.trainer.ppo.core_algos.estimators.outcome import broadcast, outcome_scores
from verl.trainer.ppo.core_algos.grouping import group_index, group_stats
from verl.trainer.ppo.registry import register_adv_est
from verl.utils.names import own_key

logger = logging.getLogger(__name__)

# A batch that leaves less than this of the past in a baseline makes it the mean of that batch.
SHORT_MEMORY = 0.05


@register_adv_est("rae", reads=("rae",), grouped=False)
def compute_rae_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    agent_index: np.ndarray,
    traj_index: np.ndarray | None = None,
    decay: float = 0.95,
    config: Any = None,
    *,
    data_source: np.ndarray | None = None,
    order: str = "subtract_first",
    state: dict[str, float] | None = None,
    weights: np.ndarray | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`A = s - b`, `b` the moving average of what the role has earned in tasks of that kind (SPIRAL, arXiv 2506.24119).

    SPIRAL's program subtracts the baseline, then updates it once a trajectory, `b <- decay b + (1 - decay) R`; it starts at 0. Here
    the rows of a batch subtract what earlier batches have left, so that no row's own reward is in its baseline, and then the n
    trajectories of a role and kind update it by the mean of the program's updates over all orders,
    `b <- decay^n b + (1 - decay^n) mean R`. With `update_first`, as in the paper's algorithm, a batch is in the baseline that it
    subtracts: what a row earns is then praised less by `(1 - decay^n) / n` of itself. A trajectory's score is the mean of the role's
    rows in it.

    `decay` is that of one trajectory: of the past a batch leaves `decay^n`, which is 4 % after 64 trajectories at 0.95, and the
    baseline is then the mean of the batch before. A warning says so; `decay^(1/n)` is one decay a batch.

    There is no group: a role with one row, or with equal scores, is compared with its past like any other, and its
    advantage is 0 only once the baseline has got there.

    Keys: `algorithm.rae.decay`, `algorithm.rae.order`, `statistics_over`, `call_weighting`.
    Use when: roles earn differently (self-play, zero-sum games) and there is one episode a task, hence no group.
    Fails when: tasks of one `data_source` differ in difficulty (the baseline knows the kind of task and the role, not the task).

    Args:
        agent_index: `[bsz]` role of each row: a name that is the same in every batch, not a number of this batch.
        traj_index: `[bsz]` trajectory of each row; None (`statistics_over=samples`, the default is trajectories): every row is one.
        decay: of the moving average, in [0, 1); `config.rae.decay` takes its place when there is a config.
        data_source: `[bsz]` kind of each row's task, so that the games of a mixture do not share baselines; None: all are of one kind.
        order: `subtract_first` or `update_first`; `config.rae.order` takes its place when there is a config.
        state: baselines, updated in place, JSON types, by the role's name or, with `data_source`, by the JSON list of kind and role;
            None: they start at 0 and are forgotten.
        weights: `[bsz]` rows of weight 0 do not count and have advantage 0; other weights weigh a row in its trajectory.
        others: see `core_algos.estimators`.

    Raises:
        ValueError: decay out of range, or an unknown order.
    """
    own = own_key(config, "rae", None)
    decay, order = own_key(own, "decay", decay), own_key(own, "order", order)
    if not 0 <= decay < 1:
        raise ValueError(f"algorithm.rae.decay={decay}: expected at least 0 and less than 1")
    if order not in RAE_ORDERS:
        raise ValueError(f"algorithm.rae.order={order!r}: expected one of {', '.join(RAE_ORDERS)}")
    if agent_index is None:
        raise ValueError("adv_estimator=rae needs agent_index: the samples' agent_id")
    check_columns(response_mask, agent_index=agent_index, traj_index=traj_index, data_source=data_source, weights=weights)
    scores, valid = outcome_scores(token_level_rewards, response_mask)
    if weights is not None:
        valid = valid & (np.asarray(weights, dtype=np.float64) > 0)
    roles = group_index([agent_index] if data_source is None else [data_source, agent_index])
    firsts = np.unique(roles, return_index=True)[1]
    names = [str(agent_index[i]) if data_source is None else json.dumps([str(data_source[i]), str(agent_index[i])]) for i in firsts]
    if traj_index is None:
        batch = group_stats(scores, roles, valid)
    else:
        unit = group_index([roles, traj_index])
        trajectories = group_stats(scores, unit, valid, weights)
        batch = group_stats(trajectories.mean, roles[np.unique(unit, return_index=True)[1]], trajectories.count > 0)
    baselines: dict[str, float] = {} if state is None else state
    before = np.array([baselines.get(name, 0.0) for name in names])
    kept = decay ** batch.count.astype(np.float64)
    after = kept * before + (1.0 - kept) * batch.mean
    baselines |= {name: float(value) for name, value in zip(names, after, strict=True)}
    if len(kept) and decay > 0 and kept.min() < SHORT_MEMORY:
        _warn_of_short_memory(decay)
    baseline = (after if order == "update_first" else before)[roles]
    return broadcast(np.where(valid, scores - baseline, 0.0), response_mask, token_level_rewards.dtype)


@cache
def _warn_of_short_memory(decay: float) -> None:
    logger.warning(
        "algorithm.rae.decay=%g is that of one trajectory: a role with %.0f of them or more in a batch keeps less than %g of the past, and "
        "its baseline is about the mean of the last batch; decay^(1/n) for n trajectories a batch decays by %g a batch",
        decay, math.log(SHORT_MEMORY) / math.log(decay), SHORT_MEMORY, decay,
    )  # fmt: skip
