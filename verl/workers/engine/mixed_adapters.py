"""Several adapters of one base in one forward and backward pass: every token has its own.

PEFT's layers are switched off, so that they compute the base, and a hook on each adds the product
of the adapter of every token. Tokens of one adapter are sliced, never masked: a mask multiplies, so
that a value of one adapter that is not finite would reach the tokens of all. Parameters, names and
gradients stay those of PEFT's layers, one set for each adapter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from verl.models.lora import KEY_PREFIX

# Start, stop and part of consecutive tokens; part i of a batch belongs to adapter i of a pass.
Run = tuple[int, int, int]
# Of tokens that no adapter changes in a layer.
NO_ADAPTER = -1


class UnknownTokensError(ValueError):
    """A layer with adapters whose input does not have the tokens of the pass, such as a head that
    is called with some of them: which adapter a token has cannot be told there.
    """


def token_runs(parts: Sequence[int], lengths: Sequence[int]) -> list[Run]:
    """Return the runs of consecutive pieces of tokens, given the part and the length of each."""
    runs: list[Run] = []
    start = 0
    for part, length in zip(parts, lengths, strict=True):
        stop = start + length
        if runs and runs[-1][2] == part:
            runs[-1] = (runs[-1][0], stop, part)
        elif length:
            runs.append((start, stop, part))
        start = stop
    return runs


class MixedAdapters:
    """The adapters of a model, added to the outputs of its layers by forward hooks while `of` names
    them.

    Attributes:
        connected: parts whose parameters get a gradient in every backward pass, zero without
            tokens. FSDP reduces gradients over ranks, so all of them must have the same ones.

    Args:
        layers: of `adapter_layers`.
    """

    def __init__(self, layers: Sequence[torch.nn.Module]) -> None:
        self.connected: frozenset[int] = frozenset()
        self._keys: tuple[str, ...] = ()
        self._runs: tuple[Run, ...] = ()
        self._tokens = 0
        for layer in layers:
            layer.register_forward_hook(self._add)

    @property
    def active(self) -> bool:
        """Whether a block of `of` is running."""
        return bool(self._keys)

    @contextmanager
    def of(self, names: Sequence[str]) -> Iterator[None]:
        """Give tokens of part i the adapter `names[i]` inside the block, where PEFT's layers must
        be switched off.
        """
        self._keys = tuple(KEY_PREFIX + name for name in names)
        self.connected = frozenset()
        try:
            yield
        finally:
            self._keys = ()
            self._runs = ()

    def use(self, runs: Sequence[Run], tokens: int) -> None:
        """Set which of the `tokens` of the next forward pass have which adapter; recomputed layers
        need it until its backward pass has ended.
        """
        self._runs = tuple(runs)
        self._tokens = tokens

    def _add(self, layer: Any, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor | None:
        if not self._keys:
            return None
        states = args[0]
        # A layer may get several vectors of each token.
        each, remainder = divmod(states.numel(), self._tokens * states.shape[-1])
        if remainder or not each:
            raise UnknownTokensError(
                f"a layer with adapters got an input of the shape {list(states.shape)} in a pass of "
                f"{self._tokens} tokens"
            )
        places: dict[int, int] = {}
        scales: list[float] = []
        weights: list[torch.Tensor] = []
        for part in sorted({part for _, _, part in self._runs} | self.connected):
            key = self._keys[part]
            if key in layer.lora_A:
                places[part] = len(scales)
                scales.append(layer.scaling[key])
                weights += [layer.lora_A[key].weight, layer.lora_B[key].weight]
        if not weights:
            return None
        # A rank without rows runs one token, which nothing is read from.
        runs = [
            (start * each, stop * each, places.get(part, NO_ADAPTER))
            for start, stop, part in self._runs or ((0, self._tokens, NO_ADAPTER),)
        ]
        outputs = _Product.apply(states.flatten(0, -2), output.flatten(0, -2), runs, scales, *weights)
        result: torch.Tensor = outputs.view(output.shape)
        return result


class _Product(torch.autograd.Function):
    """Outputs of a layer plus those of each token's adapter.

    One function for all runs of a layer: the products write into slices of one tensor, where
    operations on slices would copy them together, forward and backward.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        output: torch.Tensor,
        runs: Sequence[Run],
        scales: Sequence[float],
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        result = torch.empty_like(output)
        narrow: list[torch.Tensor] = []
        for start, stop, place in runs:
            if place == NO_ADAPTER:
                result[start:stop] = output[start:stop]
                continue
            down, up = weights[2 * place : 2 * place + 2]
            low_rank = torch.mm(states[start:stop], down.t()).mul_(scales[place])
            torch.addmm(output[start:stop], low_rank, up.t(), out=result[start:stop])
            narrow.append(low_rank)
        ctx.save_for_backward(states, *weights, *narrow)
        ctx.runs = runs
        ctx.scales = scales
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,) = grads
        count = 2 * len(ctx.scales)
        states, *tensors = ctx.saved_tensors
        weights = tensors[:count]
        narrow = iter(tensors[count:])
        grad_states = torch.empty_like(states) if ctx.needs_input_grad[0] else None
        grad_weights: list[torch.Tensor | None] = [None] * count
        for start, stop, place in ctx.runs:
            if place == NO_ADAPTER:
                if grad_states is not None:
                    grad_states[start:stop] = 0.0
                continue
            down, up = weights[2 * place : 2 * place + 2]
            part = grad[start:stop]
            low_rank = torch.mm(part, up).mul_(ctx.scales[place])
            if grad_states is not None:
                torch.mm(low_rank, down, out=grad_states[start:stop])
            for at, outer, inner in (
                (2 * place, low_rank, states[start:stop]),
                (2 * place + 1, part, next(narrow)),
            ):
                before = grad_weights[at]
                grad_weights[at] = (
                    torch.mm(outer.t(), inner) if before is None else before.addmm_(outer.t(), inner)
                )
        # Adapters without a token here are connected by a zero.
        gradients = [
            torch.zeros_like(weight) if of_weight is None else of_weight
            for weight, of_weight in zip(weights, grad_weights, strict=True)
        ]
        return grad_states, grad, None, None, *gradients
