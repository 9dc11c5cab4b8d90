"""Bypass mode: the sampler is the old policy, and the loss computes the correction, with PPO's clip
or REINFORCE.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from verl.trainer.plan.registry import get_policy_loss_fn, register_policy_loss
from verl.trainer.ppo.core_algos.policy_losses.common import (
    LossConfig,
    check_loss_inputs,
    need_config,
    token_metrics,
    weighted_loss,
)
from verl.trainer.ppo.core_algos.policy_losses.preparation import (
    MiniBatch,
    find_preparation,
    prepared_columns,
    register_preparation,
)
from verl.trainer.ppo.core_algos.rollout_correction.batch import compute_rollout_correction_and_rejection_mask
from verl.trainer.ppo.core_algos.rollout_correction.rejection import (
    compute_m2po_mask,
    compute_rollout_rejection_mask,
)
from verl.trainer.ppo.core_algos.rollout_correction.weights import compute_rollout_correction_weights
from verl.utils.names import own_key

WEIGHTS = "bypass_is_weights"
LOSS_TYPES = ("ppo_clip", "reinforce")


def _settings(config: LossConfig | None) -> Any:
    """Return the settings of the correction (in verl's config under `policy_loss`). Raises
    ValueError for none or an unknown loss type.
    """
    need_config(config, "bypass_mode")
    correction = own_key(config, "rollout_correction", None) or own_key(
        config.policy_loss, "rollout_correction", None
    )
    if correction is None:
        raise ValueError(
            "policy loss 'bypass_mode' needs algorithm.rollout_correction; set "
            "algorithm.rollout_correction.bypass_mode=true"
        )
    if correction.loss_type not in LOSS_TYPES:
        raise ValueError(
            f"algorithm.rollout_correction.loss_type={correction.loss_type!r}: expected one of {LOSS_TYPES}"
        )
    return correction


def _clipped_loss(config: LossConfig | None) -> str:
    """Return the name of the loss for `ppo_clip`."""
    return "vanilla" if config.policy_loss.loss_mode == "bypass_mode" else config.policy_loss.loss_mode


def _needs_mini_batch(config: LossConfig | None) -> bool:
    correction = _settings(config)
    if correction.rollout_rs is not None or own_key(correction, "m2po_tau", None) is not None:
        return True
    if correction.loss_type == "reinforce":
        return correction.rollout_is is not None
    return find_preparation(_clipped_loss(config), config) is not None


@register_preparation("bypass_mode", when=_needs_mini_batch)
def bypass_columns(mini: MiniBatch, config: LossConfig | None) -> dict[str, torch.Tensor]:
    """Return the mask without rejected tokens, the weights (`reinforce`), and the prepared columns
    of the clipped loss (`ppo_clip`).
    """
    correction = _settings(config)
    log_ratio = mini.log_prob - mini.old_log_prob
    mask = mini.response_mask
    columns = {}
    if correction.loss_type == "reinforce" and correction.rollout_is is not None:
        columns[WEIGHTS] = _weights(mini, log_ratio, correction)
    if correction.rollout_rs is not None and bool(mask.any()):
        mask, _ = compute_rollout_rejection_mask(
            log_ratio, mask, correction.rollout_rs, correction.rollout_rs_threshold
        )
    tau = own_key(correction, "m2po_tau", None)
    if tau is not None:
        mask = _m2po(replace(mini, response_mask=mask), log_ratio, tau)
    columns["response_mask"] = mask
    prepare = find_preparation(_clipped_loss(config), config) if correction.loss_type == "ppo_clip" else None
    return columns | (prepare(replace(mini, response_mask=mask), config) if prepare else {})


def _weights(mini: MiniBatch, log_ratio: torch.Tensor, correction: Any) -> torch.Tensor:
    """Return importance weights, normalised over all ranks if `rollout_is_batch_normalize`."""
    mask = mini.response_mask.bool()
    weights = torch.zeros_like(log_ratio)
    if bool(mask.any()):
        weights, _ = compute_rollout_correction_weights(
            log_ratio, mask, correction.rollout_is, correction.rollout_is_threshold
        )
    if not correction.rollout_is_batch_normalize:
        return weights
    share = mini.token_weights
    if correction.rollout_is == "sequence":
        share = share / mask.sum(dim=-1, keepdim=True).clamp(min=1)
    total, count = mini.ranks.sum(torch.stack([(share * weights).sum(), share.sum()])).tolist()
    return weights * (count / total) if total > 1e-8 * count else weights


def _m2po(mini: MiniBatch, log_ratio: torch.Tensor, tau: float) -> torch.Tensor:
    """Return the mask after M2PO, which sorts the tokens of all ranks together."""
    mask = mini.response_mask.bool()
    of_ranks = mini.ranks.gather(log_ratio[mask])
    advantages = mini.ranks.gather(mini.advantages[mask])
    everything = torch.cat(of_ranks)
    if not len(everything):
        return mini.response_mask
    m2po_mask, _ = compute_m2po_mask(
        everything[None], torch.ones_like(everything[None]), tau, torch.cat(advantages)[None]
    )
    rank_mask = m2po_mask[0].split([len(part) for part in of_ranks])[mini.ranks.rank]
    return torch.zeros_like(mini.response_mask).masked_scatter(mask, rank_mask.to(mini.response_mask.dtype))


@register_policy_loss("bypass_mode", reads=(), uses_every_row=True)
def compute_policy_loss_bypass_mode(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Use the sampler's log-probs as old log-probs: one forward pass less, and the ratio corrects for sampler
    and drift together (PPO as in arXiv 1707.06347, in contrast to decoupled PPO, arXiv 2110.00641).

        ppo_clip   L = the loss of `loss_mode` (default vanilla) with r = pi / sampler; the clip replaces importance weights
        reinforce  L = -w A log_prob with w = sg(pi / sampler) truncated by `rollout_is_threshold`

    Rejection (`rollout_rs`, `m2po_tau`) and weights use the log-probs at the start of the optimizer step, and
    need one forward pass of the mini-batch; rejected tokens are in no loss, count or metric. Selected by
    `algorithm.rollout_correction.bypass_mode=true`.

    Keys: `algorithm.rollout_correction.*`, and those of the loss.
    Use when: recomputing old log-probs is too expensive, or the samples come from another engine or an older
    policy.
    Fails when: sampler and trainer differ much: the clip range is then around the wrong policy (decoupled PPO
    uses the right one).

    Args:
        old_log_prob: the sampler's log-probs, `[bsz, response_len]`.
        config: `ActorConfig` with `rollout_correction`; `global_batch_info` is passed to `agg_loss`.
        rollout_is_weights: unused; the weights are computed here.
        others: see `core_algos.policy_losses`.

    Returns:
        the loss, and the metrics of the selected loss; without an engine also those of the correction
        (`rollout_corr/*`).

    Raises:
        ValueError: no `rollout_correction`, or an unknown loss type, mode or threshold.
    """
    check_loss_inputs(response_mask, old_log_prob, log_prob, advantages, rollout_is_weights)
    correction = _settings(config)
    columns = prepared_columns("bypass_mode", config, old_log_prob, log_prob, advantages, response_mask)
    shared: dict[str, Any] = {"advantages": advantages, "loss_agg_mode": loss_agg_mode, "config": config}
    shared |= {"log_prob": log_prob, "response_mask": columns.get("response_mask", response_mask)}
    if correction.loss_type == "reinforce":
        loss, metrics = compute_policy_loss_reinforce(
            old_log_prob, **shared, rollout_is_weights=columns.get(WEIGHTS)
        )
    else:
        loss, metrics = get_policy_loss_fn(_clipped_loss(config))(
            old_log_prob=old_log_prob, **shared, rollout_is_weights=None
        )
    if own_key(config, "prepared", None) is None:
        _, _, diagnostics = compute_rollout_correction_and_rejection_mask(
            log_prob.detach(), old_log_prob, response_mask, correction.rollout_is,
            correction.rollout_is_threshold,
            correction.rollout_is_batch_normalize, correction.rollout_rs, correction.rollout_rs_threshold,
        )  # fmt: skip
        metrics = metrics | diagnostics
    return loss, metrics


def compute_policy_loss_reinforce(
    rollout_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "seq-mean-token-sum",
    config: LossConfig | None = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return `L = -w A log_prob` with `w = sg(pi / sampler)` truncated, or 1 without weights
    (Williams 1992).

    Args:
        rollout_log_prob: the sampler's log-probs, for the metric.
        others: see `core_algos.policy_losses`.

    Returns:
        the loss and the metric `actor/ppo_kl`: token mean of `rollout_log_prob - log_prob`.
    """
    check_loss_inputs(response_mask, rollout_log_prob, log_prob, advantages, rollout_is_weights)
    config = need_config(config, "reinforce")
    loss = weighted_loss(-advantages * log_prob, response_mask, loss_agg_mode, config, rollout_is_weights)
    return loss, token_metrics(response_mask, ppo_kl=rollout_log_prob - log_prob)
