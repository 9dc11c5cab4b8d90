"""PPO's clipped value loss."""

from __future__ import annotations

import torch

from verl.trainer.ppo.core_algos.aggregation import agg_loss, masked_mean
from verl.trainer.ppo.core_algos.checks import check_tokens


def compute_value_loss(
    vpreds: torch.Tensor,
    returns: torch.Tensor,
    values: torch.Tensor,
    response_mask: torch.Tensor,
    cliprange_value: float,
    loss_agg_mode: str = "token-mean",
    dp_size: int = 1,
    batch_num_tokens: float | None = None,
    global_batch_size: float | None = None,
    loss_scale_factor: float | None = None,
    row_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return half of the larger squared error of the value and of the value clipped to
    `values +- cliprange_value`.

        L = 1/2 agg(max((V - R)^2, (clip(V, V_old - eps, V_old + eps) - R)^2))

    The larger error keeps an update from moving a value further than the clip range (PPO's reference code;
    arXiv 2006.05990 finds no gain from it: a large `cliprange_value` disables it).

    Keys: `critic.cliprange_value`, `critic.loss_agg_mode`.
    Use when: a batch is used for several updates of the critic and returns are noisy.
    Fails when: returns are larger than the clip range and the critic starts far from them: it then needs many
    steps to reach them.

    Args:
        vpreds: values of the current critic, `[bsz, response_len]`.
        returns: targets, the same shape.
        values: old values, the same shape.
        response_mask: the same shape.
        cliprange_value: clip range.
        loss_agg_mode, dp_size, batch_num_tokens, global_batch_size, loss_scale_factor, row_weights: see
            `agg_loss`.

    Returns:
        the loss and the fraction of unmasked tokens of this micro-batch whose clipped error is the larger
        one.

    Raises:
        ValueError: shapes or devices differ, or as `agg_loss`.
    """
    check_tokens(response_mask, vpreds=vpreds, returns=returns, values=values)
    clipped = torch.clamp(vpreds, values - cliprange_value, values + cliprange_value)
    error = (vpreds - returns).square()
    clipped_error = (clipped - returns).square()
    loss = agg_loss(
        torch.maximum(error, clipped_error),
        response_mask,
        loss_agg_mode,
        dp_size=dp_size,
        batch_num_tokens=batch_num_tokens,
        global_batch_size=global_batch_size,
        loss_scale_factor=loss_scale_factor,
        row_weights=row_weights,
    )
    with torch.no_grad():
        clip_share = masked_mean((clipped_error > error).float(), response_mask)
    return 0.5 * loss, clip_share
