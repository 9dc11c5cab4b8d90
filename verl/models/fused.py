"""Modules of a model computed by fewer operations, with the parameters that they have: no fork of
a model, no change of a name, an export or a way to load weights.

Norms: a module that is an RMS norm, which a trial with random numbers shows, gets torch's own as
its forward, and on a CPU a backward pass that needs less memory and time; for the trainer and the
engine. Projections: those of one input (queries, keys and values; gate and up) get one storage, of
which their weights are views, and one product; for the engine, which computes no gradients.
"""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

# A trial's largest relative difference: rounding of fp32 is a tenth of it, a lost epsilon a thousand
# times.
TOLERANCE = 1e-5
# Sizes of the numbers of a trial: in the last the epsilon counts most.
_SCALES = (10.0, 1.0, 1e-2, 1e-3)
# Attributes of every module.
_OF_TORCH = frozenset(vars(torch.nn.Module()))
# Projections of one input, as models call them.
PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def fuse_norms(model: torch.nn.Module) -> int:
    """Let torch's kernel compute the RMS norms of a model, in place, and return how many there are.

    In another dtype than fp32 a module computes as before, since the kernel rounds 16 bits in
    another place. Modules with other parts than one weight, or with other numbers in the trial, are
    left alone.
    """
    classes: dict[tuple[Any, ...], type | None] = {}
    count = 0
    for module in model.modules():
        if not _may_be_norm(module):
            continue
        numbers = tuple(sorted((name, value) for name, value in vars(module).items() if _is_epsilon(value)))
        # A flag or a number of any size may change what a class computes: the trial is of this one.
        settings = tuple(
            sorted((name, repr(value)) for name, value in vars(module).items() if name not in _OF_TORCH)
        )
        key = (type(module), module.weight.shape, settings)
        if key not in classes:
            classes[key] = _fused_class(module, [name for name, _ in numbers])
        fused = classes[key]
        if fused is not None:
            # The class, not an attribute of the object: a copy of the object keeps its own weight.
            module.__class__ = fused
            count += 1
    return count


def _is_epsilon(value: Any) -> bool:
    return isinstance(value, float) and 0 < value < 0.1


def _may_be_norm(module: torch.nn.Module) -> bool:
    """Return whether a module is one weight and a function of one argument."""
    if getattr(module, "fused_norm", False) or isinstance(module, (torch.nn.RMSNorm, torch.nn.LayerNorm)):
        return False
    tensors = [*module.named_parameters(), *module.named_buffers()]
    if len(tensors) != 1 or tensors[0][0] != "weight" or tensors[0][1].ndim != 1:
        return False
    return len(inspect.signature(module.forward).parameters) == 1


def _fused_class(module: Any, epsilons: list[str]) -> type | None:
    """Return a subclass that calls torch's kernel, if its output is that of the module with other
    weights; else None.
    """
    width = len(module.weight)
    generator = torch.Generator("cpu").manual_seed(width)
    # A copy: the module may be on the meta device, and its own weight may be all ones.
    trial = copy.deepcopy(module).to_empty(device="cpu").float()
    with torch.no_grad(), torch.device("cpu"):
        states = torch.randn(len(_SCALES), 3, width, generator=generator)
        states = states * torch.tensor(_SCALES)[:, None, None]
        trial.weight.copy_(torch.randn(width, generator=generator))
        try:
            expected = trial(states)
        except Exception:  # the code of any model may raise anything
            return None
        for name in epsilons:
            actual = F.rms_norm(states, (width,), trial.weight, getattr(trial, name))
            if _equal(actual, expected):
                return _norm_class(type(module), name)
    return None


def _equal(actual: torch.Tensor, expected: Any) -> bool:
    return (
        isinstance(expected, torch.Tensor)
        and expected.shape == actual.shape
        and bool(((actual - expected).abs() <= TOLERANCE * expected.abs() + 1e-9).all())
    )


def _norm_class(cls: type, epsilon: str) -> type:
    plain = cls.forward  # type: ignore[attr-defined]

    def forward(self: Any, states: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if states.dtype != torch.float32 or weight.dtype != torch.float32:
            return plain(self, states)
        if states.device.type != "cuda":
            # Without a GPU torch's is a sequence of operations, with the backward of each of them.
            if torch.is_grad_enabled():
                return _RMSNorm.apply(states, weight, getattr(self, epsilon))
            return (states * _norm_scale(states, getattr(self, epsilon))).mul_(weight)
        return F.rms_norm(states, weight.shape, weight, getattr(self, epsilon))

    return type(cls.__name__, (cls,), {"forward": forward, "fused_norm": True, "__module__": cls.__module__})


def _norm_scale(states: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return 1 / sqrt(mean of squares + epsilon) of the rows of states, `[..., 1]`."""
    norm = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
    return norm.square_().div_(states.shape[-1]).add_(epsilon).rsqrt_()


class _RMSNorm(torch.autograd.Function):
    """An RMS norm that keeps one tensor for its backward pass, with half of the passes over
    memory.
    """

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        scale = _norm_scale(states, epsilon)
        scaled = states * scale
        ctx.save_for_backward(scaled, scale, weight)
        return scaled * weight

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        scaled, scale, weight = ctx.saved_tensors
        (grad,) = grads
        products = (grad * scaled).reshape(-1, len(weight))
        grad_weight = products.sum(0) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, grad_weight, None
        mean = torch.mv(products, weight).view(scale.shape).div_(-len(weight))
        return (grad * weight).addcmul_(scaled, mean).mul_(scale), grad_weight, None


class JoinedProduct:
    """One product for several layers of one input.

    Args:
        layers: of one parent module, in the order in which it may call them.

    Attributes:
        weight: of all layers, one behind the other.
        bias: likewise; None without one.
        packed: computes the product, if it is not None.
    """

    def __init__(self, layers: list[torch.nn.Linear]) -> None:
        self.sizes = [layer.out_features for layer in layers]
        self.weight = torch.cat([layer.weight.detach() for layer in layers])
        self.bias: torch.Tensor | None = None
        if layers[0].bias is not None:
            self.bias = torch.cat([layer.bias.detach() for layer in layers])
        for name, whole in (("weight", self.weight), ("bias", self.bias)):
            if whole is not None:
                for layer, part in zip(layers, whole.split(self.sizes), strict=True):
                    # The parameter stays the same object: its names, ties and loaders know it.
                    getattr(layer, name).data = part
        self.packed: Any = None
        self._states: torch.Tensor | None = None
        self._outputs: list[torch.Tensor | None] = []
        self._apart = False

    def output(self, states: torch.Tensor, place: int) -> torch.Tensor | None:
        """Return the output of the layer at `place`; None if it has to compute its own, because the
        layers have different inputs.
        """
        if self._apart:
            return None
        if states is not self._states or self._outputs[place] is None:
            if self._states is not None:
                # Some of the last product was not asked for.
                self._apart = True
                self._states = None
                self._outputs = []
                return None
            self._states = states
            self._outputs = list(self._whole(states).split(self.sizes, -1))
        output = self._outputs[place]
        self._outputs[place] = None
        if all(other is None for other in self._outputs):
            self._states = None
        return output

    def _whole(self, states: torch.Tensor) -> torch.Tensor:
        if self.packed is not None:
            return self.packed.product(states)
        return F.linear(states, self.weight, self.bias)


class _Part(torch.nn.Linear):
    """A layer that takes its part of a product.

    Attributes:
        product: of the layers.
        place: of its part.
        packed: computes its own output where it has to; None for a plain product.
    """

    product: JoinedProduct
    place: int
    packed: Any = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            return super().forward(input)
        output = self.product.output(input, self.place)
        if output is not None:
            return output
        return super().forward(input) if self.packed is None else self.packed.product(input)


def joined_product(layer: torch.nn.Module) -> JoinedProduct | None:
    """Return the product that a layer takes its part of; None for any other module."""
    return layer.product if isinstance(layer, _Part) else None


def fuse_projections(model: torch.nn.Module) -> int:
    """Give the projections of one input one storage and one product, in place, and return the
    number of products.

    Only plain layers whose weights no other module has: with a bias each or none, not quantised,
    not wrapped by adapters. Layers that turn out to have different inputs compute their own
    products. With gradients enabled each layer computes as before.
    """
    # Before weights are moved: modules that share one would part.
    uses = Counter(
        id(parameter) for module in model.modules() for parameter in module.parameters(recurse=False)
    )
    count = 0
    for layers in _groups(model):
        if any(uses[id(parameter)] > 1 for layer in layers for parameter in layer.parameters()):
            continue
        product = JoinedProduct(layers)
        for place, layer in enumerate(layers):
            layer.__class__ = _Part
            part: Any = layer
            part.product = product
            part.place = place
        count += 1
    return count


def _groups(model: torch.nn.Module) -> Iterator[list[torch.nn.Linear]]:
    for module in model.modules():
        for names in PROJECTIONS:
            layers: list[Any] = [getattr(module, name, None) for name in names]
            if all(type(layer) is torch.nn.Linear for layer in layers) and _alike(layers):
                yield layers


def _alike(layers: list[Any]) -> bool:
    first = layers[0]
    return all(
        layer.in_features == first.in_features
        and layer.weight.dtype == first.weight.dtype
        and layer.weight.device == first.weight.device
        and (layer.bias is None) == (first.bias is None)
        for layer in layers
    )
