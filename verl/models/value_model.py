"""The value model: a language model's layers with a scalar head in place of the language-model
head.
"""

from __future__ import annotations

from typing import Any

import torch

from verl.models.loader import ModelLoader, ModelPathError, check_model_path, load_config, reading_model


def load_value_model(
    path: str, *, dtype: torch.dtype, attn_implementation: str, trust_remote_code: bool = False
) -> Any:
    """Load a model as transformers' `AutoModelForTokenClassification` with one label, on the CPU,
    in `eval` mode.

    The head of a language model is replaced by one initialised to 0; a value model keeps its head.

    Raises:
        ModelPathError: the path is no model, its architecture has no such class, or it has a head
            with more than one output.
    """
    path = check_model_path(path)
    from transformers import AutoModelForTokenClassification
    from transformers.utils import logging as transformers_logging

    config = _scalar_config(path, trust_remote_code)
    verbosity = transformers_logging.get_verbosity()
    # a head that the checkpoint does not hold is expected here
    transformers_logging.set_verbosity_error()
    try:
        with reading_model(path):
            model, loading_info = AutoModelForTokenClassification.from_pretrained(
                path,
                config=config,
                dtype=dtype,
                attn_implementation=attn_implementation,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    finally:
        transformers_logging.set_verbosity(verbosity)
    odd = {name for name, *_ in loading_info["mismatched_keys"]} | {
        n for n in loading_info["missing_keys"] if _in_layers(model, n)
    }
    if odd:
        raise ModelPathError(
            f"model {path!r} cannot initialise a critic: {sorted(odd)[:4]} are missing or of another shape"
        )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in loading_info["missing_keys"]:
                parameter.zero_()
    return _finished(model)


def build_value_model(
    path: str, *, dtype: torch.dtype, attn_implementation: str, trust_remote_code: bool = False
) -> Any:
    """Return the model of `load_value_model` with uninitialised, untouched parameters. Raises
    ModelPathError as that does.
    """
    path = check_model_path(path)
    from transformers import AutoModelForTokenClassification
    from transformers.initialization import no_init_weights

    config = _scalar_config(path, trust_remote_code)
    with no_init_weights():
        model = AutoModelForTokenClassification.from_config(
            config, dtype=dtype, attn_implementation=attn_implementation, trust_remote_code=trust_remote_code
        )
    model.tie_weights()
    return _finished(model)


VALUE_MODEL = ModelLoader(load_value_model, build_value_model)


def check_value_model(path: str, trust_remote_code: bool = False) -> None:
    """Raise ModelPathError when no value model can be made from the model at `path`; only its
    configuration is loaded.
    """
    _scalar_config(check_model_path(path), trust_remote_code)


def _scalar_config(path: str, trust_remote_code: bool) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

    config = load_config(path, trust_remote_code=trust_remote_code)
    custom = "AutoModelForTokenClassification" in (getattr(config, "auto_map", None) or {})
    if not custom and type(config) not in AutoModelForCausalLM._model_mapping:
        raise ModelPathError(
            f"model {path!r} cannot be a critic: transformers has no causal language model of its type "
            f"{config.model_type!r}, and a value must not depend on later tokens; set critic.model.path to "
            "a model of another type with the same tokenizer, or use an estimator without a critic"
        )
    if not custom and type(config) not in AutoModelForTokenClassification._model_mapping:
        raise ModelPathError(
            f"model {path!r} cannot be a critic: transformers has no token-classification class "
            f"for model type {config.model_type!r}; set critic.model.path to a model of another "
            "type with the same tokenizer, or use an estimator without a critic"
        )
    config.num_labels = 1
    config.classifier_dropout = 0.0
    return config


def _finished(model: Any) -> Any:
    """Copy the head's output, because FSDP2 warns of modules that return a view, as a head with a
    bias does; return the model.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.out_features == 1:
            module.register_forward_hook(lambda module, inputs, output: output.clone())
    return model.eval()


def _in_layers(model: Any, name: str) -> bool:
    return name.startswith(f"{model.base_model_prefix}.")
