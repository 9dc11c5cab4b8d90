"""Covariance of advantage and log-prob per token over a mini-batch, which causes entropy collapse
(arXiv 2505.22617).
"""

from __future__ import annotations

import torch

from verl.trainer.ppo.core_algos.policy_losses.preparation import MiniBatch


def token_covariance(mini: MiniBatch) -> tuple[torch.Tensor, float]:
    """Return `(A - mean A) (log_prob - mean log_prob)` with means over the mini-batch.

    Returns:
        `[bsz, response_len]`, -inf where masked, and the number of tokens of the mini-batch,
        weighted by row.
    """
    weights = mini.token_weights
    mask = mini.response_mask.bool()
    advantages, log_prob = (torch.where(mask, x, 0.0) for x in (mini.advantages, mini.log_prob))
    sums = mini.ranks.sum(
        torch.stack([weights.sum(), (weights * advantages).sum(), (weights * log_prob).sum()])
    )
    tokens = float(sums[0])
    mean_advantage, mean_log_prob = (sums[1:] / (tokens or 1.0)).tolist()
    return torch.where(mask, (advantages - mean_advantage) * (log_prob - mean_log_prob), -torch.inf), tokens


def share_of_largest(
    values: torch.Tensor, weights: torch.Tensor, count: float, mini: MiniBatch
) -> torch.Tensor:
    """Return the membership of each token in the `count` largest `values` of the mini-batch: 1, 0,
    or a fraction for ties at the boundary.

    Equal values at the boundary share the remaining places, so that the result depends on the set
    of tokens only.

    Args:
        values: `[bsz, response_len]`.
        weights: weight of every token, the same shape; tokens of weight 0 are ignored.
        count: number of places.

    Returns:
        fractions in [0, 1], the same shape.
    """
    own_values, own_weights = _leading(values[weights > 0], weights[weights > 0], count)
    all_values, all_weights = (torch.cat(mini.ranks.gather(x)) for x in (own_values, own_weights))
    if not len(all_values):
        return torch.zeros_like(values)
    boundary = _leading(all_values, all_weights, count)[0][-1]
    above = values > boundary
    equal = values == boundary
    sums = mini.ranks.sum(torch.stack([(weights * above).sum(), (weights * equal).sum()]))
    rest = ((count - sums[0]) / sums[1]).clamp(0.0, 1.0)
    return (above + equal * rest).to(values.dtype) * (weights > 0)


def _leading(values: torch.Tensor, weights: torch.Tensor, count: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest values, in descending order, until their weights fill `count` places."""
    order = values.argsort(descending=True)
    values = values[order]
    weights = weights[order]
    before = weights.cumsum(0) - weights
    keep = before < count
    return values[keep], weights[keep]
