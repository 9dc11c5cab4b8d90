"""How far trainer and sampler are apart as distributions: perplexities, KL and chi-squared."""

from __future__ import annotations

import torch

from verl.trainer.ppo.core_algos.rollout_correction.rows import pieces, row_sum
from verl.trainer.ppo.correction_bounds import LOG_RATIO_BOUND


@torch.no_grad()
def compute_offpolicy_metrics(
    old_log_prob: torch.Tensor, rollout_log_prob: torch.Tensor | None, response_mask: torch.Tensor
) -> dict[str, float]:
    """verl's diagnostics, without their prefix, over unmasked tokens and the rows that have any.

    With `x = old - rollout`: `kl` is the mean of `-x`, as it is; `k3_kl` of `exp(x) - x - 1` and `chi2_token` of `exp(2x)` less 1, with `x`
    clamped to +-20; `chi2_seq` the same of the rows' sums; `*_ppl` are means of the rows' perplexities, `log_ppl_diff` of their log-ratio.

    Args:
        old_log_prob: the trainer's, `[bsz, response_len]`.
        rollout_log_prob: the sampler's; None gives the trainer's perplexity alone.
        response_mask: `[bsz, response_len]`.

    Raises:
        AssertionError: nothing is unmasked.
    """
    assert response_mask.any(), "Expected at least one valid token in response_mask"
    mask = response_mask.bool()
    real = mask.any(dim=-1)
    lengths = mask.sum(dim=-1)[real]
    trainer_sum = row_sum(old_log_prob, mask)[real]
    trainer = trainer_sum / lengths
    metrics = {"training_ppl": torch.exp(-trainer).mean(), "training_log_ppl": -trainer.mean()}
    if rollout_log_prob is not None:
        sampler_sum = row_sum(rollout_log_prob, mask)[real]
        sampler = sampler_sum / lengths
        kl, k3_kl, ratio_square = _token_means(old_log_prob, rollout_log_prob, mask)
        row_x = (trainer_sum - sampler_sum).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        log_ppl = sampler - trainer
        metrics |= {
            "kl": kl,
            "k3_kl": k3_kl,
            "rollout_ppl": torch.exp(-sampler).mean(),
            "rollout_log_ppl": -sampler.mean(),
            "log_ppl_diff": log_ppl.mean(),
            "log_ppl_abs_diff": log_ppl.abs().mean(),
            "log_ppl_diff_max": log_ppl.max(),
            "log_ppl_diff_min": log_ppl.min(),
            "ppl_ratio": torch.exp(log_ppl).mean(),
            "chi2_token": ratio_square - 1,
            "chi2_seq": torch.exp(2 * row_x).mean() - 1,
        }
    return dict(zip(metrics, torch.stack(list(metrics.values())).tolist(), strict=True))


def _token_means(old_log_prob: torch.Tensor, rollout_log_prob: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Means of `-x`, `r - log r - 1` and `r^2` over unmasked tokens, `x = old - rollout`, `r = exp(x)` of the clamped x: `[3]` float64."""
    sums = []
    for old, rollout, keep in pieces(old_log_prob, rollout_log_prob, mask):
        x = old[keep].double() - rollout[keep].double()
        bounded = x.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        ratio = torch.exp(bounded)
        sums.append(torch.stack([-x.sum(), (ratio - bounded - 1).sum(), ratio.square().sum()]))
    return torch.stack(sums).sum(dim=0) / mask.sum()


def compute_rollout_corr_metrics_from_logprobs(
    log_prob: torch.Tensor, rollout_log_prob: torch.Tensor, response_mask: torch.Tensor
) -> dict[str, float]:
    """`compute_offpolicy_metrics` of the current policy against the sampler, as `rollout_corr/<name>`."""
    metrics = compute_offpolicy_metrics(log_prob, rollout_log_prob, response_mask)
    return {f"rollout_corr/{name}": value for name, value in metrics.items()}
