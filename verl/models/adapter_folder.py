"""The folder of a LoRA adapter in PEFT's format: its shape, read without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from verl.trainer.config.names import LORA_DEFAULTS

ADAPTER_CONFIG = "adapter_config.json"
WEIGHT_FILES = ("adapter_model.safetensors", "adapter_model.bin")
WEIGHT = ".weight"
# Parts of PEFT's LoRA that adapters here lack; a value that turns none of them on is accepted.
UNSUPPORTED = (
    "use_dora", "use_rslora", "use_qalora", "lora_bias", "modules_to_save", "rank_pattern", "alpha_pattern",
    "layers_to_transform",
    "layer_replication", "trainable_token_indices", "alora_invocation_tokens",
)  # fmt: skip
# Initialisations that change the base model as well: the adapter alone does not give the trained
# model.
CHANGES_BASE = ("pissa", "olora", "corda", "loftq")


class AdapterFolderError(ValueError):
    """A folder without an adapter that can be trained; the message says what was found and what is
    expected.
    """


def adapter_shape(model: Any) -> dict[str, Any]:
    """Return the values of the keys in `LORA_DEFAULTS` of a `ModelConfig`, or their defaults."""
    return {
        name: default if getattr(model, name) is None else getattr(model, name)
        for name, default in LORA_DEFAULTS.items()
    }


def read_adapter_shape(path: str) -> dict[str, Any]:
    """Return `lora_rank`, `lora_alpha`, `target_modules` and `exclude_modules` of the adapter in a
    folder.

    Dropout is not returned: adapters here are trained without it.

    Raises:
        AdapterFolderError: no folder with a configuration and weights, or an adapter that is no
            plain LoRA.
    """
    folder = Path(path).expanduser()
    if not (folder / ADAPTER_CONFIG).is_file():
        problem = "which has no" if folder.is_dir() else "which is no folder; expected one with"
        raise AdapterFolderError(f"{problem} {ADAPTER_CONFIG}, as PEFT's save_pretrained writes it")
    if not any((folder / name).is_file() for name in WEIGHT_FILES):
        raise AdapterFolderError(f"which has neither {' nor '.join(WEIGHT_FILES)}")
    try:
        config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterFolderError(f"whose {ADAPTER_CONFIG} cannot be read: {error}") from error
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise AdapterFolderError(f"whose {ADAPTER_CONFIG} has peft_type={kind!r}; expected 'LORA'")
    _check_supported(config)
    targets = _layers(config, "target_modules", required=not config.get("target_parameters"))
    return {
        "lora_rank": _positive(config, "r"),
        "lora_alpha": _positive(config, "lora_alpha"),
        "target_modules": _with_weights(config, targets),
        "exclude_modules": _layers(config, "exclude_modules"),
    }


def _check_supported(config: dict[str, Any]) -> None:
    extras = {name: config[name] for name in UNSUPPORTED if config.get(name)}
    if config.get("bias", "none") != "none":
        extras["bias"] = config["bias"]
    if str(config.get("init_lora_weights")).startswith(CHANGES_BASE):
        extras["init_lora_weights"] = config["init_lora_weights"]
    for name, value in extras.items():
        raise AdapterFolderError(
            f"whose {ADAPTER_CONFIG} has {name}={value!r}, which adapters here do not support: "
            "expected LoRA on linear layers with one rank, and an unchanged base model"
        )


def _with_weights(config: dict[str, Any], layers: str | list[str] | None) -> str | list[str] | None:
    """Return `target_modules` and the layers of the weights in `target_parameters`, as some names
    are written.
    """
    weights = _layers(config, "target_parameters")
    if weights is None:
        return layers
    of_layers = not isinstance(weights, str) and all(name.endswith(WEIGHT) for name in weights)
    if isinstance(layers, str) or isinstance(weights, str) or not of_layers:
        raise AdapterFolderError(
            f"whose {ADAPTER_CONFIG} has target_parameters={weights!r} beside "
            f"target_modules={layers!r}; expected a list of weights of linear layers, each with "
            f"the ending {WEIGHT!r}, and a list of layers"
        )
    return sorted([*(layers or []), *(name.removesuffix(WEIGHT) for name in weights)])


def _positive(config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 1 or value % 1 != 0:
        raise AdapterFolderError(f"whose {ADAPTER_CONFIG} has {name}={value!r}; expected a positive integer")
    return int(value)


def _layers(config: dict[str, Any], name: str, required: bool = False) -> str | list[str] | None:
    """Return a regex, or layer names in a fixed order: PEFT writes a set."""
    value = config.get(name)
    if not value and not required:
        return None
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(isinstance(layer, str) and layer for layer in value):
        return sorted(value)
    raise AdapterFolderError(
        f"whose {ADAPTER_CONFIG} has {name}={value!r}; expected layer names, or one regex"
    )
