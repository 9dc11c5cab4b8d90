"""M-GRPO: separate groups for episodes of the main agent and calls of sub-agents, with any number
of calls.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import torch

from verl.trainer.config.algorithm import EstimatorConfig, MGRPOConfig
from verl.trainer.plan.registry import register_adv_est
from verl.trainer.ppo.core_algos.checks import check_columns
from verl.trainer.ppo.core_algos.estimators.grpo import group_relative
from verl.trainer.ppo.core_algos.estimators.outcome import ScoredUnits, outcome_scores
from verl.trainer.ppo.core_algos.grouping import first_rows, group_index
from verl.utils.names import own_key


def compared_units(
    config: EstimatorConfig, index: np.ndarray, traj_uid: np.ndarray, agent_index: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the group and unit of each row, both `[bsz]`: a unit is an episode of the main agent
    or one call of a sub-agent.

    Args:
        config: `AlgorithmConfig` with `m_grpo.main_agent`.
        index: `[bsz]` group key of each row.
        traj_uid: `[bsz]` episode of each row.
        agent_index: `[bsz]` agent of each row.
    """
    main = np.asarray(agent_index == own_key(own_key(config, "m_grpo", None), "main_agent", None))
    return group_index([index, main]), np.where(
        main, group_index([traj_uid]), len(main) + np.arange(len(main))
    )


@register_adv_est(
    "m_grpo",
    reads=("m_grpo", "norm_adv_by_std_in_grpo"),
    follows_calls="counts the calls of an episode",
    weighs_calls_by="m_grpo.sub_calls",
    units=compared_units,
)
def compute_m_grpo_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    agent_index: np.ndarray,
    traj_uid: np.ndarray,
    turn_index: np.ndarray,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: EstimatorConfig = None,
    *,
    seed: int = 0,
    candidate: np.ndarray | None = None,
) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Return `A = (s - mean) / (std + epsilon)` in two kinds of groups (M-GRPO, arXiv 2511.13288): over
    episodes of the main agent, and over aligned calls of sub-agents.

    The main agent's calls in an episode are averaged and share one advantage. The calls of a sub-agent are
    resampled to `config.m_grpo.sub_calls` per episode: of more calls some are dropped, of fewer some are
    repeated. A row that is sampled k times has weight k in the statistics (as k copies, also in the
    deviation) and in the loss instead of being copied; a row that is not sampled has weight 0 and advantage
    0. A group with one episode (one sampled call) has advantage 0, a group of equal scores exactly 0.

    Keys: `algorithm.m_grpo.main_agent`, `m_grpo.sub_calls`, `norm_adv_by_std_in_grpo`, `group_by`,
    `singleton`.
    Use when: a main agent calls sub-agents a varying number of times and each agent is trained on its own
    reward.
    Fails when: `sub_calls` differs much from the number of calls: most calls are then dropped, or a few have
    large weights.

    Args:
        index: `[bsz]` group of each row (the task); main agent and sub-agents are separated here.
        agent_index: `[bsz]` agent of each row.
        traj_uid: `[bsz]` episode of each row, as a string.
        turn_index: `[bsz]` index of the row among its agent's calls in the episode.
        seed: seed of sampling, which depends on seed, episode, agent and call only.
        candidate: `[bsz]` index that distinguishes rows of one call.
        others: see `core_algos.estimators`.

    Returns:
        advantages, returns (the same tensor `[bsz, response_len]`) and the weight of each row `[bsz]`.

    Raises:
        ValueError: no `config.m_grpo.main_agent`, `sub_calls` below 1, or as GRPO.
    """
    keys = own_key(config, "m_grpo", None)
    main_agent = own_key(keys, "main_agent", None)
    if not main_agent:
        raise ValueError(
            "m_grpo needs algorithm.m_grpo.main_agent, the agent that calls the others; name one "
            "of agent.agent_ids"
        )
    _, valid = outcome_scores(token_level_rewards, response_mask)
    check_columns(
        response_mask,
        index=index,
        agent_index=agent_index,
        traj_uid=traj_uid,
        turn_index=turn_index,
        candidate=candidate,
    )
    main = np.asarray(agent_index == main_agent)
    weights = valid.astype(np.float64)
    subs = np.flatnonzero(~main & valid)
    turns = np.asarray(turn_index, dtype=np.int64)[subs]
    candidates = np.zeros_like(turns) if candidate is None else np.asarray(candidate, dtype=np.int64)[subs]
    calls = own_key(keys, "sub_calls", MGRPOConfig.sub_calls)
    weights[subs] = aligned_calls(
        agent_index[subs], traj_uid[subs], turns, candidates, calls=calls, seed=seed
    )
    groups, unit = compared_units(config, index, traj_uid, agent_index)
    scored = ScoredUnits.of(token_level_rewards, response_mask, groups, unit, weights)
    per_unit = np.zeros(len(scored.scores))
    per_unit[scored.unit] = np.where(main, 1.0, weights)
    scored = replace(scored, weights=per_unit, copies=True)
    advantages, returns = scored.spread(
        group_relative(scored, epsilon, norm_adv_by_std_in_grpo, config), response_mask
    )
    return advantages, returns, weights


def aligned_calls(
    agent_index: np.ndarray,
    traj_uid: np.ndarray,
    turn_index: np.ndarray,
    candidate: np.ndarray,
    *,
    calls: int,
    seed: int,
) -> np.ndarray:
    """Return how often each row is sampled when an agent's rows in an episode are resampled to
    `calls`: `[bsz]` float64, sum `calls`.

    Each of d rows is sampled `calls // d` times, and `calls % d` of them, without replacement, once
    more. All arguments `[bsz]`.

    Raises:
        ValueError: `calls` is below 1.
    """
    if calls < 1:
        raise ValueError(f"algorithm.m_grpo.sub_calls={calls}: expected 1 or more")
    chain = group_index([traj_uid, agent_index])
    numbers = _random_numbers(chain, agent_index, traj_uid, seed)
    numbers = _mix(_mix(numbers ^ turn_index.astype(np.uint64)) ^ candidate.astype(np.uint64))
    order = np.lexsort((numbers, chain))
    count = np.bincount(chain)
    place = np.empty(len(chain), dtype=np.int64)
    place[order] = np.arange(len(chain)) - np.repeat(np.cumsum(count) - count, count)
    rows = count[chain]
    return (calls // rows + (place < calls % rows)).astype(np.float64)


def _random_numbers(
    chain: np.ndarray, agent_index: np.ndarray, traj_uid: np.ndarray, seed: int
) -> np.ndarray:
    """Return a random number per agent and episode, `[bsz]` uint64; equal in every process, unlike
    Python's `hash`.
    """
    texts = (f"{seed}\0{traj_uid[row]}\0{agent_index[row]}" for row in first_rows(chain))
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype=np.uint64)[chain]


def _mix(x: np.ndarray) -> np.ndarray:
    """Return a bijective hash of uint64 (the finaliser of SplitMix64)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
