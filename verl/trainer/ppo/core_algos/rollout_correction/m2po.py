"""M2PO: leave out as few tokens as it takes to bound the second moment of the log-ratio."""

from __future__ import annotations

import torch

from verl.trainer.ppo.core_algos.estimators.checks import check_tokens
from verl.trainer.ppo.core_algos.rollout_correction.rows import check_log_ratio

# A mean that is tau itself must not fail by the rounding of its sum, which would mask every token of a constant gap.
ROUNDING = 1e-12


@torch.no_grad()
def compute_m2po_mask(
    log_ratio: torch.Tensor, response_mask: torch.Tensor, tau: float, advantages: torch.Tensor
) -> tuple[torch.Tensor, dict[str, float]]:
    """Mask the tokens that the update drives away from the sampler, the largest squared log-ratio first, until the mean of those that
    are left of them is at most `tau` (M2PO, arXiv 2510.01161, Algorithm 1 and section 5.2; its tau is 0.04).

    Bounded are only tokens with `A > 0, r > 1` or `A < 0, r < 1`, where PPO clips; all others are kept and are in no mean. The largest
    set under the bound is kept. Which tokens go is a function of the values alone: tokens of the same value stay or go together.

    Args:
        log_ratio: `log r`, trainer's minus sampler's log-prob, `[bsz, response_len]`, of one policy.
        response_mask, advantages: the same shape.
        tau: bound of the mean square.

    Returns:
        the narrowed mask in the dtype of `response_mask`, and the metrics `m2po_m2` (mean square of the bounded tokens before),
        `m2po_m2_kept` (after) and `m2po_masked_fraction` (of all tokens).

    Raises:
        ValueError: tau is not positive, or log-ratios that `check_log_ratio` refuses.
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
    kept = int((count * fits).max())
    bound = ranked[kept - 1] if kept else -1.0
    metrics = {
        "m2po_m2": (sums[-1] / len(ranked)).item(),
        "m2po_m2_kept": (sums[kept - 1] / kept).item() if kept else 0.0,
        "m2po_masked_fraction": (len(ranked) - kept) / int(response_mask.bool().sum()),
    }
    return response_mask * (~bounded | (squares <= bound)).to(response_mask.dtype), metrics
