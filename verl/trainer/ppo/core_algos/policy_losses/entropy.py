"""Entropy of the policy as a loss term."""

from __future__ import annotations

import torch

from verl.trainer.ppo.core_algos.aggregation import agg_loss


def compute_entropy_loss(logits: torch.Tensor, response_mask: torch.Tensor, loss_agg_mode: str = "token-mean") -> torch.Tensor:
    """Aggregated entropy (nats) of the softmax of `logits`: `H = -sum_v p_v log p_v` (arXiv 1602.01783, section 4), a scalar.

    Keys: `actor.entropy_coeff` times H is subtracted from the loss.
    Use when: the policy turns deterministic before it has explored.
    Fails when: the coefficient is more than a trace: with a vocabulary of 100,000 tokens H is cheaply raised by noise.

    Args:
        logits: `[bsz, response_len, vocab]`.
        response_mask: `[bsz, response_len]`.
        loss_agg_mode: see `agg_loss`.
    """
    log_probs = torch.log_softmax(logits, dim=-1)
    entropy = -torch.where(log_probs.isneginf(), 0.0, log_probs.exp() * log_probs).sum(dim=-1)
    return agg_loss(entropy, response_mask, loss_agg_mode)
