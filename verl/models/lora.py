"""LoRA adapters on a frozen base, made by PEFT: several on one model, of which at most one is
active at a time.

An adapter's initial weights are a function of the run's seed and its own name, independent of other
adapters and of its placement.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from verl.models.adapter_folder import adapter_shape
from verl.models.adapter_layers import PeftForm, is_linear, is_transposed, peft_form, refused_layers
from verl.models.adapter_layers import layer_size as layer_size

ALL_LINEAR = "all-linear"
PARTS = ("lora_A", "lora_B")
PEFT_PREFIX = "base_model.model."
# PEFT keeps adapters in module dicts, where names such as `train` are reserved.
KEY_PREFIX = "policy_"


class LoraTargetError(ValueError):
    """An adapter that does not fit the model; the message begins with the wrong key, as in
    `target_modules=...`.
    """


@dataclass(frozen=True)
class LoraSpec:
    """Shape of an adapter.

    Attributes:
        rank: rows of `lora_A`.
        alpha: the adapter's output is scaled by `alpha / rank`.
        target_modules: `all-linear`, a regex over whole layer names, or layer names or suffixes of
            them; `all-linear` are the linear layers without the head and without those that cannot
            have an adapter.
        exclude_modules: target layers to leave out; a regex or names.
        path: folder of a PEFT adapter of this shape with the initial weights; None for new ones.
    """

    rank: int
    alpha: int
    target_modules: str | Sequence[str] = ALL_LINEAR
    exclude_modules: str | Sequence[str] | None = None
    path: str | None = None

    @property
    def scaling(self) -> float:
        """Factor of the adapter's output."""
        return self.alpha / self.rank


def lora_spec(model: Any) -> LoraSpec:
    """Return the adapter that the keys of a `ModelConfig` describe."""
    shape = adapter_shape(model)
    return LoraSpec(
        shape["lora_rank"],
        shape["lora_alpha"],
        shape["target_modules"],
        shape["exclude_modules"],
        model.lora_adapter_path,
    )


def lora_targets(model: torch.nn.Module, spec: LoraSpec) -> dict[str, torch.nn.Module]:
    """Return the layers of a model without adapters that get one, by name, in the model's order;
    see `layer_size`.

    Raises:
        LoraTargetError: a target that no layer matches, a target that is not a linear layer or
            cannot have an adapter, or exclusions that leave no layer.
    """
    layers = {name: module for name, module in model.named_modules() if name}
    linear = {name: module for name, module in layers.items() if is_linear(module)}
    refused = refused_layers(model)
    ends = ", ".join(sorted({name.rsplit(".", 1)[-1] for name in linear if name not in refused}))
    if spec.target_modules == ALL_LINEAR:
        head = head_of(model)
        usable = [name for name, module in linear.items() if module is not head and name not in refused]
        if not usable:
            raise LoraTargetError(
                f"target_modules={ALL_LINEAR}: no layer of the model can have an adapter; {_reasons(refused)}"
            )
        target_names = _matching(usable, ".*", spec.exclude_modules)
    else:
        for target in _unmatched(layers, spec.target_modules):
            raise LoraTargetError(
                f"target_modules={spec.target_modules}: the model has no layer {target!r}"
                f"{_parameter_note(model, target)}; its linear layers are {ends}"
            )
        target_names = _matching(layers, spec.target_modules, spec.exclude_modules)
    if not target_names:
        raise LoraTargetError(
            f"exclude_modules={spec.exclude_modules} leaves no layer of target_modules={spec.target_modules}"
        )
    for name in target_names:
        if name not in linear:
            raise LoraTargetError(
                f"target_modules={spec.target_modules}: layer {name!r} is a "
                f"{type(layers[name]).__name__}; expected linear layers, here {ends}"
            )
        if name in refused:
            raise LoraTargetError(
                f"target_modules={spec.target_modules}: layer {name!r} cannot have an adapter, as "
                f"one of the layers {refused[name]}; leave it out, also with exclude_modules"
            )
    return {name: linear[name] for name in target_names}


def head_of(model: torch.nn.Module) -> torch.nn.Module | None:
    """Return the layer that gives the logits, if the model is one of transformers."""
    from transformers import PreTrainedModel

    return model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None


def _unmatched(layers: Iterable[str], targets: str | Sequence[str]) -> list[str]:
    """Return the targets that match no layer: the regex, or names that neither are a layer nor end
    one after a dot.
    """
    if isinstance(targets, str):
        return [] if _matching(layers, targets) else [targets]
    ends = {
        ".".join(pieces[start:])
        for pieces in (name.split(".") for name in layers)
        for start in range(len(pieces))
    }
    return [target for target in targets if target not in ends]


def _reasons(refused: Mapping[str, str]) -> str:
    """Return each reason once, with the first layer that has it."""
    examples: dict[str, str] = {}
    for name, reason in refused.items():
        examples.setdefault(reason, name)
    reasons = [f"{name} is one of the layers {reason}" for reason, name in examples.items()]
    return "; ".join(reasons) or "it has no linear layers"


def _parameter_note(model: torch.nn.Module, target: str) -> str:
    """Return a note on a target that is the name of a parameter instead of a layer, or an empty
    string.
    """
    for name, value in model.named_parameters():
        if name == target or name.endswith(f".{target}"):
            return f", {name} is a parameter of {value.ndim} dimensions"
    return ""


def _matching(
    layers: Iterable[str], targets: str | Sequence[str], exclude: str | Sequence[str] | None = None
) -> list[str]:
    """Return the layers to which PEFT would add an adapter."""
    from peft import LoraConfig
    from peft.tuners.tuners_utils import check_target_module_exists

    config = LoraConfig(
        target_modules=targets if isinstance(targets, str) else list(targets),
        exclude_modules=exclude if exclude is None or isinstance(exclude, str) else list(exclude),
    )
    try:
        return [name for name in layers if check_target_module_exists(config, name)]
    except re.error as error:
        raise LoraTargetError(
            f"target_modules={targets}, exclude_modules={exclude}: invalid regular expression: {error}"
        ) from error


def lora_size(model: torch.nn.Module, spec: LoraSpec) -> int:
    """Return the number of parameters of one adapter. Raises as `lora_targets` does."""
    return sum(spec.rank * sum(layer_size(layer)) for layer in lora_targets(model, spec).values())


def adapter_shapes(targets: Mapping[str, torch.nn.Module], rank: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of an adapter on these layers, by their names in PEFT's
    files.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, linear in targets.items():
        inputs, outputs = layer_size(linear)
        shapes[tensor_name(layer, "lora_A")] = (rank, inputs)
        shapes[tensor_name(layer, "lora_B")] = (outputs, rank)
    return shapes


def tensor_name(layer: str, part: str) -> str:
    """Return the name of a part of `PARTS` of a layer in PEFT's files."""
    return f"{PEFT_PREFIX}{layer}.{part}.weight"


def read_adapter(path: str | Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a folder's adapter, on the CPU, by their names in PEFT's files. Raise
    LoraTargetError for files that cannot be read.
    """
    from peft import load_peft_weights

    try:
        weights: dict[str, torch.Tensor] = load_peft_weights(str(path), device="cpu")
    except Exception as error:
        # a damaged file raises errors of several libraries
        raise LoraTargetError(f"lora_adapter_path={path}: its weights cannot be read: {error}") from error
    return weights


def initial_weights(model: torch.nn.Module, spec: LoraSpec) -> dict[str, torch.Tensor]:
    """Return the tensors of the adapter in `spec.path`, on the CPU, by their names in PEFT's files;
    {} without a path.

    Args:
        model: without adapters; it may be on the meta device.
        spec: the adapter.

    Raises:
        LoraTargetError: files that cannot be read, or an adapter of another model: tensors that are
            missing, of another shape, or of layers without an adapter.
    """
    if spec.path is None:
        return {}
    weights = read_adapter(spec.path)
    expected = adapter_shapes(lora_targets(model, spec), spec.rank)
    for name in sorted(expected.keys() | weights.keys()):
        here = expected.get(name)
        there = tuple(weights[name].shape) if name in weights else None
        if here != there:
            raise LoraTargetError(
                f"lora_adapter_path={spec.path}: the adapter does not fit the model: {name} has "
                f"the shape {there or 'of no tensor'} there, expected {here or 'no such tensor'}"
            )
    return weights


def peft_config(model: torch.nn.Module, spec: LoraSpec, base: str | None) -> Any:
    """Return the `LoraConfig` with which plain PEFT puts an adapter on the layers of
    `lora_targets`, and on no others.

    Layers are named by suffixes if these are unambiguous, and by their weights in
    `target_parameters` where PEFT would replace their names, see `peft_form`: the adapter's tensors
    have the same names and shapes.
    """
    targets = lora_targets(model, spec)
    model_type = str(getattr(getattr(model, "config", None), "model_type", ""))
    forms = {name: peft_form(model_type, name.rsplit(".", 1)[-1]) for name in targets}
    config = _lora_config(model, spec, [name for name, form in forms.items() if form is PeftForm.MODULE])
    weights = [f"{name}.weight" for name, form in forms.items() if form is PeftForm.PARAMETER]
    config.target_parameters = weights or None
    config.fan_in_fan_out = any(is_transposed(layer) for layer in targets.values())
    config.base_model_name_or_path = base
    return config


def _lora_config(model: torch.nn.Module, spec: LoraSpec, names: Sequence[str]) -> Any:
    """Return a `LoraConfig` with these layers as `target_modules`."""
    from peft import LoraConfig

    ends = sorted({name.rsplit(".", 1)[-1] for name in names})
    exact = _matching([name for name, _ in model.named_modules() if name], ends) == list(names)
    return LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,
        target_modules=ends if exact else list(names),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )


def add_adapters(model: Any, specs: Mapping[str, LoraSpec], base: str | None, seed: int) -> Any:
    """Freeze a model, add adapters in fp32, and return it; all are trainable, none is active.

    New adapters do not change the model's output; others start from the weights in the folder
    `LoraSpec.path`.

    Args:
        model: without adapters, not yet sharded; it is changed in place.
        specs: by adapter name.
        base: name of the base model in the adapters' configs.
        seed: with the adapter's name, determines the adapter's initial weights.

    Raises:
        LoraTargetError: an adapter that does not fit the model.
    """
    from peft.functional import cast_adapter_dtype

    model.requires_grad_(False)
    configs = {name: peft_config(model, spec, base) for name, spec in specs.items()}
    targets = {name: lora_targets(model, spec) for name, spec in specs.items()}
    weights = {name: initial_weights(model, spec) for name, spec in specs.items()}
    for name, spec in specs.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(crc32(repr((seed, name)).encode()))
            _inject(model, spec, targets[name], KEY_PREFIX + name)
        cast_adapter_dtype(model, KEY_PREFIX + name)
        parameters = adapter_parameters(model, name)
        with torch.no_grad():
            for key, value in weights[name].items():
                parameters[key].copy_(value)
    model.peft_config = {KEY_PREFIX + name: config for name, config in configs.items()}
    layers = adapter_layers(model)
    for layer in layers:
        for part in PARTS:
            # Adding an adapter made those before it inactive, and PEFT then trains them no more.
            getattr(layer, part).requires_grad_(True)
    activate(layers, None)
    return model


def _inject(
    model: torch.nn.Module, spec: LoraSpec, targets: Mapping[str, torch.nn.Module], name: str
) -> None:
    """Put a new adapter on exactly these layers, which may have others already."""
    from peft.functional import inject_adapter_in_model

    # PEFT replaces and refuses names by the type in a model's configuration; a module with the same
    # children has none.
    holder = torch.nn.Module()
    for child, module in model.named_children():
        holder.add_module(child, module)
    config = _lora_config(holder, spec, list(targets))
    config.fan_in_fan_out = any(is_transposed(layer) for layer in targets.values())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
        inject_adapter_in_model(config, holder, adapter_name=name)
    for child, module in holder.named_children():
        setattr(model, child, module)


def adapter_layers(model: torch.nn.Module) -> list[Any]:
    """Return PEFT's layers of a model with adapters, in its order."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [module for module in model.modules() if isinstance(module, BaseTunerLayer)]


def select_adapter(model: torch.nn.Module, name: str | None) -> None:
    """Activate one adapter and deactivate the others, or deactivate all."""
    activate(adapter_layers(model), name)


def activate(layers: Iterable[Any], name: str | None) -> None:
    """As `select_adapter`, for the result of `adapter_layers`, which a switch need not search for.

    PEFT's own methods would also walk all parameters to set `requires_grad`. All adapters keep
    requiring gradients, because FSDP reads that only once, before the first forward pass.
    """
    for layer in layers:
        layer._disable_adapters = name is None
        if name is not None:
            layer._active_adapter = [KEY_PREFIX + name]


def adapter_parameters(model: torch.nn.Module, name: str) -> dict[str, torch.nn.Parameter]:
    """Return the parameters of one adapter by their names in PEFT's files, in the model's order."""
    parameters = dict(model.named_parameters())
    return {peft_name: parameters[key] for key, peft_name in peft_names(parameters, name).items()}


def peft_names(keys: Iterable[str], name: str) -> dict[str, str]:
    """Return the names of one adapter's parameters in PEFT's files, by their names in a model with
    adapters.
    """
    middle = f".{KEY_PREFIX}{name}."
    adapter_keys = [key for key in keys if middle in key and any(f".{part}." in key for part in PARTS)]
    return {key: PEFT_PREFIX + key.replace(middle, ".") for key in adapter_keys}


def save_adapter(model: Any, name: str, tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Write an adapter of a model that `add_adapters` returned; see `write_adapter`."""
    write_adapter(model.peft_config[KEY_PREFIX + name], tensors, folder)


def write_adapter(adapter: Any, tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Write an adapter in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`.

    Args:
        adapter: its `LoraConfig`.
        tensors: unsharded, on the CPU, by the names of `adapter_parameters`.
        folder: created if it does not exist.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = copy.copy(adapter)
    config.target_modules = sorted(config.target_modules)
    config.target_parameters = sorted(config.target_parameters) if config.target_parameters else None
    config.save_pretrained(folder)
    save_file(dict(tensors), folder / "adapter_model.safetensors", metadata={"format": "pt"})
