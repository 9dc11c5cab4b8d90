"""Products of an engine's layers with weights in the order in which oneDNN reads them, on a CPU.

A plain product puts weights into such an order every time, which for a few rows takes longer than
the product itself. This one also rounds a row alike beside any number of other rows, from
`LEAST_ROWS` on: a trial of every shape shows it before a model is changed. It takes memory for the
weights once more, until `PackedWeights.drop`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from verl.models.fused import JoinedProduct, joined_product

# A product of one row has a kernel of its own, with other rounding.
LEAST_ROWS = 2
# Rows of a trial: of one, of a decode step, of a pass over chunks.
_MANY_ROWS = 128
_TRIAL_ROWS = (2, 3, 8, 40)
# Weights of a trial at most, 64 MiB in fp32: kernels differ by the width of a product, not by how
# many outputs there are beyond that.
_TRIAL_ELEMENTS = 1 << 24


class HasWeight(Protocol):
    """What has a weight `[out, in]`, and a bias `[out]` or None."""

    weight: Any
    bias: Any


@dataclass
class PlainWeight:
    """A weight without a layer."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None


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
        is_whole: all products of the model with weights are packed, so that rows from `LEAST_ROWS`
            on are rounded alike in any number.
    """

    def __init__(self, weights: list[PackedWeight], is_whole: bool) -> None:
        self._weights = weights
        self.is_whole = is_whole

    def drop(self) -> None:
        """Free the memory; needed after a change of the model's weights."""
        for weight in self._weights:
            weight.drop()


def pack_linears(model: torch.nn.Module) -> PackedWeights:
    """Let the linear layers of a model on a CPU compute with packed weights, in place; the model's
    parameters stay as they are.

    Nothing changes where torch has no oneDNN, or where a trial finds rows that are rounded
    differently beside others. Layers of other classes stay as they are, such as quantised ones.
    """
    layers = list(_layers(model))
    products: dict[int, JoinedProduct] = {}
    for layer in layers:
        product = joined_product(layer)
        if product is not None:
            products[id(product)] = product
    if not layers or not all(may_be_packed(owner) for owner in (*layers, *products.values())):
        return PackedWeights([], False)
    weights = []
    for product in products.values():
        product.packed = PackedWeight(product)
        weights.append(product.packed)
    for layer in layers:
        packed = PackedWeight(layer)
        weights.append(packed)
        if joined_product(layer) is None:
            layer.__class__ = _PackedLinear
        any_layer: Any = layer
        any_layer.packed = packed
    return PackedWeights(weights, _is_whole(model, layers))


def _layers(model: torch.nn.Module) -> Iterator[torch.nn.Linear]:
    for module in model.modules():
        if type(module) is torch.nn.Linear or joined_product(module) is not None:
            assert isinstance(module, torch.nn.Linear)
            yield module


def _is_whole(model: torch.nn.Module, layers: list[torch.nn.Linear]) -> bool:
    """Return whether all matrices of a model are weights of these layers or of embeddings."""
    of_layers = {id(layer.weight) for layer in layers}
    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    return all(p.ndim < 2 or id(p) in of_layers or id(p) in looked_up for p in model.parameters())


def may_be_packed(owner: HasWeight) -> bool:
    """Return whether products with a weight of this shape round every row alike once it is packed."""
    weight = owner.weight
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return False
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    outputs = min(len(weight), max(1, _TRIAL_ELEMENTS // weight.shape[1]))
    return _rounds_rows_alike(outputs, weight.shape[1], weight.dtype, owner.bias is not None)


@cache
@torch.no_grad()
def _rounds_rows_alike(outputs: int, inputs: int, dtype: torch.dtype, has_bias: bool) -> bool:
    """Return whether rows of a product have the same bits beside any other rows."""
    generator = torch.Generator().manual_seed(outputs + inputs)
    weight = torch.rand(outputs, inputs, generator=generator).to(dtype)
    states = torch.randn(_MANY_ROWS, inputs, generator=generator).to(dtype)
    bias = weight[:, 0].contiguous() if has_bias else None
    try:
        packed = _pack(weight)
        expected = _multiply(states, packed, bias)
        return all(
            torch.equal(_multiply(states[start : start + rows], packed, bias), expected[start : start + rows])
            for rows in _TRIAL_ROWS
            for start in (0, _MANY_ROWS - rows)
        )
    except RuntimeError:  # a machine, or a dtype, without the kernel
        return False


def _pack(weight: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)


def _multiply(states: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise.default(states, packed, bias, "none", [], "")
