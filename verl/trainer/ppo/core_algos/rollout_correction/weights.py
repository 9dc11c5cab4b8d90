"""Importance weights old / sampler, truncated (TIS) or restricted to a band (IcePop), per token or
per sequence.
"""

from __future__ import annotations

import math

import torch

from verl.trainer.config.names import IS_LEVELS
from verl.trainer.ppo.core_algos.aggregation import row_mean, row_sum, set_mean, spread
from verl.trainer.ppo.core_algos.checks import check_log_ratio
from verl.trainer.ppo.correction_bounds import LOG_RATIO_BOUND, Band


@torch.no_grad()
def compute_rollout_correction_weights(
    log_ratio: torch.Tensor,
    response_mask: torch.Tensor,
    rollout_is: str = "token",
    rollout_is_threshold: str | float = 2.0,
    rollout_is_batch_normalize: bool = False,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return `w = min(exp(log_ratio), C)` per token, or of the row's summed log-ratio (TIS,
    https://fengyao.notion.site/off-policy-rl).

    With a band `"lo_hi"` the weight is the ratio inside it and 0 outside (IcePop, arXiv 2510.18855).
    Log-ratios are clamped to +-20.

    Args:
        log_ratio: trainer's minus sampler's log-prob, `[bsz, response_len]`.
        response_mask: the same shape; rows without an unmasked token are ignored.
        rollout_is: `token` or `sequence`.
        rollout_is_threshold: C, or `"lower_upper"`.
        rollout_is_batch_normalize: divide by the mean weight over tokens (`token`) or rows (`sequence`) of
            this batch.

    Returns:
        detached weights `[bsz, response_len]`, 0 where masked, and verl's metrics without their prefix (of
        weights before normalisation).

    Raises:
        TypeError, ValueError: an unknown level, a malformed threshold, or as `check_log_ratio`.
    """
    if rollout_is not in IS_LEVELS:
        raise ValueError(f"rollout_is={rollout_is!r}: expected one of {IS_LEVELS}")
    band = Band.parse(rollout_is_threshold)
    check_log_ratio(log_ratio, response_mask)
    mask = response_mask.bool()
    measured = (
        log_ratio if rollout_is == "token" else row_sum(log_ratio, mask).to(log_ratio.dtype).unsqueeze(-1)
    )
    raw = torch.where(
        mask, torch.exp(measured.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)).expand_as(log_ratio), 0.0
    )
    weights = torch.where(mask, band.weigh(raw), 0.0)
    metrics = compute_is_metrics(weights, raw, measured, mask, rollout_is, band.upper, band.lower)
    if band.lower is not None:
        metrics["rollout_is_oob_ratio"] = (
            ((raw < band.lower) | (raw > band.upper))[mask].double().mean().item()
        )
    if rollout_is_batch_normalize:
        mean = set_mean(weights[mask] if rollout_is == "token" else row_mean(weights, mask)[mask.any(dim=-1)])
        factor = mean if mean > 1e-8 else 1.0
        weights = weights / factor
        metrics["rollout_is_batch_norm_factor"] = factor
    return weights, metrics


def compute_is_metrics(
    rollout_is_weights: torch.Tensor,
    raw_rollout_is_weights: torch.Tensor,
    log_ratio_for_metrics: torch.Tensor,
    response_mask: torch.Tensor,
    rollout_is: str,
    rollout_is_threshold: float,
    rollout_is_threshold_lower: float | None = None,
) -> dict[str, float]:
    """Return verl's statistics of the weights, over unmasked tokens and the rows that have any.

    Args:
        rollout_is_weights: applied weights, `[bsz, response_len]`.
        raw_rollout_is_weights: weights before truncation, the same shape.
        log_ratio_for_metrics: `[bsz, response_len]` for tokens, `[bsz, 1]` for sequences.
        response_mask: `[bsz, response_len]`.
        rollout_is: `token` or `sequence`.
        rollout_is_threshold: upper bound.
        rollout_is_threshold_lower: lower bound; default: `1 / rollout_is_threshold`.

    Raises:
        ValueError: no token is unmasked.
    """
    if not response_mask.any():
        raise ValueError("response_mask must contain at least one valid token (1)")
    mask = response_mask.bool()
    real = mask.any(dim=-1)
    high = rollout_is_threshold
    low = 1.0 / high if rollout_is_threshold_lower is None else rollout_is_threshold_lower
    applied = rollout_is_weights[mask].double()
    raw = raw_rollout_is_weights[mask]
    metrics = {"rollout_is_mean": applied.mean().item()}
    if rollout_is == "sequence":
        logs = log_ratio_for_metrics[real].double()
        metrics["rollout_is_max"] = math.exp(min(logs.max().item(), LOG_RATIO_BOUND))
        metrics["rollout_is_min"] = math.exp(min(logs.min().item(), LOG_RATIO_BOUND))
        above = logs > math.log(high)
        below = logs < math.log(low)
    else:
        metrics["rollout_is_max"], metrics["rollout_is_min"] = applied.max().item(), applied.min().item()
        above = raw > high
        below = raw < low
    metrics["rollout_is_ratio_fraction_high"] = above.double().mean().item()
    metrics["rollout_is_ratio_fraction_low"] = below.double().mean().item()
    bounded = applied.clamp(min=0.0, max=high)
    square = bounded.square().mean().item()
    metrics["rollout_is_std"] = bounded.std(correction=0).item() if len(bounded) > 1 else 0.0
    metrics["rollout_is_eff_sample_size"] = bounded.mean().item() ** 2 / square if square else 0.0
    rows = row_mean(rollout_is_weights, mask)[real]
    raw_rows = row_mean(raw_rollout_is_weights, mask)[real]
    names = ("mean", "std", "max", "min")
    metrics |= {f"rollout_is_seq_{name}": value for name, value in zip(names, spread(rows), strict=True)}
    metrics["rollout_is_seq_max_deviation"] = (rows - 1.0).abs().max().item()
    metrics["rollout_is_seq_fraction_high"] = (raw_rows > high).double().mean().item()
    metrics["rollout_is_seq_fraction_low"] = (raw_rows < low).double().mean().item()
    return metrics
