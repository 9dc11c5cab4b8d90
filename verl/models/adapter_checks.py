"""What an adapter covers, as a share of a model's weights, and whether each of its layers has an
effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from verl.models.adapter_layers import (
    is_expert,
    is_linear,
    name_pattern,
    probe_logits,
    probe_loss,
    probe_model,
    refused_layers,
)
from verl.models.lora import (
    LoraSpec,
    LoraTargetError,
    adapter_parameters,
    add_adapters,
    head_of,
    lora_targets,
    select_adapter,
)

EXPERTS = "3-D expert parameters"
CONVOLUTIONS = "convolutions"
NOT_CHOSEN = "layers that the keys do not choose"


@dataclass(frozen=True)
class LeftOut:
    """Weights without an adapter for one reason.

    Attributes:
        count: number of tensors.
        share: their part of the layers' weights.
        example: name of the first.
    """

    count: int
    share: float
    example: str


@dataclass(frozen=True)
class AdapterCoverage:
    """The part of a model that an adapter changes.

    Attributes:
        share: part of the layers' weights that have an adapter, 0 to 1; all matrices without
            embeddings and head.
        left_out: the other weights by reason, the largest share first.
    """

    share: float
    left_out: Mapping[str, LeftOut]

    def describe(self) -> str:
        """Return the share and the reasons in one line."""
        text = f"adapts {_percent(self.share)} of the layers' weights"
        if not self.left_out:
            return text
        reasons = (
            f"{reason} ({_percent(weights.share)}, {weights.example})"
            for reason, weights in self.left_out.items()
        )
        return f"{text}: left out are {'; '.join(reasons)}"


def _percent(share: float) -> str:
    """Return a share as a whole percentage that is 100 or 0 only if the share is 1 or 0."""
    whole = round(100 * share)
    if whole == 0 and share > 0:
        return "under 1 %"
    return f"{min(whole, 99 if share < 1 else 100)} %"


def adapter_coverage(model: torch.nn.Module, spec: LoraSpec) -> AdapterCoverage:
    """Return what an adapter covers.

    Args:
        model: without adapters; it may be on the meta device.
        spec: the adapter.

    Raises:
        LoraTargetError: as `lora_targets`.
    """
    targets = lora_targets(model, spec)
    refused = refused_layers(model)
    sizes: dict[str, int] = {}
    examples: dict[str, str] = {}
    counts: dict[str, int] = {}
    adapted = 0
    for name, module, value in _matrices(model):
        layer = name.rpartition(".")[0]
        if layer in targets:
            adapted += value.numel()
            continue
        reason = _reason(layer, module, name, value, refused)
        sizes[reason] = sizes.get(reason, 0) + value.numel()
        counts[reason] = counts.get(reason, 0) + 1
        examples.setdefault(reason, name)
    total = adapted + sum(sizes.values())
    order = sorted(sizes, key=lambda reason: -sizes[reason])
    left_out = {reason: LeftOut(counts[reason], sizes[reason] / total, examples[reason]) for reason in order}
    return AdapterCoverage(adapted / total if total else 1.0, left_out)


def _matrices(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module, torch.Tensor]]:
    """Return the weights of two or more dimensions in a model's layers, each once, with their names
    and modules.
    """
    visited_ids: set[int] = set()
    head = head_of(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) or module is head:
            visited_ids |= {id(value) for value in module.parameters(recurse=False)}
    matrices: list[tuple[str, torch.nn.Module, torch.Tensor]] = []
    for prefix, module in model.named_modules():
        for leaf, value in module.named_parameters(recurse=False):
            if value.ndim >= 2 and not leaf.endswith("bias") and id(value) not in visited_ids:
                visited_ids.add(id(value))
                matrices.append((f"{prefix}.{leaf}", module, value))
    return matrices


def _reason(
    layer: str, module: torch.nn.Module, name: str, value: torch.Tensor, refused: Mapping[str, str]
) -> str:
    if is_linear(module):
        return f"layers {refused[layer]}" if layer in refused else NOT_CHOSEN
    if isinstance(module, torch.nn.modules.conv._ConvNd):
        return CONVOLUTIONS
    if value.ndim >= 3 and is_expert(name):
        return EXPERTS
    return f"parameters of {type(module).__name__}"


def check_adapters_have_effect(model: Any, spec: LoraSpec) -> list[str]:
    """Return one line for each layer of an adapter that has no gradient or no effect on the logits.

    Args:
        model: a small one without adapters, on the CPU; it is changed in place.
        spec: the adapter, without a folder.

    Raises:
        LoraTargetError: as `lora_targets`.
    """
    add_adapters(model, {"probe": spec}, None, seed=0)
    select_adapter(model, "probe")
    parameters = adapter_parameters(model, "probe")
    base = probe_logits(model)
    probe_loss(base).backward()
    problems: list[str] = []
    generator = torch.Generator().manual_seed(0)
    for name, value in parameters.items():
        if ".lora_B." not in name:
            continue
        gradient = value.grad
        if gradient is None or not bool(gradient.any()):
            problems.append(f"{name} gets no gradient")
        with torch.no_grad():
            value.copy_(torch.randn(value.shape, generator=generator))
            if torch.equal(probe_logits(model), base):
                problems.append(f"{name} has no effect on the logits")
            # As before: the next layer is compared with the same logits.
            value.zero_()
    return problems


@dataclass(frozen=True)
class AdapterReport:
    """The checks of adapters on one base model.

    Attributes:
        problems: one line each.
        coverage: of the adapters without a problem of their targets, by name.
    """

    problems: tuple[str, ...]
    coverage: Mapping[str, AdapterCoverage]


def adapter_report(model: torch.nn.Module, specs: Mapping[str, LoraSpec]) -> AdapterReport:
    """Check the targets of adapters on the model itself, and the effect of every layer on its
    miniature.

    Args:
        model: the base, without adapters; it may be on the meta device.
        specs: by adapter name.
    """
    problems: list[str] = []
    coverage: dict[str, AdapterCoverage] = {}
    for name, spec in specs.items():
        try:
            patterns = {name_pattern(layer) for layer in lora_targets(model, spec)}
            coverage[name] = adapter_coverage(model, spec)
        except LoraTargetError as error:
            problems.append(f"adapter '{name}': {error}")
            continue
        small = probe_model(model.config)
        layers = [layer for layer, _ in small.named_modules() if name_pattern(layer) in patterns]
        of_small = replace(spec, target_modules=layers, exclude_modules=None, path=None)
        without_effect = check_adapters_have_effect(small, of_small)
        problems += [f"adapter '{name}': {problem}" for problem in without_effect]
    return AdapterReport(tuple(problems), coverage)
