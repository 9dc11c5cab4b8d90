"""Masked sums and means, and aggregation of token losses with a gradient that is independent of the
cut into micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from verl.trainer.config.names import LOSS_AGG_MODES

# Number of entries whose float64 copies fit into the cache.
PIECE_ENTRIES = 1 << 16


def masked_sum(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the sum of `values` where `mask` is set; masked entries may be NaN or inf.

    Their gradient is 0. Upstream gradients are still NaN if that zero is multiplied by an infinite
    derivative: keep inputs finite.
    """
    return torch.where(mask.bool(), values, 0.0).sum()


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean of `values` where `mask` is set; 0 if all entries are masked."""
    return masked_sum(values, mask) / mask.sum().clamp(min=1)


def row_sum(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the sum of each row's unmasked entries: `[bsz]`, float64; masked entries may have any
    value.
    """
    sums = [torch.where(m.bool(), v, 0.0).double().sum(dim=-1) for v, m in pieces(values, mask)]
    return torch.cat(sums) if len(sums) != 1 else sums[0]


def pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield chunks of the same rows of every tensor, small enough for their float64 copies to fit
    into the cache.
    """
    rows = max(1, PIECE_ENTRIES // max(1, tensors[0][:1].numel()))
    return zip(*(tensor.split(rows) for tensor in tensors), strict=True)


def row_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean of each row's unmasked entries: `[bsz]`, float64; 0 for a row without any."""
    return row_sum(values, mask) / mask.sum(dim=-1).clamp(min=1)


def set_mean(values: torch.Tensor) -> float:
    """Return the mean of a one-dimensional tensor, sorted before it is summed: identical to the bit
    for any order.
    """
    return float(values.double().sort().values.sum() / max(len(values), 1))


def spread(values: torch.Tensor) -> tuple[float, float, float, float]:
    """Return (mean, unbiased standard deviation, maximum, minimum) of a tensor; the deviation of
    one value is 0.
    """
    values = values.double()
    std = values.std().item() if values.numel() > 1 else 0.0
    return values.mean().item(), std, values.max().item(), values.min().item()


def agg_loss(
    loss_mat: torch.Tensor,
    loss_mask: torch.Tensor,
    loss_agg_mode: str,
    dp_size: int = 1,
    batch_num_tokens: float | None = None,
    global_batch_size: float | None = None,
    loss_scale_factor: float | None = None,
    row_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Aggregate the token loss of a mini-batch, or of one of its micro-batches on one of `dp_size` ranks.

    Given the counts of the whole mini-batch, the sum over micro-batches and the mean over ranks (as FSDP
    averages gradients) equal the loss of the undivided mini-batch. Rows without an unmasked token, or of
    weight 0, have no influence.

        token-mean (DAPO, arXiv 2503.14476, eq. 8)            sum_i w_i sum_t L_it / sum_i w_i n_i
        seq-mean-token-mean (GRPO, arXiv 2402.03300, eq. 3)   sum_i w_i (sum_t L_it / n_i) / sum_i w_i
        seq-mean-token-sum                                    sum_i w_i sum_t L_it / sum_i w_i
        seq-mean-token-sum-norm (Dr. GRPO, arXiv 2503.20783)  that, divided by a constant
        token-sum                                             sum_i w_i sum_t L_it

    n_i is the number of tokens of row i, w_i its weight (1 without `call_weighting`).

    Keys: `actor.loss_agg_mode`, `critic.loss_agg_mode`, `algorithm.call_weighting`.
    Use when: `token-mean` in doubt; `seq-mean-token-mean` if every reply should have the same weight; the
    sums if the weight of a token
        should not depend on the length of its reply.
    Fails when: `seq-mean-token-mean` has long wrong replies, whose tokens are penalized less than those of
    short ones; `token-sum` has
        batches of varying size, which give steps of varying size.

    Args:
        loss_mat: `[bsz, response_len]`.
        loss_mask: `[bsz, response_len]`.
        loss_agg_mode: `token-mean` (DAPO), `token-sum`, `seq-mean-token-sum`, `seq-mean-token-mean` (GRPO) or
            `seq-mean-token-sum-norm` (Dr. GRPO: the sum divided by a constant).
        dp_size: number of ranks whose gradients are averaged.
        batch_num_tokens: unmasked tokens of the mini-batch over all ranks, weighted by row; required if
            `dp_size > 1`.
        global_batch_size: total weight of rows of the mini-batch with an unmasked token, over all ranks;
            required if `dp_size > 1`.
        loss_scale_factor: constant of `seq-mean-token-sum-norm`; default: the width of `loss_mat`.
        row_weights: `[bsz]`, not negative; a row of weight k counts as k rows. None: all ones.

    Raises:
        ValueError: `loss_mat` and `loss_mask` differ in shape, an unknown mode, a missing global count if
            `dp_size > 1`, or `row_weights` of another shape.
    """
    if loss_mat.shape != loss_mask.shape:
        raise ValueError(
            f"loss_mat {tuple(loss_mat.shape)} and loss_mask {tuple(loss_mask.shape)} differ in shape"
        )
    if loss_agg_mode not in LOSS_AGG_MODES:
        raise ValueError(f"loss_agg_mode={loss_agg_mode!r}: expected one of {LOSS_AGG_MODES}")
    weights = _row_weights(loss_mask, row_weights)
    counted = loss_mask.bool() if row_weights is None else loss_mask.bool() & (weights > 0).unsqueeze(-1)
    # No product with the mask: what is masked may be infinite, and 0 times that is NaN.
    losses = torch.where(counted, loss_mat, 0.0)
    if row_weights is not None:
        losses = losses * weights.unsqueeze(-1)
    row_tokens = loss_mask.sum(dim=-1)
    if loss_agg_mode == "token-sum":
        return losses.sum() * dp_size
    if loss_agg_mode == "token-mean":
        tokens = _count("batch_num_tokens", batch_num_tokens, (row_tokens * weights).sum(), dp_size)
        return losses.sum() / tokens * dp_size
    row_loss = losses.sum(dim=-1)
    if loss_agg_mode == "seq-mean-token-mean":
        row_loss = row_loss / row_tokens.clamp(min=1)
    rows = _count("global_batch_size", global_batch_size, (weights * (row_tokens > 0)).sum(), dp_size)
    loss = row_loss.sum() / rows * dp_size
    if loss_agg_mode == "seq-mean-token-sum-norm":
        loss = loss / (loss_mask.shape[-1] if loss_scale_factor is None else loss_scale_factor)
    return loss


def compute_entropy_loss(
    logits: torch.Tensor, response_mask: torch.Tensor, loss_agg_mode: str = "token-mean"
) -> torch.Tensor:
    """Return the aggregated entropy (nats) of the softmax of `logits`: `H = -sum_v p_v log p_v`
    (arXiv 1602.01783, section 4), a scalar.

    Keys: `actor.entropy_coeff` times H is subtracted from the loss.
    Use when: the policy becomes deterministic before it has explored.
    Fails when: the coefficient is not very small: with a vocabulary of 100,000 tokens noise increases H
    easily.

    Args:
        logits: `[bsz, response_len, vocab]`.
        response_mask: `[bsz, response_len]`.
        loss_agg_mode: see `agg_loss`.
    """
    log_probs = torch.log_softmax(logits, dim=-1)
    entropy = -torch.where(log_probs.isneginf(), 0.0, log_probs.exp() * log_probs).sum(dim=-1)
    return agg_loss(entropy, response_mask, loss_agg_mode)


def _row_weights(loss_mask: torch.Tensor, row_weights: torch.Tensor | None) -> torch.Tensor:
    if row_weights is None:
        return torch.ones(loss_mask.shape[0], device=loss_mask.device)
    if row_weights.shape != loss_mask.shape[:1]:
        raise ValueError(
            f"row_weights has shape {list(row_weights.shape)}, expected one weight per row, "
            f"[{loss_mask.shape[0]}]"
        )
    return row_weights


def _count(name: str, global_count: float | None, local: torch.Tensor, dp_size: int) -> float | torch.Tensor:
    """Return the count to divide by; 1 instead of 0."""
    if global_count is not None:
        return global_count if global_count > 0 else 1.0
    if dp_size > 1:
        raise ValueError(f"agg_loss needs {name} of the whole mini-batch if dp_size={dp_size} > 1")
    return torch.where(local > 0, local, 1)
