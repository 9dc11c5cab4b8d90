"""Rejection and M2PO: mask tokens or whole replies whose log-probs differ too much between trainer
and sampler.
"""

from __future__ import annotations

import math

import torch

from verl.trainer.config.names import RS_MODES
from verl.trainer.ppo.core_algos.aggregation import row_mean, row_sum, spread
from verl.trainer.ppo.core_algos.checks import check_log_ratio, check_tokens
from verl.trainer.ppo.correction_bounds import LOG_RATIO_BOUND, parse_bounds, parse_modes

SUPPORTED_ROLLOUT_RS_OPTIONS = set(RS_MODES)
TOKEN_LEVEL_ROLLOUT_RS_OPTIONS = {mode for mode in RS_MODES if mode.startswith("token")}
# A mean equal to tau must not exceed it by rounding, which would mask all tokens of equal
# log-ratios.
ROUNDING = 1e-12


@torch.no_grad()
def compute_rollout_rejection_mask(
    log_ratio: torch.Tensor,
    response_mask: torch.Tensor,
    rollout_rs: str = "token_k1",
    rollout_rs_threshold: str | float | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Keep a token if every mode keeps it; a sequence mode keeps or rejects the whole row.

    With `x` the log-ratio clamped to +-20: k1 is `-x` (kept where sampler/trainer, `exp(-x)`, is
    within the bounds), k2 is `x^2 / 2`, k3 is `exp(x) - 1 - x` (both kept up to the bound); `token`
    modes use them per token, `seq_sum`, `seq_mean` and `seq_max` over the row's unmasked tokens
    (http://joschu.net/blog/kl-approx.html for the estimators).

    Args:
        log_ratio: trainer's minus sampler's log-prob, `[bsz, response_len]`.
        response_mask: the same shape.
        rollout_rs: modes, comma-separated.
        rollout_rs_threshold: one bound for all modes or one per mode, comma-separated; k1 takes
            `"lower_upper"` bounds of sampler/trainer, `exp(-x)`.

    Returns:
        the mask after rejection in the dtype of `response_mask`, and verl's metrics without their
        prefix.

    Raises:
        TypeError, ValueError: an unknown mode, a malformed threshold, or as `check_log_ratio`.
    """
    modes = parse_modes(rollout_rs)
    bounds = parse_bounds(modes, rollout_rs_threshold)
    if not len(log_ratio):
        return response_mask, {}
    check_log_ratio(log_ratio, response_mask)
    mask = response_mask.bool()
    x = torch.where(mask, log_ratio, 0.0).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    keep_mask = mask
    metrics = dict[str, float]()
    for mode in modes:
        stat = _statistic(mode, x, mask)
        band = bounds[mode]
        is_k1 = mode.endswith("k1")
        low, high = (math.log(band.floor), math.log(band.upper)) if is_k1 else (0.0, band.upper)
        keep = ((stat <= high) & (stat >= low) if is_k1 else stat <= high) & mask
        per_row = None if mode in TOKEN_LEVEL_ROLLOUT_RS_OPTIONS else stat[:, 0]
        metrics |= compute_rs_metrics(
            mode, stat, mask, mask.any(dim=-1), level="token" if per_row is None else "sequence",
            per_sequence_values=per_row,
            rollout_rs_threshold=high, rollout_rs_threshold_lower=low, apply_lower_threshold=is_k1,
        )  # fmt: skip
        metrics |= _rejected_shares(f"rollout_rs_{mode}_", mask, keep)
        keep_mask = keep_mask & keep
    metrics |= _rejected_shares("rollout_rs_", mask, keep_mask)
    return response_mask * keep_mask.to(response_mask.dtype), metrics


def _statistic(mode: str, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mode's statistic `[bsz, response_len]`; equal for all tokens of a row in a
    sequence mode.
    """
    level, kind = mode.rsplit("_", 1)
    token = {"k1": -x, "k2": 0.5 * x.square(), "k3": torch.exp(x) - 1.0 - x}[kind]
    if level == "token":
        return token
    if level == "seq_max":
        row = torch.where(mask, token, 0.0).max(dim=-1).values
    else:
        row = (row_sum if level == "seq_sum" else row_mean)(token, mask).to(token.dtype)
    return row.unsqueeze(-1).expand_as(token)


def _rejected_shares(prefix: str, mask: torch.Tensor, keep: torch.Tensor) -> dict[str, float]:
    """Return the fraction of rejected tokens, and of rows with a rejected token."""
    rejected = mask & ~keep
    tokens = mask.sum().item()
    rows = mask.any(dim=-1).sum().item()
    return {
        f"{prefix}masked_fraction": rejected.sum().item() / tokens,
        f"{prefix}seq_masked_fraction": rejected.any(dim=-1).sum().item() / rows,
    }


def compute_rs_metrics(
    option_name: str,
    rs_statistic: torch.Tensor,
    response_mask: torch.Tensor,
    seq_valid_mask: torch.Tensor,
    *,
    level: str,
    per_sequence_values: torch.Tensor | None,
    rollout_rs_threshold: float,
    rollout_rs_threshold_lower: float,
    apply_lower_threshold: bool,
) -> dict[str, float]:
    """Return verl's statistics of one rejection mode, over unmasked tokens and the rows that have
    any.

    Args:
        option_name: mode, as part of the names of metrics.
        rs_statistic: `[bsz, response_len]`.
        response_mask: `[bsz, response_len]`.
        seq_valid_mask: `[bsz]`, rows with an unmasked token.
        level: `token` or `sequence`.
        per_sequence_values: `[bsz]`; default: the row means of `rs_statistic`.
        rollout_rs_threshold, rollout_rs_threshold_lower: bounds of the statistic.
        apply_lower_threshold: whether the lower bound is used.

    Raises:
        ValueError: no token is unmasked.
    """
    if not response_mask.any():
        raise ValueError("response_mask must contain at least one valid token (1)")
    high = rollout_rs_threshold
    low = rollout_rs_threshold_lower
    tokens = rs_statistic[response_mask.bool()].double()
    rows = (
        row_mean(rs_statistic, response_mask) if per_sequence_values is None else per_sequence_values.double()
    )[seq_valid_mask.bool()]
    counted = rows if level == "sequence" else tokens
    bounded = tokens.clamp(min=low if apply_lower_threshold else 0.0, max=high)
    seq_mean, seq_std, seq_max, seq_min = spread(rows)

    def below(values: torch.Tensor) -> float:
        return (values < low).double().mean().item() if apply_lower_threshold else 0.0

    metrics = {
        "mean": tokens.mean().item(),
        "max": counted.max().item(),
        "min": counted.min().item(),
        "fraction_high": (counted > high).double().mean().item(),
        "fraction_low": below(counted),
        "std": bounded.std(correction=0).item() if len(bounded) > 1 else 0.0,
        "seq_mean": seq_mean,
        "seq_std": seq_std,
        "seq_max": seq_max,
        "seq_min": seq_min,
        "seq_max_deviation": rows.abs().max().item(),
        "seq_fraction_high": (rows > high).double().mean().item(),
    }
    if apply_lower_threshold:
        metrics["seq_fraction_low"] = below(rows)
    return {f"rollout_rs_{option_name}_{name}": value for name, value in metrics.items()}


@torch.no_grad()
def compute_m2po_mask(
    log_ratio: torch.Tensor, response_mask: torch.Tensor, tau: float, advantages: torch.Tensor
) -> tuple[torch.Tensor, dict[str, float]]:
    """Mask tokens that the update moves away from the sampler, the largest squared log-ratio first, until the
    mean square of the remaining ones is at most `tau` (M2PO, arXiv 2510.01161, Algorithm 1 and section 5.2;
    its tau is 0.04).

    Only tokens with `A > 0, r > 1` or `A < 0, r < 1`, where PPO clips, are bounded; all others are kept and
    are not in the mean. The largest set within the bound is kept. The mask depends on values only: tokens of
    equal value are kept or masked together.

    Args:
        log_ratio: `log r`, trainer's minus sampler's log-prob, `[bsz, response_len]`, of one policy.
        response_mask, advantages: the same shape.
        tau: bound of the mean square.

    Returns:
        the mask in the dtype of `response_mask`, and the metrics `m2po_m2` (mean square of the bounded tokens
        before), `m2po_m2_kept` (after) and `m2po_masked_fraction` (of all tokens).

    Raises:
        ValueError: tau is not positive, or as `check_log_ratio`.
    """
    if not tau > 0:
        raise ValueError(f"m2po_tau={tau}: expected a positive bound, for example 0.04")
    check_log_ratio(log_ratio, response_mask)
    check_tokens(response_mask, advantages=advantages)
    bounded = response_mask.bool() & (torch.sign(advantages) * torch.sign(log_ratio) > 0)
    squares = log_ratio.double().square()
    ranked = squares[bounded].sort().values
    if not len(ranked):
        return response_mask, {"m2po_m2": 0.0, "m2po_m2_kept": 0.0, "m2po_masked_fraction": 0.0}
    count = torch.arange(1, len(ranked) + 1, device=ranked.device)
    sums = ranked.cumsum(0)
    last_of_its_value = torch.ones_like(ranked, dtype=torch.bool)
    last_of_its_value[:-1] = ranked[1:] > ranked[:-1]
    fits = (sums <= tau * (1 + ROUNDING) * count) & last_of_its_value
    n_remaining = int((count * fits).max())
    bound = ranked[n_remaining - 1] if n_remaining else -1.0
    metrics = {
        "m2po_m2": (sums[-1] / len(ranked)).item(),
        "m2po_m2_kept": (sums[n_remaining - 1] / n_remaining).item() if n_remaining else 0.0,
        "m2po_masked_fraction": (len(ranked) - n_remaining) / int(response_mask.bool().sum()),
    }
    return response_mask * (~bounded | (squares <= bound)).to(response_mask.dtype), metrics
