"""Scores computed inside the head of a model, in place of its logits.

It is done there because FSDP has the head's weights whole only while the model runs. The scores do
not go through the model's output, which may scale or cap logits: a placeholder does, so that the
backward pass begins at the model's output, where FSDP prepares it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from verl.models.lora import head_of
from verl.workers.engine.head_scores import Head, LogitMap, ScoreRequest, TokenScores, token_scores


class HeadCallError(RuntimeError):
    """A model that does not call its head once."""


def linear_head(model: Any) -> torch.nn.Linear | None:
    """Return the head of a language model if it is a plain linear layer; else None, as for one
    with an adapter.
    """
    head = head_of(model)
    if isinstance(head, torch.nn.Linear) and type(head).forward is torch.nn.Linear.forward:
        return head
    return None


@contextmanager
def head_replaced(head: torch.nn.Linear, forward: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Let a head compute something else inside the block."""
    head.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del head.forward


def scores_in_head(
    model: Any,
    run: Callable[[], torch.Tensor],
    pick: Callable[[torch.Tensor], torch.Tensor],
    request: ScoreRequest,
    logit_map: LogitMap,
) -> TokenScores:
    """Return `token_scores` of the hidden states that a model's head receives.

    Args:
        model: its `linear_head` is not None.
        run: calls the model and returns its output in place of logits.
        pick: selects the hidden states `[count, hidden]` that are read, from those of the head.
        request: what is read.
        logit_map: what the model does to the head's output.

    Raises:
        HeadCallError: the model did not call its head once.
    """
    head = linear_head(model)
    assert head is not None, "the caller has looked"
    computed: list[TokenScores] = []

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        scores = token_scores(pick(hidden), request, Head(head.weight, head.bias, logit_map))
        computed.append(scores)
        shape = (*hidden.shape[:-1], 1)
        return _Placeholder.apply(shape, scores.log_probs, scores.entropy)

    with head_replaced(head, forward):
        output = run()
    if len(computed) != 1:
        raise HeadCallError(f"the model called its head {len(computed)} times, expected once")
    log_probs, entropy = _Behind.apply(output, computed[0].log_probs, computed[0].entropy)
    return TokenScores(log_probs, entropy, computed[0].squares)


class _Placeholder(torch.autograd.Function):
    """Zeros in the shape of logits of one word, which depend on scores without adding to their
    gradients: so the backward pass of the scores comes after that of all that uses the zeros.
    """

    @staticmethod
    def forward(ctx: Any, shape: tuple[int, ...], *scores: torch.Tensor) -> torch.Tensor:
        ctx.count = len(scores)
        return scores[0].new_zeros(shape)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[None, ...]:
        return (None,) * (1 + ctx.count)


class _Behind(torch.autograd.Function):
    """Scores whose backward pass begins at a model's output, with a gradient of 0."""

    @staticmethod
    def forward(
        ctx: Any, output: torch.Tensor, log_probs: torch.Tensor, entropy: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(output)
        ctx.set_materialize_grads(False)
        if not entropy.requires_grad:
            ctx.mark_non_differentiable(entropy)
        return log_probs.view_as(log_probs), entropy.view_as(entropy)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return torch.zeros_like(ctx.saved_tensors[0]), *grads
