"""Which layers of a model can have a LoRA adapter, by a run of its miniature and by what PEFT does
with names.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

import torch

from verl.models.miniature import MiniatureError, miniature_model

PROBE_ROWS = 3
PROBE_TOKENS = 16
NOT_CALLED = "that are never called with text"
WEIGHT_ALONE = "whose weight is used without calling them"
NOT_ALWAYS_CALLED = "that only some blocks call"
NO_GRADIENT = "whose output gets no gradient"


def is_linear(layer: torch.nn.Module) -> bool:
    """Return whether a layer is linear: torch's `Linear`, or the transposed `Conv1D` of GPT-2."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(layer, (torch.nn.Linear, Conv1D))


def is_transposed(layer: torch.nn.Module) -> bool:
    """Return whether a linear layer keeps its weight as `[in, out]`."""
    return is_linear(layer) and not isinstance(layer, torch.nn.Linear)


def layer_size(layer: torch.nn.Module) -> tuple[int, int]:
    """Return the numbers of input and output channels of a linear layer."""
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    rows = int(weight.shape[0])
    columns = int(weight.shape[1])
    return (rows, columns) if is_transposed(layer) else (columns, rows)


def name_pattern(name: str) -> str:
    """Return a layer's name with its numbers replaced: the same in a model and in its miniature."""
    return re.sub(r"\d+", "*", name)


class PeftForm(Enum):
    """How a layer is named in an adapter's configuration so that PEFT adapts it and nothing else."""

    MODULE = "target_modules"
    PARAMETER = "target_parameters"
    NONE = "refused"


@cache
def peft_form(model_type: str, leaf: str) -> PeftForm:
    """Return the form for linear layers whose name ends in `leaf`, as PEFT treats one in a model of
    this type.

    For the types of some mixtures of experts PEFT replaces the names that layers had in older
    releases of transformers, in whatever form `target_modules` has them, by parameters of the
    routed experts; a weight in `target_parameters` it leaves alone. Other names it refuses for some
    types.
    """
    from peft import LoraConfig

    as_module = LoraConfig(r=1, target_modules=[f"layers.{leaf}"])
    if _is_adapted(as_module, model_type, leaf) and not as_module.target_parameters:
        return PeftForm.MODULE
    as_parameter = LoraConfig(r=1, target_modules=[], target_parameters=[f"layers.{leaf}.weight"])
    return PeftForm.PARAMETER if _is_adapted(as_parameter, model_type, leaf) else PeftForm.NONE


def _is_adapted(config: Any, model_type: str, leaf: str) -> bool:
    """Return whether PEFT gives the only layer of a small model an adapter."""
    from peft.functional import inject_adapter_in_model
    from peft.tuners.tuners_utils import BaseTunerLayer
    from transformers import PreTrainedConfig

    model = torch.nn.Module()
    layers = torch.nn.Module()
    layers.add_module(leaf, torch.nn.Linear(1, 1, bias=False))
    model.add_module("layers", layers)
    typed = type("TypedConfig", (PreTrainedConfig,), {"model_type": model_type})
    object.__setattr__(model, "config", typed())
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            inject_adapter_in_model(config, model)
        except ValueError:
            # what PEFT raises for a layer that it refuses, and where no layer matches
            return False
    return isinstance(getattr(layers, leaf), BaseTunerLayer)


def refused_layers(model: torch.nn.Module) -> dict[str, str]:
    """Return the linear layers of a model that cannot have an adapter, with the reason, a clause
    about "layers".

    Args:
        model: without adapters; it may be on the meta device. All linear layers of one that is not
            of transformers can have an adapter.
    """
    from transformers import PreTrainedModel

    layers = {name: layer for name, layer in model.named_modules() if is_linear(layer)}
    if not isinstance(model, PreTrainedModel):
        return {}
    uses = _uses(model)
    refused: dict[str, str] = {}
    for name in layers:
        leaf = name.rsplit(".", 1)[-1]
        reason = uses.get(name_pattern(name))
        if reason is None and peft_form(model.config.model_type, leaf) is PeftForm.NONE:
            reason = f"named {leaf!r}, which PEFT refuses in a model of type {model.config.model_type}"
        if reason is not None:
            refused[name] = reason
    return refused


def _uses(model: Any) -> Mapping[str, str]:
    """Return the reasons of `layer_uses` for a model's miniature, from one run in each process.

    Without a miniature, layers with a `forward` of their own are left out instead.
    """
    key = f"{type(model).__qualname__} {model.config.to_json_string(use_diff=False)}"
    if key not in _USES:
        try:
            _USES[key] = layer_uses(probe_model(model.config))
        except MiniatureError:
            _USES[key] = _own_forwards(model)
    return _USES[key]


_USES: dict[str, Mapping[str, str]] = {}


def probe_model(config: Any) -> Any:
    """Return a small model of a configuration on the CPU, whose layers have the names of the large
    one but for their numbers. Raises MiniatureError.
    """
    return miniature_model(config, attention="eager")


def _own_forwards(model: torch.nn.Module) -> dict[str, str]:
    from transformers.pytorch_utils import Conv1D

    plain = (torch.nn.Linear.forward, Conv1D.forward)
    return {
        name_pattern(name): f"with a forward of their own that could not be tried ({type(layer).__name__})"
        for name, layer in model.named_modules()
        if is_linear(layer) and type(layer).forward not in plain
    }


@dataclass
class _Use:
    """What happened to one linear layer in one pass.

    Attributes:
        calls: number of calls.
        wrong: clause about an input or output that is not one tensor of the layer's channels, or
            empty.
        outputs: outputs, which keep their gradients.
    """

    calls: int = 0
    wrong: str = ""
    outputs: list[torch.Tensor] = field(default_factory=list)


def layer_uses(model: Any) -> dict[str, str]:
    """Return why linear layers of a small model cannot have an adapter, by `name_pattern`, without
    those that can.

    An adapter adds a term to the output of a call, so the layer has to be called, in training and
    in evaluation mode, with one tensor that becomes one tensor, and the output has to reach the
    logits.
    """
    layers = {name: layer for name, layer in model.named_modules() if is_linear(layer)}
    reasons: dict[str, dict[str, str | None]] = {}
    training = model.training
    for mode in (False, True):
        model.train(mode)
        uses = _run(model, layers)
        for name, layer in layers.items():
            reasons.setdefault(name_pattern(name), {})[f"{name} {mode}"] = _reason(layer, uses[name])
        model.zero_grad(set_to_none=True)
    model.train(training)
    common = {pattern: _common_reason(list(of_layers.values())) for pattern, of_layers in reasons.items()}
    return {pattern: reason for pattern, reason in common.items() if reason is not None}


def _common_reason(reasons: Sequence[str | None]) -> str | None:
    """Return the reason of layers of one pattern in both modes."""
    present = [reason for reason in reasons if reason is not None]
    if not present:
        return None
    uncalled = {NOT_CALLED, WEIGHT_ALONE}
    if set(present) <= uncalled and len(present) < len(reasons) and WEIGHT_ALONE not in present:
        return NOT_ALWAYS_CALLED
    return next((reason for reason in present if reason not in uncalled), present[-1])


def _reason(layer: torch.nn.Module, use: _Use) -> str | None:
    if use.wrong:
        return use.wrong
    if not use.calls:
        gradient = layer.weight.grad
        return WEIGHT_ALONE if isinstance(gradient, torch.Tensor) and bool(gradient.any()) else NOT_CALLED
    if not any(output.grad is not None and bool(output.grad.any()) for output in use.outputs):
        return NO_GRADIENT
    return None


def _run(model: Any, layers: Mapping[str, torch.nn.Module]) -> dict[str, _Use]:
    """Run a forward and a backward pass and return what happened to each layer."""
    uses = {name: _Use() for name in layers}
    with _watched(layers, uses):
        logits = probe_logits(model)
        probe_loss(logits).backward()
    return uses


@contextmanager
def _watched(layers: Mapping[str, torch.nn.Module], uses: Mapping[str, _Use]) -> Iterator[None]:
    handles = [
        layer.register_forward_hook(_observer(uses[name]), with_kwargs=True) for name, layer in layers.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _observer(use: _Use) -> Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any], Any], None]:
    def observe(layer: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        use.calls += 1
        inputs = [*args, *kwargs.values()]
        if not isinstance(output, torch.Tensor):
            use.wrong = f"that return a {type(output).__name__} instead of a tensor ({type(layer).__name__})"
        elif len(args) != 1 or len(inputs) != 1 or not isinstance(args[0], torch.Tensor):
            use.wrong = f"that take {len(inputs)} inputs ({type(layer).__name__})"
        elif output.shape != (*args[0].shape[:-1], layer_size(layer)[1]):
            use.wrong = f"that return another shape than a linear layer ({type(layer).__name__})"
        elif output.requires_grad:
            # Torch keeps gradients of parameters and inputs alone.
            output.retain_grad()
            use.outputs.append(output)

    return observe


def probe_logits(model: Any) -> torch.Tensor:
    """Return the logits `[rows, tokens, vocabulary]` of a small model for fixed tokens without
    padding.
    """
    generator = torch.Generator().manual_seed(0)
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    tokens = torch.randint(0, vocabulary, (PROBE_ROWS, PROBE_TOKENS), generator=generator)
    logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits.float()


def probe_loss(logits: torch.Tensor) -> torch.Tensor:
    """Return a scalar that depends on every logit."""
    generator = torch.Generator().manual_seed(1)
    return (logits.log_softmax(-1) * torch.randn(logits.shape, generator=generator)).sum()


def expert_parameters(model: torch.nn.Module) -> list[str]:
    """Return the names of the parameters that hold the weights of all experts of a mixture in one
    tensor.
    """
    return [name for name, value in model.named_parameters() if value.ndim >= 3 and is_expert(name)]


def is_expert(name: str) -> bool:
    """Return whether a parameter's name is that of routed experts."""
    return any(piece.endswith("experts") for piece in name.split("."))
