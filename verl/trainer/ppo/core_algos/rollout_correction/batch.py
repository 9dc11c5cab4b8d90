"""Off-policy correction of a team's batch per policy, since means must not include other policies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from verl.protocol import DataProto
from verl.trainer.config import RolloutCorrectionConfig
from verl.trainer.plan.placement import slug
from verl.trainer.ppo.core_algos.grouping import rows_by_value
from verl.trainer.ppo.core_algos.per_policy import aggregate_policies, policies
from verl.trainer.ppo.core_algos.rollout_correction.divergence import compute_offpolicy_metrics, sampler_gap


def compute_rollout_correction_and_rejection_mask(
    old_log_prob: torch.Tensor,
    rollout_log_prob: torch.Tensor,
    response_mask: torch.Tensor,
    rollout_is: str | None = None,
    rollout_is_threshold: str | float | None = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: str | None = None,
    rollout_rs_threshold: str | float | None = None,
) -> tuple[DataProto | None, torch.Tensor, dict[str, float]]:
    """Return importance weights, the mask without rejected tokens, and verl's metrics as
    `rollout_corr/<name>`.

    Weights and their metrics use the mask before rejection; other arguments are those of
    `compute_rollout_correction_weights` and `compute_rollout_rejection_mask`.

    Args:
        old_log_prob, rollout_log_prob, response_mask: trainer's and sampler's log-probs and the
            mask, `[bsz, response_len]`.

    Returns:
        `rollout_is_weights` `[bsz, response_len]` in a DataProto (None without `rollout_is`), the
        mask after rejection, and metrics.

    Raises:
        ValueError: shapes differ, no token is unmasked, an unknown mode, or a threshold that is
            missing or malformed.
    """
    if not response_mask.any():
        raise ValueError("response_mask must contain at least one valid token (1)")
    if not old_log_prob.shape == rollout_log_prob.shape == response_mask.shape:
        raise ValueError(
            f"old_log_prob {tuple(old_log_prob.shape)}, rollout_log_prob "
            f"{tuple(rollout_log_prob.shape)} and response_mask {tuple(response_mask.shape)}: the "
            "shape of one does not match the others"
        )
    log_ratio = (old_log_prob - rollout_log_prob).detach()
    weights = None
    mask = response_mask.clone()
    metrics = dict[str, float]()
    if rollout_is is not None and rollout_is_threshold is not None:
        from verl.trainer.ppo.core_algos.rollout_correction.weights import (
            compute_rollout_correction_weights,  # of this key alone
        )

        tensor, metrics = compute_rollout_correction_weights(
            log_ratio, response_mask, rollout_is, rollout_is_threshold, rollout_is_batch_normalize
        )
        weights = DataProto.from_dict(tensors={"rollout_is_weights": tensor})
    if rollout_rs is not None:
        from verl.trainer.ppo.core_algos.rollout_correction.rejection import (
            compute_rollout_rejection_mask,  # of this key alone
        )

        mask, rejected = compute_rollout_rejection_mask(
            log_ratio, response_mask, rollout_rs, rollout_rs_threshold
        )
        metrics |= rejected
    metrics |= compute_offpolicy_metrics(old_log_prob, rollout_log_prob, response_mask)
    return weights, mask, {f"rollout_corr/{name}": value for name, value in metrics.items()}


def compute_rollout_correction_and_add_to_batch(
    batch: DataProto, rollout_corr_config: RolloutCorrectionConfig
) -> tuple[DataProto, dict[str, float]]:
    """Set `rollout_is_weights` (with `rollout_is`) and mask rejected tokens in `response_mask`
    (with `rollout_rs`).

    Means (`rollout_is_batch_normalize`) are per `policy_id`; without that column the batch has one
    policy. Completely rejected rows remain, with an empty mask; a policy without an unmasked token
    is not changed.

    Args:
        batch: `old_log_probs`, `rollout_log_probs`, `response_mask`, each `[bsz, response_len]`.
        rollout_corr_config: `algorithm.rollout_correction`.

    Returns:
        the batch and metrics: `rollout_corr/<name>` over policies (see `aggregate_policies`), and
        `wg/<policy>/rollout_corr/<name>`.

    Raises:
        ValueError: a column is missing, or as `compute_rollout_correction_and_rejection_mask`.
    """
    config = rollout_corr_config
    tensors = _log_probs(batch)
    batch_mask = tensors["response_mask"].clone()
    weights = torch.zeros_like(tensors["old_log_probs"]) if config.rollout_is is not None else None
    per_policy = {}
    for name, rows in policies(batch):
        old, rollout, mask = (
            tensors[column][rows] for column in ("old_log_probs", "rollout_log_probs", "response_mask")
        )
        proto, mask, metrics = compute_rollout_correction_and_rejection_mask(
            old, rollout, mask, config.rollout_is, config.rollout_is_threshold,
            config.rollout_is_batch_normalize,
            config.rollout_rs, config.rollout_rs_threshold,
        )  # fmt: skip
        batch_mask[rows] = mask
        if proto is not None and weights is not None:
            weights[rows] = proto.batch["rollout_is_weights"].to(weights.dtype)
        per_policy[name] = metrics
    batch.batch["response_mask"] = batch_mask
    if weights is not None:
        batch.batch["rollout_is_weights"] = weights
    return batch, aggregate_policies(per_policy)


def apply_m2po_mask(batch: DataProto, tau: float) -> dict[str, float]:
    """Apply `compute_m2po_mask` to `response_mask`, per policy. Return its metrics, aggregated by
    `aggregate_policies`.

    Args:
        batch: `old_log_probs`, `rollout_log_probs`, `response_mask` after rejection, and
            `advantages`.
        tau: `algorithm.rollout_correction.m2po_tau`.
    """
    # of M2PO alone
    from verl.trainer.ppo.core_algos.rollout_correction.rejection import compute_m2po_mask

    tensors = _log_probs(batch)
    per_policy = {}
    batch_mask = tensors["response_mask"].clone()
    for name, rows in policies(batch):
        old, rollout, mask = (
            tensors[column][rows] for column in ("old_log_probs", "rollout_log_probs", "response_mask")
        )
        batch_mask[rows], masked = compute_m2po_mask(
            old - rollout, mask, tau, batch.batch["advantages"][rows]
        )
        per_policy[name] = {f"rollout_corr/{key}": value for key, value in masked.items()}
    batch.batch["response_mask"] = batch_mask
    return aggregate_policies(per_policy)


def sampler_gap_metrics(batch: DataProto, threshold: str | float = 2.0) -> dict[str, float]:
    """Return `SamplerGap.metrics` of `old_log_probs` over policies (see `aggregate_policies`), and
    `wg/<policy>/<name>` of every policy.
    """
    tensors = _log_probs(batch)
    return aggregate_policies(
        {
            name: sampler_gap(
                tensors["old_log_probs"][rows],
                tensors["rollout_log_probs"][rows],
                tensors["response_mask"][rows],
                threshold,
            ).metrics()
            for name, rows in policies(batch)
        }
    )


def mask_metrics(batch: DataProto) -> dict[str, float]:
    """Return `gateway/<agent>/masked_calls` (replies sampled under a mask) and
    `gateway/<agent>/mass_cut_off_mean` (over their tokens).

    The sampler's log-prob of such a token is `log pi - log Z`, with the mass Z that the policy pi
    gives to the tokens that the mask allows: `exp(old - sampler)` is Z, and `1 - Z` the mass cut
    off. For replies of older weights the mean is an unbiased estimate of the mass that the mask
    would cut off from the current policy.

    Args:
        batch: `old_log_probs`, `rollout_log_probs`, `response_mask`, and the columns `agent_id` and
            `masked`; rows without an unmasked token do not count.
    """
    columns = batch.non_tensor_batch
    tensors = _log_probs(batch)
    out = dict[str, float]()
    cut_off = -torch.expm1((tensors["old_log_probs"] - tensors["rollout_log_probs"]).double())
    real = np.flatnonzero(tensors["response_mask"].any(dim=-1).cpu().numpy())
    masked = columns["masked"].astype(bool)
    for agent_id, places in rows_by_value(columns["agent_id"][real]).items():
        rows = real[places][masked[real[places]]]
        out[f"gateway/{slug(agent_id)}/masked_calls"] = float(len(rows))
        if len(rows):
            out[f"gateway/{slug(agent_id)}/mass_cut_off_mean"] = (
                cut_off[rows][tensors["response_mask"][rows].bool()].mean().item()
            )
    return out


def apply_bypass_mode(
    batch: DataProto,
    rollout_corr_config: RolloutCorrectionConfig | None = None,
    policy_loss_config: Any = None,
) -> None:
    """Use the sampler's log-probs as `old_log_probs`, which saves a pass over the batch.

    The loss then uses the ratio to the sampler. `rollout_corr_config` and `policy_loss_config` are
    verl's arguments and unused; workers receive the correction with every update, not by a change
    of their config.

    Raises:
        ValueError: the batch has no `rollout_log_probs`.
    """
    if "rollout_log_probs" not in set(batch.batch.keys()):
        raise ValueError(
            "bypass_mode=true needs rollout_log_probs, which the batch does not have; the sampler "
            "must return log-probs"
        )
    batch.batch["old_log_probs"] = batch.batch["rollout_log_probs"]


def _log_probs(batch: DataProto) -> dict[str, torch.Tensor]:
    columns = ("old_log_probs", "rollout_log_probs", "response_mask")
    missing = [name for name in columns if name not in set(batch.batch.keys())]
    if missing:
        raise ValueError(
            f"the off-policy correction needs {missing}, which the batch does not have; it has "
            f"{sorted(batch.batch.keys())}"
        )
    return {name: batch.batch[name] for name in columns}
