"""M2PO: leave out as few tokens as it takes to bound the second moment of the log-ratio."""

from __future__ import annotations

import torch

from verl.trainer.ppo.core_algos.rollout_correction.rows import check_log_ratio

# A mean that is tau itself must not fail by the rounding of its sum, which would mask every token of a constant gap.
ROUNDING = 1e-12


@torch.no_grad()
def compute_m2po_mask(log_ratio: torch.Tensor, response_mask: torch.Tensor, tau: float) -> tuple[torch.Tensor, dict[str, float]]:
    """Mask the tokens with the largest squared log-ratio until the mean over the kept ones is at most `tau`.

    The largest set of tokens under the bound is kept (M2PO, arXiv 2510.01161, section 4; its tau is 0.04). Which tokens go is a
    function of the values alone: tokens of the same value stay or go together.

    Args:
        log_ratio: trainer's minus sampler's log-prob, `[bsz, response_len]`, of one policy.
        response_mask: the same shape.
        tau: bound of the mean square.

    Returns:
        the narrowed mask in the dtype of `response_mask`, and the metrics `m2po_m2` (mean square before), `m2po_m2_kept` (after) and
        `m2po_masked_fraction`.

    Raises:
        ValueError: tau is not positive, or log-ratios that `check_log_ratio` refuses.
    """
    if not tau > 0:
        raise ValueError(f"m2po_tau={tau}: expected a positive bound, for example 0.04")
    check_log_ratio(log_ratio, response_mask)
    mask = response_mask.bool()
    squares = log_ratio.double().square()
    ranked = squares[mask].sort().values
    count = torch.arange(1, len(ranked) + 1, device=ranked.device)
    sums = ranked.cumsum(0)
    last_of_its_value = torch.ones_like(ranked, dtype=torch.bool)
    last_of_its_value[:-1] = ranked[1:] > ranked[:-1]
    fits = (sums <= tau * (1 + ROUNDING) * count) & last_of_its_value
    kept = int((count * fits).max())
    bound = ranked[kept - 1] if kept else -1.0
    metrics = {
        "m2po_m2": (sums[-1] / len(ranked)).item(),
        "m2po_m2_kept": (sums[kept - 1] / kept).item() if kept else 0.0,
        "m2po_masked_fraction": 1.0 - kept / len(ranked),
    }
    return response_mask * (mask & (squares <= bound)).to(response_mask.dtype), metrics
