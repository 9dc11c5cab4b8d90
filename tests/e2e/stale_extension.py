"""vLLM's worker extension with a fault: an update loses some tensors, and nothing is said.

vLLM gives tensors that are updated new memory. What was there before may be old weights, as in
`StaleExtension`, or no numbers, as in `EmptyExtension`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from verl.workers.rollout.vllm.extension import EngineExtension


class LossyExtension(EngineExtension):
    """Loads in place of the projections of queries in the last layer what `in_place` makes of them."""

    in_place: float

    def verl_load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load some of the tensors."""
        super().verl_load(
            {
                name: torch.full_like(value, self.in_place) if "layers.1.self_attn.q_proj" in name else value
                for name, value in tensors.items()
            }
        )


class StaleExtension(LossyExtension):
    """Numbers that nobody sent."""

    in_place = 0.0


class EmptyExtension(LossyExtension):
    """No numbers."""

    in_place = float("nan")
