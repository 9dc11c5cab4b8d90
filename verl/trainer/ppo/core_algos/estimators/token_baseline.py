"""Optimal token baseline: one baseline per token position, weighted by the gradient norm of each
reply up to that position.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from verl.trainer.config.algorithm import EstimatorConfig
from verl.trainer.plan.registry import register_adv_est
from verl.trainer.ppo.core_algos.checks import check_columns, check_finite, check_tokens
from verl.trainer.ppo.core_algos.estimators.outcome import outcome_scores, singleton_advantage
from verl.trainer.ppo.core_algos.grouping import group_index, group_stats


@register_adv_est("optimal_token_baseline", reads=())
def compute_optimal_token_baseline_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    old_log_probs: torch.Tensor,
    sum_pi_squared: torch.Tensor,
    rollout_is_weights: torch.Tensor | None = None,
    handle_zero_tail: bool = True,
    epsilon: float = 1e-8,
    *,
    config: EstimatorConfig = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `A_t = G_t - B_t`, `B_t = sum_g(G_t W_t) / (sum_g(W_t) + epsilon)`,
    `W_t = sum_(j <= t) 1 - 2 pi_j + sum pi_j^2` (arXiv 2602.07078).

    `G` is the reward to go and `W` a proxy of the squared gradient norm of a reply up to a token; sums are
    over replies of the group with an unmasked token in that column. A group of one has advantage 0
    (`config.singleton="raw"`: its rewards to go). Advantages are exactly 0 in a column with several replies
    of equal reward to go, and in a group with the same reward to go at every token (for example, equal
    outcome rewards); replies with equal total rewards at different tokens are compared.

    Keys: `algorithm.group_by`, `singleton`.
    Use when: replies are long and the variance of the gradient grows along them; needs the policy's
    `sum_pi_squared`.
    Fails when: groups are small: the baseline of a column is then determined by the few replies of that
    length.

    Args:
        old_log_probs: `[bsz, response_len]` log-probs of the tokens.
        sum_pi_squared: `[bsz, response_len]` sum over the vocabulary of the squared probabilities at each
            token.
        rollout_is_weights: `[bsz, response_len]`; their squares scale `W`'s terms.
        handle_zero_tail: no baseline in columns that only the longest reply of a group reaches.
        epsilon: added to the sum of weights.
        others: see `core_algos.estimators`.

    Returns:
        advantages and returns (rewards to go), `[bsz, response_len]`.
    """
    returns, weights, mask, groups = _energy(
        token_level_rewards, response_mask, index, old_log_probs, sum_pi_squared, rollout_is_weights
    )
    differences = _differences(returns, weights, mask, groups, handle_zero_tail, epsilon)
    advantages = _mask_and_singletons(
        differences, token_level_rewards, response_mask, groups, returns, config
    )
    return advantages, returns.to(advantages.dtype)


@register_adv_est("tir_optimal_token_baseline", reads=())
def compute_multi_turn_optimal_token_baseline_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    old_log_probs: torch.Tensor,
    sum_pi_squared: torch.Tensor,
    rollout_is_weights: torch.Tensor | None = None,
    handle_zero_tail: bool = True,
    epsilon: float = 1e-8,
    *,
    config: EstimatorConfig = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `compute_optimal_token_baseline_advantage` over n-th unmasked tokens instead of columns
    (arXiv 2602.07078).

    `A_n = G_n - sum_g(G_n W_n) / (sum_g(W_n) + epsilon)`, n the index among a reply's unmasked tokens:
    replies with masked tool output are compared by their generated tokens.

    Keys: `algorithm.group_by`, `singleton`.
    Use when: replies contain masked tokens in between (tool output).
    Fails when: as the single-turn form.

    Args:
        old_log_probs, sum_pi_squared, rollout_is_weights, handle_zero_tail, epsilon: as for that function.
        others: see `core_algos.estimators`.

    Returns:
        advantages and returns (rewards to go), `[bsz, response_len]`.
    """
    returns, weights, mask, groups = _energy(
        token_level_rewards, response_mask, index, old_log_probs, sum_pi_squared, rollout_is_weights
    )
    # Unmasked tokens first, in their order: column n is then the n-th token of each reply.
    packed = torch.sort((~mask).int(), dim=-1, stable=True).indices
    differences = _differences(
        returns.gather(1, packed),
        weights.gather(1, packed),
        mask.gather(1, packed),
        groups,
        handle_zero_tail,
        epsilon,
    )
    unpacked = torch.zeros_like(differences).scatter(1, packed, differences)
    advantages = _mask_and_singletons(unpacked, token_level_rewards, response_mask, groups, returns, config)
    return advantages, returns.to(advantages.dtype)


def _energy(
    rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    log_probs: torch.Tensor,
    sum_pi_squared: torch.Tensor,
    is_weights: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, np.ndarray]:
    """Return rewards to go and `W` (both `[bsz, response_len]` float64, 0 where masked), the mask
    and the groups.
    """
    tensors = {"token_level_rewards": rewards, "old_log_probs": log_probs, "sum_pi_squared": sum_pi_squared}
    if is_weights is not None:
        tensors["rollout_is_weights"] = is_weights
    check_tokens(response_mask, **tensors)
    check_columns(response_mask, index=index)
    for name, tensor in tensors.items():
        check_finite(name, tensor, response_mask)
    mask = response_mask.bool()
    to_go = rewards.detach().double().masked_fill(~mask, 0.0).flip(-1).cumsum(-1).flip(-1)
    energy = 1 - 2 * log_probs.detach().double().exp() + sum_pi_squared.detach().double()
    if is_weights is not None:
        energy = energy * is_weights.detach().double() ** 2
    energy = energy.masked_fill(~mask, 0.0).cumsum(-1)
    return to_go.masked_fill(~mask, 0.0), energy.masked_fill(~mask, 0.0), mask, group_index([index])


def _differences(
    returns: torch.Tensor,
    weights: torch.Tensor,
    mask: torch.Tensor,
    groups: np.ndarray,
    handle_zero_tail: bool,
    epsilon: float,
) -> torch.Tensor:
    """Return `G` minus its column's baseline, `[bsz, n]`; exactly 0 in columns, and in groups, with
    equal rewards to go.
    """
    if not returns.numel():
        return returns
    group = torch.as_tensor(groups, device=returns.device)
    index = group.unsqueeze(1).expand_as(returns)
    bound = torch.full(
        (int(groups.max()) + 1, returns.shape[1]), torch.inf, dtype=returns.dtype, device=returns.device
    )
    lowest = bound.scatter_reduce(0, index, returns.masked_fill(~mask, torch.inf), "amin")
    highest = (-bound).scatter_reduce(0, index, returns.masked_fill(~mask, -torch.inf), "amax")
    replies = torch.zeros_like(bound).scatter_add(0, index, mask.to(bound.dtype))
    same = (lowest == highest) & (replies > 1) | (lowest.amin(dim=1) == highest.amax(dim=1)).unsqueeze(1)
    baseline = _column_baseline(returns, weights, mask, groups, handle_zero_tail, epsilon)
    return (returns - baseline).masked_fill(same[group], 0.0)


def _column_baseline(
    returns: torch.Tensor,
    weights: torch.Tensor,
    mask: torch.Tensor,
    groups: np.ndarray,
    handle_zero_tail: bool,
    epsilon: float,
) -> torch.Tensor:
    """Return `sum_g(G W) / (sum_g W + epsilon)` of each row's group in each column, `[bsz, n]`."""
    top = _group_sums(returns * weights, groups)
    bottom = _group_sums(weights, groups)
    baseline = torch.as_tensor(top / (bottom + epsilon), device=returns.device)[
        torch.as_tensor(groups, device=returns.device)
    ]
    if handle_zero_tail:
        length = mask.sum(dim=-1).cpu().numpy()
        longest, second = _two_longest(length, groups)
        alone = torch.as_tensor(
            (length == longest[groups]) & (longest > second)[groups], device=returns.device
        )
        after = torch.arange(returns.shape[1], device=returns.device) >= torch.as_tensor(
            second[groups], device=returns.device
        ).unsqueeze(1)
        baseline = baseline.masked_fill(alone.unsqueeze(1) & after, 0.0)
    return baseline


def _group_sums(values: torch.Tensor, groups: np.ndarray) -> np.ndarray:
    """Return the sum of each column per group, `[n_groups, n]`, sorted before summing: identical to
    the bit for any order of rows.
    """
    array = values.cpu().numpy()
    by_value = np.argsort(array, axis=0, kind="stable")
    by_group = np.argsort(groups[by_value], axis=0, kind="stable")
    array = np.take_along_axis(array, np.take_along_axis(by_value, by_group, axis=0), axis=0)
    count = np.bincount(groups)
    return np.add.reduceat(array, np.cumsum(count) - count, axis=0) if len(array) else array


def _two_longest(length: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest and the second largest length of each group, `[n_groups]`; the second of a
    group of one is 0.
    """
    order = np.lexsort((length, groups))
    ends = np.cumsum(np.bincount(groups)) - 1
    starts = ends - np.bincount(groups) + 1
    longest = length[order[ends]]
    return longest, np.where(ends > starts, length[order[np.maximum(ends - 1, 0)]], 0)


def _mask_and_singletons(
    advantages: torch.Tensor,
    rewards: torch.Tensor,
    response_mask: torch.Tensor,
    groups: np.ndarray,
    returns: torch.Tensor,
    config: EstimatorConfig,
) -> torch.Tensor:
    """Return advantages that are 0 at masked tokens, and 0 or the rewards to go in a group of one
    (`config.singleton`).
    """
    scores, valid = outcome_scores(rewards, response_mask)
    alone = torch.as_tensor(
        group_stats(scores, groups, valid).count[groups] == 1, device=returns.device
    ).unsqueeze(1)
    raw = singleton_advantage(scores, config) is scores
    out = torch.where(alone, returns if raw else 0.0, advantages).masked_fill(~response_mask.bool(), 0.0)
    return out.to(torch.promote_types(rewards.dtype, torch.float32))
