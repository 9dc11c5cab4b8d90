"""Weights and rejection for samples whose policy is not the one that learns: another engine, another precision, older weights.

With `mu` the sampler's log-probs, `old` those of the policy at the start of the update and `pi` the current ones, the loss is
`w * min(r A, clip(r) A)` with `r = exp(pi - old)` (decoupled PPO, arXiv 2110.00641) and the detached weight `w` of
`x = old - mu`. Log-ratios are clamped to +-20. All keys are under `algorithm.rollout_correction`.

What is rejected (by anything but M2PO) leaves before group statistics and advantages; a reply that loses only some tokens keeps its
reward, on the last token left, and one that is rejected whole keeps its place and reward in the returns of the calls before it (`gigpo`,
`gae` over turns).
`rollout_is_batch_normalize` divides by the mean weight of the policy, never of the team. With `bypass_mode=true` the old log-probs
are the sampler's (`old := mu`) and the correction is taken in the loss, see [`bypass_mode`](#bypass_mode).

It helps where the engine is quantised, in another precision or another framework than the trainer (`rollout_corr/log_prob_diff_mean`), or
samples are older than the weights (`agent/<agent>/staleness/mean`). It cannot help where sampling was truncated by `top_p` or `top_k`: the
engine's log-probs are those before truncation, so that no ratio shows it.

TIS
---
Truncated importance sampling (https://fengyao.notion.site/off-policy-rl): `w = min(exp(x), C)`, per token or of the reply's summed `x`.

Keys: `algorithm.rollout_correction.rollout_is=token` or `=sequence`, `algorithm.rollout_correction.rollout_is_threshold=C`,
`algorithm.rollout_correction.rollout_is_batch_normalize`.
Use when: the gap is small and everywhere. Token weights have the lower variance, sequence weights the lower bias.
Fails when: replies are long and weights are per sequence: the product leaves every bound.

IcePop
------
Masked importance weights (arXiv 2510.18855): `w = exp(x)` where `lo <= exp(x) <= hi`, 0 outside.

Keys: `algorithm.rollout_correction.rollout_is=token`, `algorithm.rollout_correction.rollout_is_threshold="lo_hi"`.
Use when: single tokens are far off (mixture-of-experts routing that differs between engines) and the rest is exact.
Fails when: the gap is systematic: whole stretches of replies then leave the gradient.

MIS
---
Masked importance sampling (https://richardli.xyz/rl-collapse): `w = min(exp(x), C)` of the reply's summed `x` where
`lo <= exp(-x) <= hi`, else the whole reply is rejected.

Keys: `algorithm.rollout_correction.rollout_is=sequence`, `algorithm.rollout_correction.rollout_rs=seq_sum_k1`,
`algorithm.rollout_correction.rollout_is_threshold`, `algorithm.rollout_correction.rollout_rs_threshold`.
Use when: replies that the sampler should hardly have written (engine faults, broken contexts) must not be learned from at all.
Fails when: replies are long: the sum of many small gaps rejects them all, and what is left is short.

Rejection
---------
Tokens (`token_`) or whole replies (`seq_sum_`, `seq_mean_`, `seq_max_`) beyond a bound leave the batch. `k1 = -x` (bounds `"lo_hi"` of
`exp(-x)`), `k2 = x^2 / 2`, `k3 = exp(x) - 1 - x` (http://joschu.net/blog/kl-approx.html).

Keys: `algorithm.rollout_correction.rollout_rs` (modes), `algorithm.rollout_correction.rollout_rs_threshold` (bounds), both comma-separated.
Use when: a few samples are so far off that no weight mends them; `seq_mean_k3` does not grow with the length of a reply.
Fails when: much is rejected (`rollout_corr/rollout_rs_masked_fraction`): what is left is no longer what the policy writes.

M2PO
----
Second-moment trust region (arXiv 2510.01161, Algorithm 1 and section 5.2): of the tokens with `A > 0, x > 0` or `A < 0, x < 0`, which the
update drives further from the sampler, those with the largest `x^2` leave until `mean(x^2) <= tau` over those that are left of them. All
other tokens stay and are in no mean. The advantages are those of all tokens: the mask is taken after them. The paper does not clip: widen
`actor.clip_ratio` to follow it.

`x = old - mu` is taken once a step, before the first update, and the mask stays for all updates of the step: with several of them
(`actor.ppo_mini_batch_size`, `actor.ppo_epochs`) the moment of the current policy, `mean((pi - mu)^2)`, which the paper bounds in each, may
pass tau. With `bypass_mode=true` each update is bounded anew, with `x = pi - mu` of the policy as it then is.

Keys: `algorithm.rollout_correction.m2po_tau` (the paper's is 0.04), `actor.clip_ratio`.
Use when: samples are many updates old and clipping would silence most of them.
Fails when: the gap is in every token alike (another precision): it then masks without need; use weights.
"""

from verl.trainer.ppo.core_algos.rollout_correction.batch import (
    apply_bypass_mode,
    compute_rollout_correction_and_add_to_batch,
    compute_rollout_correction_and_rejection_mask,
    narrow_by_m2po,
    over_policies,
    policies,
    sampler_gap_metrics,
    staleness_metrics,
)
from verl.trainer.ppo.core_algos.rollout_correction.divergence import (
    SamplerGap,
    compute_offpolicy_metrics,
    compute_rollout_corr_metrics_from_logprobs,
    sampler_gap,
)
from verl.trainer.ppo.core_algos.rollout_correction.rejection import (
    RS_MODES,
    SUPPORTED_ROLLOUT_RS_OPTIONS,
    TOKEN_LEVEL_ROLLOUT_RS_OPTIONS,
    compute_m2po_mask,
    compute_rollout_rejection_mask,
    compute_rs_metrics,
    parse_modes,
)
from verl.trainer.ppo.core_algos.rollout_correction.weights import IS_LEVELS, compute_is_metrics, compute_rollout_correction_weights
from verl.trainer.ppo.correction_bounds import LOG_RATIO_BOUND, Band, parse_bounds

__all__ = [
    "IS_LEVELS",
    "LOG_RATIO_BOUND",
    "RS_MODES",
    "SUPPORTED_ROLLOUT_RS_OPTIONS",
    "TOKEN_LEVEL_ROLLOUT_RS_OPTIONS",
    "Band",
    "SamplerGap",
    "apply_bypass_mode",
    "compute_is_metrics",
    "compute_m2po_mask",
    "compute_offpolicy_metrics",
    "compute_rollout_corr_metrics_from_logprobs",
    "compute_rollout_correction_and_add_to_batch",
    "compute_rollout_correction_and_rejection_mask",
    "compute_rollout_correction_weights",
    "compute_rollout_rejection_mask",
    "compute_rs_metrics",
    "narrow_by_m2po",
    "over_policies",
    "parse_bounds",
    "parse_modes",
    "policies",
    "sampler_gap",
    "sampler_gap_metrics",
    "staleness_metrics",
]
