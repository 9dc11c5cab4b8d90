"""Weights, rejection and diagnostics together, on tensors."""

from __future__ import annotations

import torch

from verl.protocol import DataProto
from verl.trainer.ppo.core_algos.rollout_correction.divergence import compute_offpolicy_metrics
from verl.trainer.ppo.core_algos.rollout_correction.rejection import compute_rollout_rejection_mask
from verl.trainer.ppo.core_algos.rollout_correction.weights import compute_rollout_correction_weights


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
    """Importance weights, the mask without rejected tokens, and verl's metrics as `rollout_corr/<name>`.

    Weights and their metrics are taken over the mask as given; see `compute_rollout_correction_weights` and
    `compute_rollout_rejection_mask` for what the arguments mean.

    Args:
        old_log_prob, rollout_log_prob, response_mask: trainer's and sampler's log-probs and the mask, `[bsz, response_len]`.

    Returns:
        `rollout_is_weights` `[bsz, response_len]` in a DataProto (None without `rollout_is`), the narrowed mask, and metrics.

    Raises:
        ValueError: shapes differ, nothing is unmasked, an unknown mode, or a threshold that is missing or malformed.
    """
    if not response_mask.any():
        raise ValueError("response_mask must contain at least one valid token (1)")
    if not old_log_prob.shape == rollout_log_prob.shape == response_mask.shape:
        raise ValueError(
            f"old_log_prob {tuple(old_log_prob.shape)}, rollout_log_prob {tuple(rollout_log_prob.shape)} and "
            f"response_mask {tuple(response_mask.shape)}: the shape of one does not match the others"
        )
    log_ratio = (old_log_prob - rollout_log_prob).detach()
    weights, kept, metrics = None, response_mask.clone(), dict[str, float]()
    if rollout_is is not None and rollout_is_threshold is not None:
        tensor, metrics = compute_rollout_correction_weights(
            log_ratio, response_mask, rollout_is, rollout_is_threshold, rollout_is_batch_normalize
        )
        weights = DataProto.from_dict(tensors={"rollout_is_weights": tensor})
    if rollout_rs is not None:
        kept, rejected = compute_rollout_rejection_mask(log_ratio, response_mask, rollout_rs, rollout_rs_threshold)
        metrics |= rejected
    metrics |= compute_offpolicy_metrics(old_log_prob, rollout_log_prob, response_mask)
    return weights, kept, {f"rollout_corr/{name}": value for name, value in metrics.items()}
