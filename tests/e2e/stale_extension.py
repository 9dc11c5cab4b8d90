"""vLLM's worker extension with a fault: an update loses some tensors, and nothing is said."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from verl.workers.rollout.vllm.extension import EngineExtension


class StaleExtension(EngineExtension):
    """Loads everything but the projections of queries in the last layer."""

    def verl_load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load some of the tensors."""
        super().verl_load(
            {name: value for name, value in tensors.items() if "layers.1.self_attn.q_proj" not in name}
        )
