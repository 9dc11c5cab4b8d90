"""GiGPO: advantage of an episode relative to its group, plus that of a step relative to other steps
from the same state.
"""

from __future__ import annotations

import numpy as np
import torch

from verl.trainer.config.algorithm import EstimatorConfig
from verl.trainer.config.names import GIGPO_MODES
from verl.trainer.plan.registry import register_adv_est
from verl.trainer.ppo.core_algos.checks import check_columns, numbers
from verl.trainer.ppo.core_algos.estimators.anchors import build_step_group
from verl.trainer.ppo.core_algos.estimators.chains import build_chains, chain_rows, discounted_sums
from verl.trainer.ppo.core_algos.estimators.grpo import group_relative
from verl.trainer.ppo.core_algos.estimators.outcome import ScoredUnits, broadcast, real_rows
from verl.utils.names import own_key


@register_adv_est(
    "gigpo",
    reads=("gamma", "gigpo"),
    learns_from="the rewards of single steps",
    follows_calls="follows the rewards of an episode's steps",
)
def compute_gigpo_outcome_advantage(
    token_level_rewards: torch.Tensor,
    step_rewards: torch.Tensor | np.ndarray,
    response_mask: torch.Tensor,
    anchor_obs: np.ndarray,
    index: np.ndarray,
    traj_index: np.ndarray | None = None,
    epsilon: float = 1e-6,
    step_advantage_w: float = 1.0,
    mode: str = "mean_norm",
    enable_similarity: bool = False,
    similarity_thresh: float = 0.95,
    config: EstimatorConfig = None,
    *,
    traj_uid: np.ndarray | None = None,
    turn_index: np.ndarray | None = None,
    agent_index: np.ndarray | None = None,
    gamma: float = 1.0,
    weights: np.ndarray | None = None,
    reply_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `A = A_episode + w A_step` (GiGPO, arXiv 2505.10978).

    `A_episode = (S - mean_g) / F` over the trajectories of a group, `S` the mean score of a trajectory's rows
    (eq. 3); over rows without `traj_index` (verl-agent's default, and ours unless
    `statistics_over=trajectories`). `A_step = (G - mean_s) / F` over the steps of a group that started in the
    same state (eq. 7), `G` the discounted sum of the step rewards from that step on. `F = 1` (`mean_norm`) or
    `std + epsilon`, unbiased (`mean_std_norm`). Both terms are 0 in a group of one (`config.singleton="raw"`:
    the episode term is its score, the step term still 0), and exactly 0 in a group of equal values.

    Keys: `algorithm.gigpo.*`, `gamma`, `group_by`, `statistics_over`, `call_weighting`,
    `singleton`.
    Use when: episodes are long, and the same states occur in several episodes of a group.
    Fails when: states never recur (long free-form histories in the observation): it is then GRPO.

    Args:
        step_rewards: `[bsz]` reward of each step, discounted here along the trajectory of its agent if
            `turn_index` is given; without it they must be discounted returns, as in verl-agent.
        anchor_obs: `[bsz]` state in which each step started.
        traj_index: `[bsz]` trajectory of each row, for statistics over trajectories.
        step_advantage_w, mode, enable_similarity, similarity_thresh: overridden by `config.gigpo`.
        traj_uid: `[bsz]` trajectory of each row, for statistics over rows; default: `traj_index`.
        turn_index: `[bsz]` numbers that increase along the episode; equal numbers are candidates of one call.
        agent_index: `[bsz]` agent of each row: returns are along one agent's steps.
        gamma: discount per step if there is no config.
        weights: `[bsz]` weight of each row in the step statistics and in its trajectory's mean
            (`call_weighting`).
        reply_mask: `[bsz, response_len]` mask before rejection: a completely rejected step is excluded from
            statistics, but its reward is in the returns of earlier steps, unless another candidate of its
            call is left.
        others: see `core_algos.estimators`.

    Raises:
        ValueError: an unknown mode, or missing rewards or anchors.
    """
    keys = own_key(config, "gigpo", None)
    gamma = own_key(config, "gamma", gamma)
    step_advantage_w = own_key(keys, "step_advantage_w", step_advantage_w)
    mode = own_key(keys, "mode", mode)
    enable_similarity = own_key(keys, "enable_similarity", enable_similarity)
    similarity_thresh = own_key(keys, "similarity_thresh", similarity_thresh)
    _check_steps(mode, step_rewards, anchor_obs)
    check_columns(response_mask, index=index, traj_index=traj_index, traj_uid=traj_uid, turn_index=turn_index)
    check_columns(response_mask, step_rewards=step_rewards, anchor_obs=anchor_obs)
    check_columns(response_mask, agent_index=agent_index, weights=weights)
    episodes = ScoredUnits.of(token_level_rewards, response_mask, index, traj_index, weights)
    by_std = mode == "mean_std_norm"
    episode = group_relative(episodes, epsilon, by_std, config)
    episode = episode if episodes.unit is None else episode[episodes.unit]
    valid = real_rows(response_mask).cpu().numpy()
    columns = (traj_index if traj_uid is None else traj_uid, turn_index, agent_index)
    returns = _returns(step_rewards, valid, *columns, gamma, response_mask, reply_mask)
    states = build_step_group(anchor_obs, index, enable_similarity, similarity_thresh, valid=valid)
    steps = ScoredUnits(returns, valid, np.maximum(states, 0), episodes.row_weights)
    step = group_relative(steps, epsilon, by_std, None)
    counts = valid if episodes.row_weights is None else valid & (episodes.row_weights > 0)
    total = np.where(counts, episode + step_advantage_w * step, 0.0)
    return broadcast(total, response_mask, token_level_rewards.dtype)


def _check_steps(mode: str, step_rewards: object, anchor_obs: object) -> None:
    if mode not in GIGPO_MODES:
        raise ValueError(f"algorithm.gigpo.mode={mode!r}: expected one of {GIGPO_MODES}")
    if step_rewards is None or anchor_obs is None:
        raise ValueError(
            "adv_estimator=gigpo needs step_rewards and anchor_obs: each step's reward and the "
            "state in which it started"
        )


def _returns(
    step_rewards: torch.Tensor | np.ndarray,
    valid: np.ndarray,
    trajectory: np.ndarray | None,
    turn_index: np.ndarray | None,
    agent_index: np.ndarray | None,
    gamma: float,
    response_mask: torch.Tensor,
    reply_mask: torch.Tensor | None,
) -> np.ndarray:
    """Return the discounted returns `[bsz]`; without `turn_index` the rewards are those already."""
    if turn_index is None:
        return numbers("step_rewards", step_rewards, valid)
    if trajectory is None:
        raise ValueError(
            "adv_estimator=gigpo needs traj_uid (or traj_index) to discount step rewards along turn_index"
        )
    chained = chain_rows(trajectory, turn_index, agent_index, response_mask, reply_mask)
    rewards = numbers("step_rewards", step_rewards, chained)
    return compute_step_discounted_returns(rewards, trajectory, turn_index, gamma, agent_index, chained)


def compute_step_discounted_returns(
    step_rewards: np.ndarray,
    traj_index: np.ndarray,
    turn_index: np.ndarray,
    gamma: float,
    agent_index: np.ndarray | None = None,
    valid: np.ndarray | None = None,
) -> np.ndarray:
    """Return `G_k = r_k + gamma G_(k+1)` along the steps of one agent in one trajectory: `[bsz]` float64
    (arXiv 2505.10978).

    Args:
        step_rewards: `[bsz]`.
        traj_index: `[bsz]` trajectory of each row.
        turn_index: `[bsz]` numbers that increase along the episode. Candidates of one call have equal
            numbers: each has its own reward, and is followed by the mean over the candidates of the next
            call.
        gamma: discount per step.
        agent_index: `[bsz]` agent; None: one agent.
        valid: `[bsz]`; rows that are False are ignored, and their return is 0.
    """
    real = np.ones(len(step_rewards), dtype=bool) if valid is None else valid
    return discounted_sums(
        build_chains(traj_index, turn_index, agent_index, real),
        np.asarray(step_rewards, dtype=np.float64),
        gamma,
    )
