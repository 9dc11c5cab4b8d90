"""Common functions of policy losses: ratios, clip ranges, aggregation and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from verl.trainer.config import ActorConfig, RolloutCorrectionConfig
from verl.trainer.ppo.core_algos.aggregation import agg_loss, masked_mean
from verl.trainer.ppo.core_algos.checks import check_tokens
from verl.trainer.ppo.correction_bounds import LOG_RATIO_BOUND


@dataclass
class LossConfig(ActorConfig):
    """The configuration that a policy loss gets.

    Attributes:
        global_batch_info: counts of the mini-batch for `agg_loss`.
        prepared: columns of `register_preparation` for the given rows; None when the rows are the
            whole mini-batch.
        rollout_correction: see `UpdatePlan`.
    """

    global_batch_info: dict[str, Any] = field(default_factory=dict)  # type: ignore[misc]
    prepared: dict[str, torch.Tensor] | None = None  # type: ignore[misc]
    rollout_correction: RolloutCorrectionConfig | None = None  # type: ignore[misc]


def clamped_log_ratio(log_prob: torch.Tensor, old_log_prob: torch.Tensor) -> torch.Tensor:
    """Return `log_prob - old_log_prob`, clamped so that its exponential is finite."""
    return torch.clamp(log_prob - old_log_prob, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def check_loss_inputs(
    response_mask: torch.Tensor,
    old_log_prob: torch.Tensor | None,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    rollout_is_weights: torch.Tensor | None,
) -> None:
    """Raise ValueError unless all tensors are `[bsz, response_len]` on one device; torch would
    silently broadcast a row or a column.
    """
    check_tokens(
        response_mask,
        old_log_prob=old_log_prob,
        log_prob=log_prob,
        advantages=advantages,
        rollout_is_weights=rollout_is_weights,
    )


def need_config(config: LossConfig | None, loss: str) -> Any:
    """Return the config. Raises ValueError if it is None."""
    if config is None:
        raise ValueError(f"policy loss '{loss}' needs config (ActorConfig)")
    return config


def clip_range(config: LossConfig | None, loss: str) -> tuple[float, float]:
    """Return `(low, high)`: `clip_ratio_low` and `clip_ratio_high`; of a config of verl, each
    `clip_ratio` unless set. Raises ValueError without a config.
    """
    config = need_config(config, loss)
    low = config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low
    high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high
    return low, high


def row_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean of the unmasked `values` of each row in their dtype, `[bsz]`; 0 for a row
    without any.
    """
    return torch.where(mask.bool(), values, 0.0).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)


def weighted_loss(
    losses: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str,
    config: LossConfig | None,
    rollout_is_weights: torch.Tensor | None,
) -> torch.Tensor:
    """Apply the weights of the off-policy correction and aggregate with the counts of the
    mini-batch.
    """
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    return agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)


@torch.no_grad()
def token_metrics(response_mask: torch.Tensor, **values: torch.Tensor) -> dict[str, float]:
    """Return `actor/<name>`: means over the unmasked tokens of this micro-batch, with one transfer
    to the host.
    """
    means = torch.stack(
        [masked_mean(value.detach().float(), response_mask) for value in values.values()]
    ).tolist()
    return {f"actor/{name}": mean for name, mean in zip(values, means, strict=True)}
