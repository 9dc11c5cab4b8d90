"""From a loss per token to one number whose gradient does not depend on how the batch was cut."""

from __future__ import annotations

import torch

LOSS_AGG_MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def masked_sum(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sum of `values` where `mask` is set; masked entries may hold NaN or inf."""
    return torch.where(mask.bool(), values, 0.0).sum()


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of `values` where `mask` is set; 0 when nothing is."""
    return masked_sum(values, mask) / mask.sum().clamp(min=1)


def agg_loss(
    loss_mat: torch.Tensor,
    loss_mask: torch.Tensor,
    loss_agg_mode: str,
    dp_size: int = 1,
    batch_num_tokens: float | None = None,
    global_batch_size: float | None = None,
    loss_scale_factor: float | None = None,
) -> torch.Tensor:
    """Aggregate a token loss over a mini-batch of which this may be one micro-batch on one of `dp_size` ranks.

    Given the counts of the whole mini-batch, the sum over micro-batches and the mean over ranks (as FSDP does with gradients)
    equals the loss of the mini-batch in one piece. Rows without an unmasked token weigh nothing.

    Args:
        loss_mat: `[bsz, response_len]`.
        loss_mask: `[bsz, response_len]`.
        loss_agg_mode: `token-mean` (DAPO), `seq-mean-token-sum`, `seq-mean-token-mean` (GRPO) or
            `seq-mean-token-sum-norm` (Dr. GRPO: the sum divided by a constant).
        dp_size: ranks whose gradients are averaged.
        batch_num_tokens: unmasked tokens of the mini-batch over all ranks; needed when `dp_size > 1`.
        global_batch_size: rows of the mini-batch that have an unmasked token, over all ranks; needed when `dp_size > 1`.
        loss_scale_factor: the constant of `seq-mean-token-sum-norm`; default the width of `loss_mat`.

    Raises:
        ValueError: unknown mode, or a global count missing when `dp_size > 1`.
    """
    if loss_agg_mode not in LOSS_AGG_MODES:
        raise ValueError(f"loss_agg_mode={loss_agg_mode!r}: expected one of {LOSS_AGG_MODES}")
    if loss_agg_mode == "token-mean":
        tokens = _count("batch_num_tokens", batch_num_tokens, loss_mask.sum(), dp_size)
        return masked_sum(loss_mat, loss_mask) / tokens * dp_size
    row_tokens = loss_mask.sum(dim=-1)
    row_loss = torch.where(loss_mask.bool(), loss_mat, 0.0).sum(dim=-1)
    if loss_agg_mode == "seq-mean-token-mean":
        row_loss = row_loss / row_tokens.clamp(min=1)
    rows = _count("global_batch_size", global_batch_size, (row_tokens > 0).sum(), dp_size)
    loss = row_loss.sum() / rows * dp_size
    if loss_agg_mode == "seq-mean-token-sum-norm":
        loss = loss / (loss_mask.shape[-1] if loss_scale_factor is None else loss_scale_factor)
    return loss


def _count(name: str, given: float | None, local: torch.Tensor, dp_size: int) -> float | torch.Tensor:
    if given is not None:
        return max(given, 1)
    if dp_size > 1:
        raise ValueError(f"agg_loss needs {name} of the whole mini-batch when dp_size={dp_size} > 1")
    return local.clamp(min=1)
