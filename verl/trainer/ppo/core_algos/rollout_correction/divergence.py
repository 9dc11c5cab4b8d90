"""Difference of trainer and sampler: perplexities, KL and chi-squared of a batch, and sums to be
added over micro-batches and ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch

from verl.trainer.ppo.core_algos.aggregation import pieces, row_sum
from verl.trainer.ppo.correction_bounds import LOG_RATIO_BOUND, Band


@torch.no_grad()
def compute_offpolicy_metrics(
    old_log_prob: torch.Tensor, rollout_log_prob: torch.Tensor | None, response_mask: torch.Tensor
) -> dict[str, float]:
    """Return verl's diagnostics, without their prefix, over unmasked tokens and the rows that have
    any.

    With `x = old - rollout`: `kl` is the mean of `-x`, not clamped; `k3_kl` of `exp(x) - x - 1` and
    `chi2_token` of `exp(2x) - 1`, with `x` clamped to +-20; `chi2_seq` the same of row sums;
    `*_ppl` are means of row perplexities, `log_ppl_diff` of their log-ratio.

    Args:
        old_log_prob: trainer's log-probs, `[bsz, response_len]`.
        rollout_log_prob: sampler's log-probs; None returns only the trainer's perplexity.
        response_mask: `[bsz, response_len]`.

    Raises:
        AssertionError: no token is unmasked.
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


def _token_means(
    old_log_prob: torch.Tensor, rollout_log_prob: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return `[3]` float64: means of `-x`, `r - log r - 1` and `r^2` over unmasked tokens,
    `x = old - rollout`, `r = exp(clamped x)`.
    """
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
    """Return `compute_offpolicy_metrics` of the current policy and the sampler, as
    `rollout_corr/<name>`.
    """
    metrics = compute_offpolicy_metrics(log_prob, rollout_log_prob, response_mask)
    return {f"rollout_corr/{name}": value for name, value in metrics.items()}


@dataclass(frozen=True)
class SamplerGap:
    """Sums for `metrics` over unmasked tokens; gaps of disjoint tokens are added with `+`.

    Attributes:
        tokens: number of tokens.
        log_prob_diff: sum of `|log_prob - rollout_log_prob|`.
        prob_diff, prob_diff_square: sums of the absolute differences of the probabilities and of
            their squares.
        prob, prob_square, rollout_prob, rollout_prob_square: sums of the trainer's and of the
            sampler's probabilities and their squares.
        prob_product: sum of the products of both.
        kl: sum of `rollout_log_prob - log_prob` (k1 of KL(sampler || trainer)).
        k3_kl: sum of `r - log r - 1` with the ratio `r = exp(log_prob - rollout_log_prob)`, its
            logarithm clamped to +-20.
        ratio_square: sum of `r^2`.
        weight, weight_square: sums of the truncated token weight (0 outside a band) and of its
            square.
        high, low: number of tokens whose ratio is above, below the bounds.
        max_log_prob_diff, max_prob_diff: maxima of both differences.
    """

    tokens: float = 0.0
    log_prob_diff: float = 0.0
    prob_diff: float = 0.0
    kl: float = 0.0
    k3_kl: float = 0.0
    ratio_square: float = 0.0
    weight: float = 0.0
    weight_square: float = 0.0
    high: float = 0.0
    low: float = 0.0
    prob_diff_square: float = 0.0
    prob: float = 0.0
    prob_square: float = 0.0
    rollout_prob: float = 0.0
    rollout_prob_square: float = 0.0
    prob_product: float = 0.0
    max_log_prob_diff: float = 0.0
    max_prob_diff: float = 0.0

    def __add__(self, other: SamplerGap) -> SamplerGap:
        """Return the gap over the tokens of both."""
        mine = self.sums()
        theirs = other.sums()
        return SamplerGap.of(
            [a + b for a, b in zip(mine, theirs, strict=True)], map(max, self.maxima(), other.maxima())
        )

    def sums(self) -> list[float]:
        """Return the fields that are summed over ranks (`all_reduce` with SUM)."""
        return list(astuple(self))[:-2]

    def maxima(self) -> list[float]:
        """Return the fields that are maximized over ranks (`all_reduce` with MAX)."""
        return list(astuple(self))[-2:]

    @staticmethod
    def of(sums: Sequence[float], maxima: Sequence[float] | map[float]) -> SamplerGap:
        """Return the inverse of `sums` and `maxima`."""
        return SamplerGap(*sums, *maxima)

    def metrics(self) -> dict[str, float]:
        """Return metrics with verl's names, and `rollout_corr/log_prob_diff_mean|max`; empty
        without tokens.

        `rollout_corr/rollout_is_eff_sample_size` is `(sum w)^2 / (n sum w^2)`: 1 if all weights are
        equal.
        """
        if not self.tokens:
            return {}
        n = self.tokens
        return {
            "rollout_corr/log_prob_diff_mean": self.log_prob_diff / n,
            "rollout_corr/log_prob_diff_max": self.max_log_prob_diff,
            "rollout_corr/kl": self.kl / n,
            "rollout_corr/k3_kl": self.k3_kl / n,
            "rollout_corr/chi2_token": self.ratio_square / n - 1.0,
            "rollout_corr/rollout_is_eff_sample_size": self.weight**2 / (n * self.weight_square)
            if self.weight_square
            else 0.0,
            "rollout_corr/rollout_is_ratio_fraction_high": self.high / n,
            "rollout_corr/rollout_is_ratio_fraction_low": self.low / n,
            "training/rollout_probs_diff_mean": self.prob_diff / n,
            "training/rollout_probs_diff_max": self.max_prob_diff,
            **self._spread(),
        }

    def _spread(self) -> dict[str, float]:
        """Return the standard deviation (n - 1) of differences and the Pearson correlation, if
        defined: both need two different tokens.
        """
        n = self.tokens
        if n < 2:
            return {}
        out = {
            "training/rollout_probs_diff_std": math.sqrt(
                max(self.prob_diff_square - self.prob_diff**2 / n, 0.0) / (n - 1)
            )
        }
        mine = self.prob_square - self.prob**2 / n
        theirs = self.rollout_prob_square - self.rollout_prob**2 / n
        if min(mine, theirs) > 1e-12 * n:  # below it, only rounding
            both = self.prob_product - self.prob * self.rollout_prob / n
            out["training/rollout_actor_probs_pearson_corr"] = max(
                -1.0, min(1.0, both / math.sqrt(mine * theirs))
            )
        return out


@torch.no_grad()
def sampler_gap(
    log_prob: torch.Tensor,
    rollout_log_prob: torch.Tensor,
    response_mask: torch.Tensor,
    threshold: str | float = 2.0,
) -> SamplerGap:
    """Measure the gap over the unmasked tokens of one (micro-)batch.

    Args:
        log_prob: trainer's log-probs, `[bsz, response_len]`; masked entries may have any value.
        rollout_log_prob: sampler's log-probs, the same shape.
        response_mask: the same shape.
        threshold: `algorithm.rollout_correction.rollout_is_threshold`; with a single bound C,
            `high` and `low` use the band 1/C..C.
    """
    band = Band.parse(threshold)
    gap = SamplerGap()
    for piece in pieces(log_prob.detach(), rollout_log_prob.detach(), response_mask.bool()):
        gap += _gap_of_tokens(band, *piece)
    return gap


def _gap_of_tokens(
    band: Band, log_prob: torch.Tensor, rollout_log_prob: torch.Tensor, keep: torch.Tensor
) -> SamplerGap:
    ours = log_prob[keep].double()
    theirs = rollout_log_prob[keep].double()
    if not len(ours):
        return SamplerGap()
    log_ratio = ours - theirs
    bounded = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio = torch.exp(bounded)
    weight = band.weigh(ratio)
    prob = ours.exp()
    rollout_prob = theirs.exp()
    gap = log_ratio.abs()
    prob_gap = (prob - rollout_prob).abs()
    sums = (
        gap,
        prob_gap,
        -log_ratio,
        ratio - bounded - 1,
        ratio.square(),
        weight,
        weight.square(),
        ratio > band.upper,
        ratio < band.floor,
        prob_gap.square(),
        prob,
        prob.square(),
        rollout_prob,
        rollout_prob.square(),
        prob * rollout_prob,
    )
    values = torch.stack([*(v.sum() for v in sums), gap.max(), prob_gap.max()]).tolist()
    return SamplerGap(float(len(ours)), *values)
