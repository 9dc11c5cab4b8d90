"""From logits to tokens: temperature, top-k, top-p, and one uniform number per token, drawn from
the reply's own random stream.

Sampling inverts the cumulative distribution, so a reply is a function of its logits and its
uniforms alone, whatever else is in the batch. All rows are sampled at once; truncation changes only
the rows that truncate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from verl.protocol.generate import RolloutError, SamplingParams

_BELOW_ONE = 1.0 - 2.0**-40


@dataclass(frozen=True)
class Sampled:
    """Result of one sampling step.

    Attributes:
        tokens: sampled ids [rows].
        log_probs: log softmax(logits / temperature) at the tokens, before truncation [rows].
        finite: whether the row's probabilities are finite [rows].
    """

    tokens: torch.Tensor
    log_probs: torch.Tensor
    finite: torch.Tensor


def check_sampling(sampling: SamplingParams) -> None:
    """Raise `RolloutError` when a value is out of its range."""
    problem = ""
    if sampling.max_tokens < 1:
        problem = f"max_tokens={sampling.max_tokens}, expected at least 1"
    elif not 0.0 <= sampling.temperature < float("inf"):
        problem = f"temperature={sampling.temperature}, expected 0 (greedy) or a positive number"
    elif not 0.0 < sampling.top_p <= 1.0:
        problem = f"top_p={sampling.top_p}, expected a value in (0, 1]"
    elif sampling.top_k < 1 and sampling.top_k != -1:
        problem = f"top_k={sampling.top_k}, expected -1 (all) or at least 1"
    if problem:
        raise RolloutError(f"sampling parameter {problem}")


def draw_uniforms(seed: int, reply: int, count: int) -> np.ndarray:
    """Return uniform numbers in [0, 1) for reply number `reply` under `seed`, float64 [count]; a
    prefix does not depend on count.
    """
    stream = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed % 2**64, reply))))
    return np.minimum(stream.random(count), _BELOW_ONE)


def _keep(probs: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Return the mask of tokens in the top-k and then in the top-p of the remaining mass, bool
    [rows, vocab]; ties go to the lower id.
    """
    ranked, order = probs.sort(dim=-1, descending=True, stable=True)
    in_top_k = torch.arange(probs.shape[-1], device=probs.device) < top_k.unsqueeze(1)
    cumulative = torch.where(in_top_k, ranked, 0.0).cumsum(-1, dtype=torch.float64)
    before = cumulative - ranked
    keep = in_top_k & (before < top_p.unsqueeze(1) * cumulative[:, -1:])
    keep[:, 0] = True
    return torch.zeros_like(keep).scatter_(1, order, keep)


def sample(
    logits: torch.Tensor,
    uniforms: torch.Tensor,
    temperature: torch.Tensor,
    greedy: torch.Tensor | None = None,
    truncation: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
) -> Sampled:
    """Sample one token per row.

    Args:
        logits: [rows, vocab].
        uniforms: float64 [rows] in [0, 1).
        temperature: float32 [rows], positive (1 for greedy rows).
        greedy: bool [rows], rows that take the most likely token; None when no row is greedy.
        truncation: (truncated bool, top_p, top_k), each [rows]; None when no row truncates.
    """
    scaled = logits.float() / temperature.unsqueeze(1)
    log_probs = torch.log_softmax(scaled, dim=-1)
    probs = log_probs.exp()
    if truncation is not None:
        truncated, top_p, top_k = truncation
        probs = torch.where(_keep(probs, top_p, top_k) | ~truncated.unsqueeze(1), probs, 0.0)
    cdf = probs.cumsum(-1, dtype=torch.float64)
    total = cdf[:, -1]
    tokens = (
        torch.searchsorted(cdf, (uniforms * total).unsqueeze(1), right=True)
        .squeeze(1)
        .clamp_(max=logits.shape[-1] - 1)
    )
    if greedy is not None:
        tokens = torch.where(greedy, logits.argmax(-1), tokens)
    return Sampled(tokens, log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1), torch.isfinite(total))
