"""Configurations of every causal language model of the installed transformers, in the sizes of their classes'
defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any


def config_classes() -> list[type]:
    """Return the configuration classes of `MODEL_FOR_CAUSAL_LM_MAPPING`, each once."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return list(dict.fromkeys(MODEL_FOR_CAUSAL_LM_MAPPING.keys()))


def variants(config_class: type) -> Iterator[Any]:
    """Yield configurations of a class that might be usable: its defaults as a decoder, and then with what the
    defaults leave out.

    Some classes have no usable defaults: `head_dim` or the number of experts is None, or no layer attends.
    """
    names = set(inspect.signature(config_class).parameters)
    causal = {"is_decoder": True} if "is_decoder" in names else {}
    default = config_class(**causal)
    yield default
    fields = {name: value for name, value in _left_out(default).items() if not getattr(default, name, True)}
    if fields:
        yield config_class(**causal, **fields)


def _left_out(config: Any) -> dict[str, Any]:
    """Return values for fields that defaults leave out."""
    heads = getattr(config, "num_attention_heads", None)
    hidden = getattr(config, "hidden_size", None)
    layers = getattr(config, "num_hidden_layers", None) or 4
    fields: dict[str, Any] = {
        "n_routed_experts": 64,
        "n_shared_experts": 1,
        "num_experts": 64,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1024,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "default_language": next(iter(getattr(config, "languages", ())), None),
        "layer_types": ["conv" if index % 4 else "full_attention" for index in range(layers)],
    }
    types = getattr(config, "layer_types", None)
    if types and not getattr(config, "rope_parameters", None):
        fields["rope_parameters"] = {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in types}
    if isinstance(heads, int) and isinstance(hidden, int):
        fields["head_dim"] = hidden // heads
        fields["num_key_value_heads"] = heads
    return fields
