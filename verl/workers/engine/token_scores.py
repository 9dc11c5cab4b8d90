"""Log-probability and entropy of given tokens, without keeping a second copy of the logits."""

from __future__ import annotations

from typing import Any

import torch

_CHUNK_ELEMENTS = 1 << 26
# Below it the probability is 0 in fp32: clamping log-probs here, -inf included, makes p * log p
# equal 0 instead of NaN.
_LOWEST = -1e4


class _TokenScores(torch.autograd.Function):
    """Log-probs and entropies with fp32 temporaries for one chunk of rows at a time, forward and
    backward.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        labels: torch.Tensor,
        index: torch.Tensor | None,
        temperature: float | torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count, vocab = logits.shape
        entropy = logits.new_empty(count, dtype=torch.float32)
        log_z = torch.empty_like(entropy)
        for rows in _chunks(count, vocab):
            scaled = _scale(logits[rows], _at(temperature, rows))
            log_z[rows] = torch.logsumexp(scaled, dim=-1)
            centred = scaled - log_z[rows, None]
            entropy[rows] = -torch.linalg.vecdot(torch.exp(centred), centred.clamp_(min=_LOWEST))
        rows_of = torch.arange(count, device=logits.device) if index is None else index
        log_probs = _scale(logits[rows_of, labels], _at(temperature, rows_of)) - log_z[rows_of]
        ctx.save_for_backward(logits, labels, rows_of, log_z, entropy)
        ctx.in_order = index is None
        ctx.temperature = temperature
        # Entropy is often without a gradient, and its part of the pass is then left out.
        ctx.set_materialize_grads(False)
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None, None]:
        grad_log_probs, grad_entropy = grads
        logits, labels, index, log_z, entropy = ctx.saved_tensors
        result = (
            torch.zeros_like(logits)
            if grad_log_probs is None and grad_entropy is None
            else torch.empty_like(logits)
        )
        # A distribution that several labels are read from has the sum of their gradients.
        grad_rows = None
        if grad_log_probs is not None:
            grad_rows = torch.zeros_like(log_z).index_add_(0, index, grad_log_probs)
        for rows in _chunks(*logits.shape):
            temperature = _at(ctx.temperature, rows)
            centred = _scale(logits[rows], temperature) - log_z[rows, None]
            grad = torch.exp(centred)
            if grad_entropy is not None:
                weight = centred.clamp_(min=_LOWEST).add_(entropy[rows, None]).mul_(grad_entropy[rows, None])
                if grad_rows is not None:
                    weight = weight.add_(grad_rows[rows, None])
                grad.mul_(weight.neg_())
            elif grad_rows is not None:
                grad.mul_(-grad_rows[rows, None])
            if grad_log_probs is not None:
                # Only labels out of order have to be searched for, which the meta device cannot do.
                here = rows if ctx.in_order else ((index >= rows.start) & (index < rows.stop)).nonzero()[:, 0]
                at = (index[here] - rows.start, labels[here])
                grad.index_put_(at, grad_log_probs[here], accumulate=True)
            result[rows] = grad.mul_(
                temperature.reciprocal()[:, None]
                if isinstance(temperature, torch.Tensor)
                else 1.0 / temperature
            )
        return result, None, None, None


def _at(temperature: float | torch.Tensor, rows: slice | torch.Tensor) -> float | torch.Tensor:
    return temperature[rows] if isinstance(temperature, torch.Tensor) else temperature


def _scale(logits: torch.Tensor, temperature: float | torch.Tensor) -> torch.Tensor:
    """Return logits `[rows]` or `[rows, vocab]` over the temperature, one or `[rows]`, in fp32."""
    logits = logits.float()
    if isinstance(temperature, torch.Tensor):
        return logits / (temperature[:, None] if logits.ndim == 2 else temperature)
    return logits if temperature == 1.0 else logits / temperature


def _chunks(count: int, vocab: int) -> list[slice]:
    size = max(1, _CHUNK_ELEMENTS // max(1, vocab))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


@torch.no_grad()
def sums_of_squares(logits: torch.Tensor, temperature: float | torch.Tensor) -> torch.Tensor:
    """Return the sum over the vocabulary of the squared probabilities under softmax(logits /
    temperature), `[count]` fp32, no gradient.

    Args:
        logits: `[count, vocab]`, any float dtype.
        temperature: positive, one or `[count]`.
    """
    sums = logits.new_empty(len(logits), dtype=torch.float32)
    for rows in _chunks(*logits.shape):
        probs = torch.softmax(_scale(logits[rows], _at(temperature, rows)), dim=-1)
        sums[rows] = torch.linalg.vecdot(probs, probs)
    return sums


def token_scores(
    logits: torch.Tensor,
    labels: torch.Tensor,
    temperature: float | torch.Tensor,
    index: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each label and the entropy of each distribution under
    softmax(logits / temperature), in fp32.

    A logit of -inf means probability 0: it adds nothing to the entropy, and its gradient is 0.

    Args:
        logits: `[count, vocab]`, any float dtype.
        labels: `[n]` token ids.
        temperature: positive, one or `[count]`.
        index: `[n]`, the row of `logits` that each label is read from; without it the rows in
            order.

    Returns:
        log-probs `[n]` and entropies `[count]` (nats), both differentiable.

    Raises:
        ValueError: temperature not positive.
    """
    if bool(temperature <= 0) if isinstance(temperature, float | int) else bool((temperature <= 0).any()):
        raise ValueError(f"temperature={temperature}: log-probs need a positive temperature")
    return _TokenScores.apply(logits, labels, index, temperature)
