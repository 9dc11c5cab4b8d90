"""Key-value cache with one fixed slot per reply, and the attention that reads it.

The cache has two modes. In a prefill the rows are prompts: attention is causal among the row's own tokens, and the keys and
values are copied into the slots set by `begin_prefill`. In a decode step row i is slot i: its new key and value are written at
the slot's own position and attention reads the slot up to `length`, a multiple of `KV_BLOCK`. Positions after a slot's own
are masked; appending masked blocks changes no bit of the result, so a row does not depend on the lengths of other rows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache

from verl.protocol.generate import RolloutError

KV_BLOCK = 64
ATTENTION = "verl_slots"


def round_up(n: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least n."""
    return -(-n // multiple) * multiple


class SlotCache(Cache):
    """Keys and values of all slots; per layer two tensors [slots, kv_heads, length, head_dim] that grow when needed."""

    def __init__(self, config: PretrainedConfig, slots: int, max_length: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(layers=[])
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._shape = (slots, heads, head_dim)
        self._num_layers = config.num_hidden_layers
        self._max_length = round_up(max_length, KV_BLOCK)
        self._dtype, self._device = dtype, device
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._all_rows = self._rows = self._positions = torch.arange(slots, device=device)
        self._prefill_slots: torch.Tensor | None = None
        self._length = 0

    @property
    def allocated(self) -> int:
        """Number of allocated positions per slot."""
        return self._keys[0].shape[2] if self._keys else 0

    def reserve(self, length: int) -> None:
        """Allocate `length` positions per slot (at most the maximum), keeping stored values; at least doubles, to keep copies rare."""
        length = min(length, self._max_length)
        if length <= self.allocated:
            return
        old = self.allocated
        room = min(self._max_length, max(round_up(length, KV_BLOCK), 2 * old))
        slots, heads, head_dim = self._shape
        for tensors in (self._keys, self._values):
            grown = []
            for layer in range(self._num_layers):
                tensor = torch.zeros(slots, heads, room, head_dim, dtype=self._dtype, device=self._device)
                if tensors:
                    tensor[:, :, :old] = tensors[layer]
                grown.append(tensor)
            tensors[:] = grown

    def release(self) -> None:
        """Free all memory and stored values."""
        self._keys, self._values = [], []

    def begin_prefill(self, slots: torch.Tensor) -> None:
        """Store the first `len(slots)` rows of the next forward pass in these slots."""
        self._prefill_slots = slots

    def begin_decode(self, positions: torch.Tensor, length: int) -> None:
        """In the next forward pass, write the first `len(positions)` slots at `positions` and attend to the first `length` positions."""
        self._prefill_slots = None
        self._rows, self._positions, self._length = self._all_rows[: len(positions)], positions, length

    def copy(self, source: torch.Tensor, target: torch.Tensor, length: int) -> None:
        """Copy the first `length` positions of the source slots into the target slots."""
        for tensors in (self._keys, self._values):
            for tensor in tensors:
                tensor[target, :, :length] = tensor[source, :, :length]

    def clear(self, slots: torch.Tensor) -> None:
        """Zero the slots, so that a non-finite value cannot reach a later reply through a masked position."""
        for tensors in (self._keys, self._values):
            for tensor in tensors:
                tensor[slots] = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store one layer's new keys and values and return those that attention reads."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        if self._prefill_slots is not None:
            count, length = len(self._prefill_slots), min(key_states.shape[2], self.allocated)
            keys[self._prefill_slots, :, :length] = key_states[:count, :, :length]
            values[self._prefill_slots, :, :length] = value_states[:count, :, :length]
            return key_states, value_states
        keys[self._rows, :, self._positions] = key_states[:, :, 0]
        values[self._rows, :, self._positions] = value_states[:, :, 0]
        rows = len(self._positions)
        return keys[:rows, :, : self._length], values[:rows, :, : self._length]


def slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute the attention of a prefill (no mask: causal) or of a decode step (additive mask [slots, 1, 1, length]).

    query [rows, heads, tokens, head_dim], key and value [rows, kv_heads, length, head_dim]; returns
    [rows, tokens, heads, head_dim]. Query heads that share a key head are folded, so keys are never repeated.
    """
    rows, heads, _, head_dim = query.shape
    scale = head_dim**-0.5 if scaling is None else scaling
    if attention_mask is None:
        grouped = heads != key.shape[1]
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=grouped)
        return out.transpose(1, 2).contiguous(), None
    folded = query.reshape(rows, key.shape[1], heads // key.shape[1], head_dim)
    attend = attend_in_steps if query.device.type == "cpu" else attend_fused
    return attend(folded, key, value, attention_mask, scale).reshape(rows, 1, heads, value.shape[-1]), None


def attend_in_steps(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """Compute attention by two matrix products; on a CPU faster than the fused kernel, with the same bits at every length."""
    scores = torch.matmul(query, key.transpose(-1, -2)).float().mul_(scale).add_(mask)
    return torch.matmul(scores.softmax(-1).to(value.dtype), value)


def attend_fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """Compute attention by torch's fused kernel, which keeps scores in fp32 when the inputs are bf16."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask.to(query.dtype).expand(-1, -1, query.shape[2], -1), scale=scale)


def use_slot_attention(model: PreTrainedModel) -> None:
    """Switch a Hugging Face causal LM to `slot_attention`.

    Raises `RolloutError` for models whose attention is not plain full attention (sliding windows, sinks, soft-capping).
    """
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if getattr(config, "layer_types", None) is None and getattr(config, "sliding_window", None):
        kinds.add("sliding_attention")
    if not getattr(model, "_supports_attention_backend", False):
        kinds.add("an attention that cannot be replaced")
    if getattr(config, "attn_logit_softcapping", None):
        kinds.add("soft-capped logits")
    if kinds:
        found = ", ".join(sorted(kinds))
        raise RolloutError(f"the hf engine serves full attention only; {type(model).__name__} has {found}; use another rollout.name")
    AttentionInterface.register(ATTENTION, slot_attention)
    model.set_attn_implementation(ATTENTION)
