"""Off-policy correction: weights and rejection for samples of another engine, another precision or older weights than the trainer's.

With `mu` the sampler's log-probs, `old` those of the policy at the start of the update and `pi` the current ones, the loss is
`w * min(r A, clip(r) A)` with `r = exp(pi - old)` (decoupled PPO, arXiv 2110.00641) and the detached weight `w` of
`x = old - mu`. Log-ratios are clamped to +-20. All keys are under `algorithm.rollout_correction`.

Rejection (except M2PO) is applied before group statistics and advantages; a partly rejected reply keeps its reward, on the last
remaining token, and a completely rejected one keeps its index and reward in the returns of earlier calls (`gigpo`, `gae` over turns).
`rollout_is_batch_normalize` divides by the mean weight of the policy, not of the team. With `bypass_mode=true` the old log-probs
are the sampler's (`old := mu`) and the loss computes the correction, see [`bypass_mode`](#bypass_mode).

Use it if the engine is quantised or differs from the trainer in precision or framework (`rollout_corr/log_prob_diff_mean`), or if
samples are older than the weights (`agent/<agent>/staleness/mean`), or sampled under a mask (`gateway.structured=mask`, where `exp(x)` is
the probability of the allowed tokens). It cannot correct sampling truncated by `top_p` or `top_k`: the engine's log-probs are those before
truncation, so that ratios do not contain it.

TIS
---
Truncated importance sampling (https://fengyao.notion.site/off-policy-rl): `w = min(exp(x), C)`, per token or of the reply's summed `x`.

Keys: `algorithm.rollout_correction.rollout_is=token` or `=sequence`, `algorithm.rollout_correction.rollout_is_threshold=C`,
`algorithm.rollout_correction.rollout_is_batch_normalize`.
Use when: the difference is small and at all tokens. Token weights have lower variance, sequence weights lower bias.
Fails when: replies are long and weights are per sequence: the product exceeds every bound.

IcePop
------
Masked importance weights (arXiv 2510.18855): `w = exp(x)` where `lo <= exp(x) <= hi`, 0 outside.

Keys: `algorithm.rollout_correction.rollout_is=token`, `algorithm.rollout_correction.rollout_is_threshold="lo_hi"`.
Use when: single tokens differ much (mixture-of-experts routing that differs between engines) and others are exact.
Fails when: the difference is systematic: long parts of replies are then removed from the gradient.

MIS
---
Masked importance sampling (https://richardli.xyz/rl-collapse): `w = min(exp(x), C)` of the reply's summed `x` where
`lo <= exp(-x) <= hi`, else the whole reply is rejected.

Keys: `algorithm.rollout_correction.rollout_is=sequence`, `algorithm.rollout_correction.rollout_rs=seq_sum_k1`,
`algorithm.rollout_correction.rollout_is_threshold`, `algorithm.rollout_correction.rollout_rs_threshold`.
Use when: replies that are very unlikely under the policy (engine faults, broken contexts) must not be trained on.
Fails when: replies are long: sums of many small differences reject them, and only short replies remain.

Rejection
---------
Tokens (`token_`) or whole replies (`seq_sum_`, `seq_mean_`, `seq_max_`) beyond a bound are masked. `k1 = -x` (bounds `"lo_hi"` of
`exp(-x)`), `k2 = x^2 / 2`, `k3 = exp(x) - 1 - x` (http://joschu.net/blog/kl-approx.html).

Keys: `algorithm.rollout_correction.rollout_rs` (modes), `algorithm.rollout_correction.rollout_rs_threshold` (bounds), both comma-separated.
Use when: a few samples differ too much for weights; `seq_mean_k3` does not grow with the length of a reply.
Fails when: much is rejected (`rollout_corr/rollout_rs_masked_fraction`): the rest is no longer distributed as the policy.

M2PO
----
Second-moment trust region (arXiv 2510.01161, Algorithm 1 and section 5.2): among tokens with `A > 0, x > 0` or `A < 0, x < 0`, which the
update moves further away from the sampler, those with the largest `x^2` are masked until `mean(x^2) <= tau` over the remaining ones. All
other tokens are kept and are not in the mean. Advantages are computed before this mask. The paper does not clip: widen
`actor.clip_ratio_low` and `clip_ratio_high` to follow it.

`x = old - mu` is computed once per step, before the first update, and the mask is used for all updates of the step: with several updates
(`actor.ppo_mini_batch_size`, `actor.ppo_epochs`) the moment of the current policy, `mean((pi - mu)^2)`, which the paper bounds in each, can
exceed tau. With `bypass_mode=true` the mask is computed before each update, with `x = pi - mu` of the current policy.

Keys: `algorithm.rollout_correction.m2po_tau` (the paper's is 0.04), `actor.clip_ratio_low`,
`actor.clip_ratio_high`.
Use when: samples are many updates old and clipping would remove most of them from the gradient.
Fails when: all tokens differ in the same way (another precision): it then masks unnecessarily; use weights.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from verl.trainer.ppo.core_algos.rollout_correction.batch import (
    apply_bypass_mode,
    apply_m2po_mask,
    compute_rollout_correction_and_add_to_batch,
    compute_rollout_correction_and_rejection_mask,
    mask_metrics,
    sampler_gap_metrics,
)
from verl.trainer.ppo.core_algos.rollout_correction.divergence import (
    SamplerGap,
    compute_offpolicy_metrics,
    compute_rollout_corr_metrics_from_logprobs,
    sampler_gap,
)
from verl.trainer.ppo.correction_bounds import LOG_RATIO_BOUND, Band, parse_bounds

if TYPE_CHECKING:
    from verl.trainer.ppo.core_algos.rollout_correction.rejection import (
        RS_MODES,
        SUPPORTED_ROLLOUT_RS_OPTIONS,
        TOKEN_LEVEL_ROLLOUT_RS_OPTIONS,
        compute_m2po_mask,
        compute_rollout_rejection_mask,
        compute_rs_metrics,
        parse_modes,
    )
    from verl.trainer.ppo.core_algos.rollout_correction.weights import (
        IS_LEVELS,
        compute_is_metrics,
        compute_rollout_correction_weights,
    )

__all__ = [
    "IS_LEVELS",
    "LOG_RATIO_BOUND",
    "RS_MODES",
    "SUPPORTED_ROLLOUT_RS_OPTIONS",
    "TOKEN_LEVEL_ROLLOUT_RS_OPTIONS",
    "Band",
    "SamplerGap",
    "apply_bypass_mode",
    "apply_m2po_mask",
    "compute_is_metrics",
    "compute_m2po_mask",
    "compute_offpolicy_metrics",
    "compute_rollout_corr_metrics_from_logprobs",
    "compute_rollout_correction_and_add_to_batch",
    "compute_rollout_correction_and_rejection_mask",
    "compute_rollout_correction_weights",
    "compute_rollout_rejection_mask",
    "compute_rs_metrics",
    "mask_metrics",
    "parse_bounds",
    "parse_modes",
    "sampler_gap",
    "sampler_gap_metrics",
]
# Names of the correction itself; without it a run measures staleness and the gap to the sampler
# alone.
_ON_DEMAND = {
    f"{__name__}.rejection": (
        "RS_MODES",
        "SUPPORTED_ROLLOUT_RS_OPTIONS",
        "TOKEN_LEVEL_ROLLOUT_RS_OPTIONS",
        "compute_m2po_mask",
        "compute_rollout_rejection_mask",
        "compute_rs_metrics",
        "parse_modes",
    ),
    f"{__name__}.weights": ("IS_LEVELS", "compute_is_metrics", "compute_rollout_correction_weights"),
}
_MODULE = {name: module for module, names in _ON_DEMAND.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE[name]), name)
