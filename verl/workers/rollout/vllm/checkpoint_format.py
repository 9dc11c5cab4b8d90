"""Weights of a transformers model as its published checkpoints have them, which is the form that
vLLM loads.

transformers 5 renames and joins tensors when it loads a checkpoint (the experts of a mixture become
one tensor) and undoes that when it saves one. vLLM reads the names of checkpoints, and those of a
loaded model only where they agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from verl.models.loader import build_causal_lm


class CheckpointFormat:
    """Converts tensors of a model to the form of its checkpoints, bucket by bucket.

    Args:
        path: folder of the model.
        trust_remote_code: run the model's own code.
    """

    def __init__(self, path: str, trust_remote_code: bool) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping

        with torch.device("meta"):
            options: dict[str, Any] = {"attn_implementation": "eager", "trust_remote_code": trust_remote_code}
            model = build_causal_lm(path, dtype=torch.float32, **options)
        changes = get_model_conversion_mapping(model, add_legacy=False)
        self._model = model if changes else None
        joining = [change.reverse_transform() for change in changes if hasattr(change, "operations")]
        self._joins = any(len(change.source_patterns) > 1 for change in joining)
        self._waiting: dict[str, torch.Tensor] = {}

    def add(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return a bucket in the form of a checkpoint; empty where several tensors become one:
        `rest` returns them.
        """
        from transformers.core_model_loading import revert_weight_conversion

        if self._model is None:
            return dict(tensors)
        if self._joins:
            self._waiting |= {name: value.clone() for name, value in tensors.items()}
            return {}
        return dict(revert_weight_conversion(self._model, dict(tensors)))

    def rest(self) -> dict[str, torch.Tensor]:
        """Return, after the last bucket, what `add` has not returned."""
        from transformers.core_model_loading import revert_weight_conversion

        waiting = self._waiting
        self._waiting = {}
        if self._model is None or not waiting:
            return {}
        return dict(revert_weight_conversion(self._model, waiting))
