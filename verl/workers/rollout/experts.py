"""Experts of a mixture, computed so that a token's result does not depend on the tokens beside it.

The number of tokens of an expert is a matter of the whole batch, and matrix kernels treat rows
differently by their number. So the tokens of every expert are padded to a multiple of `MIN_ROWS`,
as the rows of a decode step are, and the results of a token's experts are added up in the order of
its own choice.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel
from transformers.integrations.moe import ExpertsInterface

EXPERTS = "verl_padded"
# below this, and between its multiples, matrix kernels treat rows differently by their place in the
# batch
MIN_ROWS = 8


def padded_experts(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Compute the experts of transformers' interface: hidden_states [tokens, width], index and
    weights [tokens, experts of a token].
    """
    tokens, top_k = top_k_index.shape
    pairs = top_k_index.reshape(-1)
    outputs = hidden_states.new_zeros(tokens * top_k, hidden_states.shape[-1])
    counts = torch.bincount(pairs, minlength=self.num_experts).tolist()[: self.num_experts]
    groups = pairs.argsort(stable=True)[: sum(counts)].split(counts)
    for expert, group in enumerate(groups):
        if len(group):
            padded = F.pad(group, (0, -len(group) % MIN_ROWS))
            outputs[group] = _expert(self, hidden_states[padded // top_k], expert)[: len(group)].to(
                outputs.dtype
            )
    weighted = outputs.view(tokens, top_k, -1) * top_k_weights.reshape(tokens, top_k, 1)
    total = weighted[:, 0]
    for place in range(1, top_k):
        total = total + weighted[:, place]
    return total.to(hidden_states.dtype)


def _expert(experts: Any, states: torch.Tensor, index: int) -> torch.Tensor:
    """Return one expert's output for every row."""
    up = "gate_up_proj" if experts.has_gate else "up_proj"
    states = _linear(experts, states, up, index)
    states = experts._apply_gate(states) if experts.has_gate else experts.act_fn(states)
    return _linear(experts, states, "down_proj", index)


def _linear(experts: Any, states: torch.Tensor, name: str, index: int) -> torch.Tensor:
    weight = getattr(experts, name)[index]
    bias = getattr(experts, f"{name}_bias")[index] if experts.has_bias else None
    return F.linear(states, weight.T if experts.is_transposed else weight, bias)


def use_padded_experts(model: PreTrainedModel) -> None:
    """Switch the experts of a model on a CPU to `padded_experts`, where they are called by
    transformers' interface.
    """
    if next(model.parameters()).device.type == "cpu":
        ExpertsInterface.register(EXPERTS, padded_experts)
        model.set_experts_implementation(EXPERTS)
