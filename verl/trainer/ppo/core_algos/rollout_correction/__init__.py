"""Weights and rejection for samples whose policy is not the one that learns: another engine, another precision, older weights.

With `mu` the sampler's log-probs, `old` those of the policy at the start of the update and `pi` the current ones, the loss is
`w * min(r A, clip(r) A)` with `r = exp(pi - old)` (decoupled PPO, arXiv 2110.00641) and the detached weight `w` of
`x = old - mu`. Log-ratios are clamped to +-20. All keys are under `algorithm.rollout_correction`.

- **TIS** (https://fengyao.notion.site/off-policy-rl): `rollout_is=token` or `sequence`, `rollout_is_threshold=C`.
  `w = min(exp(x), C)`, per token or of the reply's summed `x`.
- **IcePop** (arXiv 2510.18855): `rollout_is=token`, `rollout_is_threshold="lo_hi"`. `w = exp(x)` inside the band, 0 outside.
- **Rejection**: `rollout_rs=<modes>`, `rollout_rs_threshold=<bounds>`, both comma-separated. Tokens (`token_`) or whole replies
  (`seq_sum_`, `seq_mean_`, `seq_max_`) beyond a bound leave the batch; `k1` is `-x` (bounds `"lo_hi"` of the ratio), `k2` is
  `x^2 / 2`, `k3` is `exp(x) - 1 - x`.
- **MIS**: both, `rollout_is=sequence rollout_rs=seq_sum_k1`.
- **M2PO** (arXiv 2510.01161): `m2po_tau=0.04`. The tokens with the largest `x^2` leave until its mean over the policy's kept tokens
  is at most tau. The paper does not clip: widen `actor.clip_ratio` to follow it.
- **Bypass**: `bypass_mode=true`, `loss_type=ppo_clip` or `reinforce`. `old := mu`, so that no pass for old log-probs is needed; weights
  (`reinforce`) and rejection are taken in the loss from `pi - mu`, after the advantages, because nothing is known of `pi` before.

What is rejected leaves before group statistics and advantages; a reply that loses only some tokens keeps its reward, on the last token
left. `rollout_is_batch_normalize` divides by the mean weight of the policy, never of the team.

Use when: the engine is quantised, in another precision or another framework than the trainer (`rollout_corr/log_prob_diff_mean`), or
samples are older than the weights (`agent/<agent>/staleness/mean`). Token weights have the lower variance, sequence weights the lower bias.

Fails when: replies are long and weights are per sequence (the product leaves every bound), or sampling was truncated by `top_p` or `top_k`:
the engine's log-probs are those before truncation, so that no ratio shows it.
"""

from verl.trainer.ppo.core_algos.rollout_correction.batch import (
    apply_bypass_mode,
    compute_rollout_correction_and_add_to_batch,
    over_policies,
    policies,
    sampler_gap_metrics,
)
from verl.trainer.ppo.core_algos.rollout_correction.correction import compute_rollout_correction_and_rejection_mask
from verl.trainer.ppo.core_algos.rollout_correction.divergence import compute_offpolicy_metrics, compute_rollout_corr_metrics_from_logprobs
from verl.trainer.ppo.core_algos.rollout_correction.m2po import compute_m2po_mask
from verl.trainer.ppo.core_algos.rollout_correction.metrics import SamplerGap, sampler_gap
from verl.trainer.ppo.core_algos.rollout_correction.rejection import (
    RS_MODES,
    SUPPORTED_ROLLOUT_RS_OPTIONS,
    TOKEN_LEVEL_ROLLOUT_RS_OPTIONS,
    compute_rollout_rejection_mask,
    compute_rs_metrics,
    parse_modes,
)
from verl.trainer.ppo.core_algos.rollout_correction.staleness import staleness_metrics
from verl.trainer.ppo.core_algos.rollout_correction.thresholds import LOG_RATIO_BOUND, Band, parse_bounds
from verl.trainer.ppo.core_algos.rollout_correction.weights import IS_LEVELS, compute_is_metrics, compute_rollout_correction_weights

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
    "over_policies",
    "parse_bounds",
    "parse_modes",
    "policies",
    "sampler_gap",
    "sampler_gap_metrics",
    "staleness_metrics",
]
