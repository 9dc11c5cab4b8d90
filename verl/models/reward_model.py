"""Load a Hugging Face reward model: a sequence classifier with one output."""

from __future__ import annotations

from typing import Any

import torch

from verl.models.loader import ModelPathError, check_model_path, reading_model


def check_sequence_classifier(path: str, max_length: int, *, trust_remote_code: bool = False) -> None:
    """Check by its configuration alone that a model gives one score for inputs of `max_length` tokens.

    Raises:
        ModelPathError: the path is no model, the model is no sequence classifier, has several outputs, or reads fewer tokens.
    """
    path = check_model_path(path)
    from transformers import AutoConfig

    with reading_model(path):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    named = getattr(config, "architectures", None) or []
    custom = "AutoModelForSequenceClassification" in (getattr(config, "auto_map", None) or {})
    if named and not custom and not any(name.endswith("ForSequenceClassification") for name in named):
        raise ModelPathError(
            f"model {path!r} is {', '.join(named)}, whose checkpoint has no head for scores; expected a ...ForSequenceClassification "
            "(a reward model), or reward.model.kind=judge for a language model"
        )
    if config.num_labels != 1:
        raise ModelPathError(f"model {path!r} has {config.num_labels} outputs; expected a reward model with one (num_labels=1)")
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and max_length > longest:
        raise ModelPathError(f"model {path!r} reads at most {longest} tokens, fewer than reward.model.max_length={max_length}")


def load_sequence_classifier(path: str, *, dtype: torch.dtype, trust_remote_code: bool = False) -> Any:
    """Load the model on the CPU, in `eval` mode. Raises ModelPathError if its checkpoint lacks weights, such as those of the head."""
    path = check_model_path(path)
    from transformers import AutoModelForSequenceClassification

    with reading_model(path):
        model, found = AutoModelForSequenceClassification.from_pretrained(
            path, dtype=dtype, attn_implementation="sdpa", trust_remote_code=trust_remote_code, output_loading_info=True
        )
    if found["missing_keys"]:
        raise ModelPathError(f"model {path!r} is no reward model: its checkpoint lacks {sorted(found['missing_keys'])[:4]}")
    return model.eval()
