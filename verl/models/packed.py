"""Products of an engine's layers with weights in the order in which oneDNN reads them, on a CPU.

A plain product puts weights into such an order every time, which for a few rows takes longer than
the product itself. This one takes memory for the weights once more, until `PackedWeights.drop`.
Small weights stay as they are.

Both round a row alike beside others, if these are enough: a trial of every shape shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from verl.models.fused import JoinedProduct, joined_product

# Rows are a multiple of this: a product of one row has a kernel of its own, with other rounding, and
# plain products of few rows too.
PACKED_ROWS = 2
PLAIN_ROWS = 4
# Smaller weights are faster as they are: oneDNN needs 8 us more to begin.
LEAST_ELEMENTS = 1 << 17
# Rows of a trial: of a pass over chunks, and multiples of the above in decode steps.
_MANY_ROWS = 128
_TRIAL_MULTIPLES = (1, 2, 5, 10)
# Weights of a trial at most, 64 MiB in fp32: kernels differ by the width of a product, not by how
# many outputs there are beyond that.
_TRIAL_ELEMENTS = 1 << 24


class HasWeight(Protocol):
    """What has a weight `[out, in]`, and a bias `[out]` or None."""

    weight: Any
    bias: Any


class PackedWeight:
    """A weight in the order of oneDNN, made when it is first needed.

    Args:
        owner: whose weight it is; that may change between `drop` and the next product.
    """

    def __init__(self, owner: HasWeight) -> None:
        self._owner = owner
        self._packed: torch.Tensor | None = None

    def product(self, states: torch.Tensor) -> torch.Tensor:
        """Return `F.linear` of states `[..., in]`, without a gradient."""
        # Without rows the kernel fails.
        if not states.numel():
            return F.linear(states, self._owner.weight, self._owner.bias)
        if self._packed is None:
            self._packed = _pack(self._owner.weight)
        return _multiply(states, self._packed, self._owner.bias)

    def drop(self) -> None:
        """Free the memory; the next product reads the weight anew."""
        self._packed = None


class _PackedLinear(torch.nn.Linear):
    """A layer with a packed weight where no gradient is wanted."""

    packed: PackedWeight

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) if torch.is_grad_enabled() else self.packed.product(input)


class PackedWeights:
    """The packed weights of a model.

    Attributes:
        row_block: in multiples of so many rows all products of the model with weights round a row
            alike; None if they may not.
    """

    def __init__(self, weights: list[PackedWeight], row_block: int | None) -> None:
        self._weights = weights
        self.row_block = row_block

    def drop(self) -> None:
        """Free the memory; needed after a change of the model's weights."""
        for weight in self._weights:
            weight.drop()


def pack_linears(model: torch.nn.Module) -> PackedWeights:
    """Let the larger linear layers of a model on a CPU compute with packed weights, in place; the
    model's parameters stay as they are.

    Nothing changes where torch has no oneDNN, or where a trial finds rows that are rounded
    differently beside others. Layers of other classes stay as they are, such as quantised ones.
    """
    layers = list(_layers(model))
    products: dict[int, JoinedProduct] = {}
    for layer in layers:
        product = joined_product(layer)
        if product is not None:
            products[id(product)] = product
    owners: list[Any] = [*layers, *products.values()]
    if not layers or not all(rounds_rows_alike(owner) for owner in owners):
        return PackedWeights([], None)
    weights = []
    for product in products.values():
        if _is_large(product):
            product.packed = PackedWeight(product)
            weights.append(product.packed)
    for layer in layers:
        if _is_large(layer):
            packed = PackedWeight(layer)
            weights.append(packed)
            if joined_product(layer) is None:
                layer.__class__ = _PackedLinear
            any_layer: Any = layer
            any_layer.packed = packed
    if not _has_no_others(model, layers):
        return PackedWeights(weights, None)
    return PackedWeights(weights, PACKED_ROWS if all(map(_is_large, owners)) else PLAIN_ROWS)


def _layers(model: torch.nn.Module) -> Iterator[torch.nn.Linear]:
    for module in model.modules():
        if type(module) is torch.nn.Linear or joined_product(module) is not None:
            assert isinstance(module, torch.nn.Linear)
            yield module


def _has_no_others(model: torch.nn.Module, layers: list[torch.nn.Linear]) -> bool:
    """Return whether all matrices of a model are weights of these layers or of embeddings."""
    of_layers = {id(layer.weight) for layer in layers}
    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    return all(p.ndim < 2 or id(p) in of_layers or id(p) in looked_up for p in model.parameters())


def _is_large(owner: HasWeight) -> bool:
    return owner.weight.numel() >= LEAST_ELEMENTS


def rounds_rows_alike(owner: HasWeight) -> bool:
    """Return whether products with a weight of this shape on a CPU round every row alike, packed if
    it is large; rows are a multiple of `PLAIN_ROWS`, or of `PACKED_ROWS` then.
    """
    return _may_be_tried(owner.weight) and _trial(
        *_trial_shape(owner.weight), owner.weight.dtype, owner.bias is not None, _is_large(owner)
    )


def plain_rounds_alike(weight: torch.Tensor) -> bool:
    """Return whether plain products with a weight of this shape on a CPU round every row alike, in
    multiples of `PLAIN_ROWS`.
    """
    return _may_be_tried(weight) and _trial(*_trial_shape(weight), weight.dtype, False, False)


def _may_be_tried(weight: torch.Tensor) -> bool:
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return False
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _trial_shape(weight: torch.Tensor) -> tuple[int, int]:
    return min(len(weight), max(1, _TRIAL_ELEMENTS // weight.shape[1])), weight.shape[1]


@cache
@torch.no_grad()
def _trial(outputs: int, inputs: int, dtype: torch.dtype, has_bias: bool, is_packed: bool) -> bool:
    """Return whether rows of a product have the same bits beside any other rows."""
    generator = torch.Generator().manual_seed(outputs + inputs)
    weight = torch.rand(outputs, inputs, generator=generator).to(dtype)
    states = torch.randn(_MANY_ROWS, inputs, generator=generator).to(dtype)
    bias = weight[:, 0].contiguous() if has_bias else None
    block = PACKED_ROWS if is_packed else PLAIN_ROWS
    try:
        packed = _pack(weight) if is_packed else None
        expected = _product(states, weight, packed, bias)
        return all(
            torch.equal(
                _product(states[start : start + rows], weight, packed, bias), expected[start : start + rows]
            )
            for rows in [block * multiple for multiple in _TRIAL_MULTIPLES]
            for start in (0, _MANY_ROWS - rows)
        )
    except RuntimeError:  # a machine, or a dtype, without the kernel
        return False


def _product(
    states: torch.Tensor, weight: torch.Tensor, packed: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    return F.linear(states, weight, bias) if packed is None else _multiply(states, packed, bias)


def _pack(weight: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)


def _multiply(states: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise.default(states, packed, bias, "none", [], "")
