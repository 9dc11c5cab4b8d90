"""Key-value cache with one fixed slot per reply, and the attention that reads it.

The cache has two modes. In a prefill the rows are prompts: attention is causal among the row's own
tokens, and the keys and values are copied into the slots set by `begin_prefill`. In a decode step
row i is slot i: its new key and value are written at the slot's own position and attention reads
the slot up to `length`, a multiple of `KV_BLOCK`. Positions after a slot's own are masked;
appending masked blocks changes no bit of the result, so a row does not depend on the lengths of
other rows.

Which earlier tokens a layer attends to is decided by the mask that the model itself asks
transformers for: `slot_mask` is registered as the function that makes it. A layer whose mask
reaches back over `reach` tokens (a sliding window, a chunk) holds that many, rounded up to
`KV_BLOCK`, in a ring: position p is in column p modulo the size of the ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.masking_utils import causal_mask_function

from verl.protocol.generate import RolloutError

KV_BLOCK = 64
PREFILL_BLOCK = (
    256  # queries of a prompt that are computed together under other masks than the plain causal one
)
ATTENTION = "verl_slots"

MaskFunction = Callable[[Any, Any, Any, Any], Any]


def round_up(n: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least n."""
    return -(-n // multiple) * multiple


@dataclass(frozen=True)
class Block:
    """Some queries of a prompt, from `start` to before `end`, and the keys that they may attend to,
    from `first` to before `end`.

    `hidden` [queries, keys] is True where a key is not attended to.
    """

    start: int
    end: int
    first: int
    hidden: torch.Tensor


@dataclass(frozen=True)
class SlotMask:
    """The mask of the layers of one kind in one forward pass.

    Attributes:
        reach: number of tokens, up to a token's own, that it can attend to; None without a limit.
        blocks: of a prefill; empty for a plain causal mask.
        added: of a decode step: 0 or -inf, [slots, 1, 1, columns].
    """

    reach: int | None
    blocks: tuple[Block, ...] = ()
    added: torch.Tensor | None = None


class _Layer:
    """Keys and values of one layer, [slots, heads, columns, channels] each, and those of the
    prompts if the layer is a ring.
    """

    def __init__(self, ring: int | None, keep_prompts: bool) -> None:
        self.ring = ring
        # Without a ring no later position overwrites a prompt.
        self._keep_prompts = keep_prompts and ring is not None
        self.tensors: list[torch.Tensor] = []
        self.prompts: list[torch.Tensor] = []

    def columns(self, length: int) -> int:
        """Return the number of columns that hold `length` positions."""
        return length if self.ring is None else min(length, self.ring)

    def grow(
        self, shapes: list[tuple[int, ...]], length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate columns for `length` positions of tensors of these shapes [slots, heads, _,
        channels], keeping stored values.
        """
        for tensors in (self.tensors, self.prompts)[: 1 + self._keep_prompts]:
            grown = []
            for i, (slots, heads, _, channels) in enumerate(shapes):
                tensor = torch.zeros(slots, heads, self.columns(length), channels, dtype=dtype, device=device)
                if tensors:
                    tensor[:, :, : tensors[i].shape[2]] = tensors[i]
                grown.append(tensor)
            tensors[:] = grown

    def store(self, states: tuple[torch.Tensor, ...], slots: torch.Tensor, last: torch.Tensor) -> None:
        """Copy the first rows of the states of prompts, whose last positions are `last`, into the
        slots.
        """
        for i, state in enumerate(states):
            columns = self.tensors[i].shape[2]
            count = min(state.shape[2], columns)
            state = state[: len(slots)]
            if self.ring is not None and state.shape[2] > columns:
                # Of a prompt longer than the ring its last positions remain, each in its own
                # column.
                place = torch.arange(columns, device=state.device)
                # Columns that a shorter prompt does not reach get any value: the mask hides them.
                position = (last[:, None] - (last[:, None] - place) % columns).clamp_min(0)
                state = state.gather(
                    2, position[:, None, :, None].expand(-1, state.shape[1], -1, state.shape[3])
                )
            for tensors in (self.tensors, self.prompts)[: 1 + self._keep_prompts]:
                tensors[i][slots, :, :count] = state[:, :, :count].to(tensors[i].dtype)

    def append(
        self, states: tuple[torch.Tensor, ...], rows: torch.Tensor, positions: torch.Tensor, length: int
    ) -> list[torch.Tensor]:
        """Write one position of every row and return the columns that attention reads."""
        column = positions if self.ring is None else positions % self.ring
        for tensor, state in zip(self.tensors, states, strict=True):
            tensor[rows, :, column] = state[:, :, 0].to(tensor.dtype)
        return [tensor[: len(rows), :, : self.columns(length)] for tensor in self.tensors]

    def copy(self, source: torch.Tensor, target: torch.Tensor, length: int) -> None:
        """Copy the prompts of the source slots, at most `length` long, into the target slots."""
        count = self.columns(length)
        for i, tensor in enumerate(self.tensors):
            prompts = self.prompts[i] if self._keep_prompts else tensor
            tensor[target, :, :count] = prompts[source, :, :count]
            if self._keep_prompts:
                prompts[target, :, :count] = prompts[source, :, :count]

    def restore(self, slots: torch.Tensor) -> None:
        """Bring the prompts of slots back that later positions have overwritten."""
        if self._keep_prompts:
            for tensor, prompts in zip(self.tensors, self.prompts, strict=True):
                tensor[slots] = prompts[slots]

    def clear(self, slots: torch.Tensor) -> None:
        """Zero the slots."""
        for tensor in (*self.tensors, *self.prompts):
            tensor[slots] = 0


class SlotCache(Cache):
    """Keys and values of all slots; tensors are allocated when a layer first stores something, by
    the shapes that it stores.
    """

    def __init__(
        self, config: PretrainedConfig, slots: int, max_length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(layers=[])
        self._config = config
        self._slots = slots
        self._max_length = round_up(max_length, KV_BLOCK)
        self._dtype = dtype
        self._device = device
        self._stored: dict[int, _Layer] = {}
        self._shapes: dict[int, list[tuple[int, ...]]] = {}
        self._room = 0
        self._all_rows = torch.arange(slots, device=device)
        self._places = torch.arange(self._max_length, device=device)
        self._zero = torch.zeros((), dtype=torch.long, device=device)
        self._positions = self._all_rows
        self._length = 0
        self._last: torch.Tensor | None = None
        self._prefill_slots: torch.Tensor | None = None
        self._pending: tuple[int, tuple[torch.Tensor, ...]] | None = None

    @property
    def allocated(self) -> int:
        """Number of allocated positions per slot; rings hold fewer."""
        return self._room

    @property
    def bytes(self) -> int:
        """Number of bytes of all tensors."""
        layers = self._stored.values()
        return sum(tensor.nbytes for layer in layers for tensor in (*layer.tensors, *layer.prompts))

    @property
    def prefilling(self) -> bool:
        """Whether the forward pass is a prefill."""
        return self._prefill_slots is not None

    def reserve(self, length: int) -> None:
        """Allocate `length` positions per slot (at most the maximum), keeping stored values; at
        least doubles, to keep copies rare.
        """
        self.settle(None)
        length = min(length, self._max_length)
        if length <= self._room:
            return
        self._room = min(self._max_length, max(round_up(length, KV_BLOCK), 2 * self._room))
        for index, layer in self._stored.items():
            layer.grow(self._shapes[index], self._room, self._dtype, self._device)

    def release(self) -> None:
        """Free all memory and stored values."""
        self._stored = {}
        self._shapes = {}
        self._room = 0
        self._pending = None

    def begin_prefill(self, slots: torch.Tensor, last: torch.Tensor | None = None) -> None:
        """Store the first `len(slots)` rows of the next forward pass in these slots; their last
        positions are `last`.
        """
        self.settle(None)
        self._prefill_slots = slots
        self._last = last

    def begin_decode(self, positions: torch.Tensor, length: int) -> None:
        """In the next forward pass, write the first `len(positions)` slots at `positions` and
        attend to the first `length` positions.
        """
        self.settle(None)
        self._prefill_slots = None
        self._positions = positions
        self._length = length

    def copy(self, source: torch.Tensor, target: torch.Tensor, length: int) -> None:
        """Copy the prompts of the source slots, at most `length` long, into the target slots."""
        self.settle(None)
        for layer in self._stored.values():
            layer.copy(source, target, length)

    def restore(self, slots: torch.Tensor) -> None:
        """Bring the prompts of slots back that a reply has overwritten, as it does in a ring."""
        for layer in self._stored.values():
            layer.restore(slots)

    def clear(self, slots: torch.Tensor) -> None:
        """Zero the slots, so that a non-finite value cannot reach a later reply through a masked
        position.
        """
        self.settle(None)
        for layer in self._stored.values():
            layer.clear(slots)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store one layer's new keys and values and return those that attention reads.

        In a prefill they are stored when attention has said how far back the layer reaches
        (`settle`).
        """
        if self._prefill_slots is not None:
            self.settle(None)
            self._pending = (layer_idx, (key_states, value_states))
            return key_states, value_states
        rows = self._all_rows[: len(self._positions)]
        keys, values = self._stored[layer_idx].append(
            (key_states, value_states), rows, self._positions, self._length
        )
        return keys, values

    def settle(self, reach: int | None) -> None:
        """Store the last keys and values of a prefill, of a layer that attends to `reach` tokens."""
        if self._pending is None or self._prefill_slots is None:
            return
        index, states = self._pending
        self._pending = None
        if index not in self._stored:
            ring = None if reach is None else round_up(reach, KV_BLOCK)
            self._stored[index] = _Layer(ring, keep_prompts=ring is not None and ring < self._max_length)
            self._shapes[index] = [(self._slots, *state.shape[1:]) for state in states]
            self._stored[index].grow(self._shapes[index], self._room, self._dtype, self._device)
        last = (
            torch.full_like(self._prefill_slots, states[0].shape[2] - 1) if self._last is None else self._last
        )
        self._stored[index].store(states, self._prefill_slots, last)

    def mask(self, visible: MaskFunction, reach: int | None, tokens: int) -> SlotMask:
        """Return the mask of a forward pass of `tokens` per row.

        Args:
            visible: tells whether a query attends to a key:
                `visible(row, head, query position, key position)`.
            reach: as in `SlotMask`.
            tokens: of a row; 1 in a decode step.
        """
        if self.prefilling:
            # torch has a kernel for this mask, which needs no tensor.
            if visible is causal_mask_function:
                return SlotMask(reach)
            blocks = tuple(self._blocks(visible, reach, tokens))
            # A window that is longer than the prompt hides nothing more than the plain mask.
            return SlotMask(reach) if all(_is_causal(block) for block in blocks) else SlotMask(reach, blocks)
        ring = None if reach is None else round_up(reach, KV_BLOCK)
        columns = self._length if ring is None else min(self._length, ring)
        query = self._positions[:, None]
        key = self._places[:columns]
        rows = self._all_rows[: len(self._positions), None]
        if ring is None:
            hidden = (
                key > query if visible is causal_mask_function else ~visible(rows, self._zero, query, key)
            )
        else:
            # The position in a column: the last one up to the query's own that falls on it.
            key = query - (query - key) % ring
            # Negative: nothing has been written there yet.
            hidden = ~(visible(rows, self._zero, query, key) & (key >= 0))
        added = torch.zeros(len(query), columns, device=self._device).masked_fill_(hidden, float("-inf"))
        return SlotMask(reach, added=added[:, None, None, :])

    def _blocks(self, visible: MaskFunction, reach: int | None, tokens: int) -> Iterator[Block]:
        for start in range(0, tokens, PREFILL_BLOCK):
            end = min(start + PREFILL_BLOCK, tokens)
            first = 0 if reach is None else max(0, start - reach + 1)
            query = torch.arange(start, end, device=self._device)[:, None]
            key = torch.arange(first, end, device=self._device)[None, :]
            yield Block(
                start,
                end,
                first,
                (~visible(self._zero, self._zero, query, key)).expand(end - start, end - first),
            )


def _causal_blocks(tokens: int, device: torch.device) -> Iterator[Block]:
    """Yield the blocks of a plain causal mask."""
    for start in range(0, tokens, PREFILL_BLOCK):
        end = min(start + PREFILL_BLOCK, tokens)
        yield Block(
            start, end, 0, torch.ones(end - start, end, dtype=torch.bool, device=device).triu_(start + 1)
        )


def _is_causal(block: Block) -> bool:
    return block.first == 0 and torch.equal(
        block.hidden, torch.ones_like(block.hidden).triu_(block.start + 1)
    )


_CACHE: ContextVar[SlotCache] = ContextVar("slot_cache")


@contextmanager
def attending(cache: SlotCache) -> Iterator[None]:
    """Make `slot_mask` and `slot_attention` use a cache inside the block, that is, in the forward
    pass of its model.
    """
    token = _CACHE.set(cache)
    try:
        yield
    finally:
        _CACHE.reset(token)


def slot_mask(
    batch_size: int,
    q_length: int,
    *args: Any,
    mask_function: MaskFunction = causal_mask_function,
    local_size: int | None = None,
    use_vmap: bool = False,
    **kwargs: Any,
) -> SlotMask:
    """Make the mask of the layers of one kind, as transformers' interface of masks asks for it.

    Raises RolloutError for a mask that is no function of the two positions.
    """
    if use_vmap:
        raise RolloutError("the model adds a mask of its own, which depends on more than positions")
    return _CACHE.get().mask(mask_function, local_size, q_length)


def slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: SlotMask | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute the attention of a prefill or of a decode step, under the mask of `slot_mask`; None
    is a plain causal mask.

    query [rows, heads, tokens, channels], key and value [rows, kv_heads, length, channels]; `s_aux`
    [heads] are attention sinks. Returns [rows, tokens, heads, channels of a value]. Query heads
    that share a key head are folded, so keys are never repeated. Raises RolloutError for a mask or
    a bias that another function than `slot_mask` has made.
    """
    cache = _CACHE.get()
    rows, heads, tokens, channels = query.shape
    if attention_mask is None:
        attention_mask = cache.mask(causal_mask_function, None, tokens)
    if not isinstance(attention_mask, SlotMask) or kwargs.get("position_bias") is not None:
        raise RolloutError(f"{type(module).__name__} adds numbers of its own to the scores of its attention")
    scale = channels**-0.5 if scaling is None else scaling
    sinks = None if s_aux is None else s_aux.reshape(1, key.shape[1], -1, 1)
    if cache.prefilling:
        cache.settle(attention_mask.reach)
        out = _attend_prompts(query, key, value, attention_mask.blocks, scale, softcap, sinks)
        return out.transpose(1, 2).contiguous(), None
    assert attention_mask.added is not None
    folded = query.reshape(rows, key.shape[1], heads // key.shape[1], channels)
    # The fused kernel has neither a soft cap nor sinks, and on a CPU it is slower.
    if query.device.type == "cpu" or softcap is not None or sinks is not None:
        out = attend_in_steps(folded, key, value, attention_mask.added, scale, softcap, sinks)
    else:
        out = attend_fused(folded, key, value, attention_mask.added, scale)
    return out.reshape(rows, 1, heads, value.shape[-1]), None


def _attend_prompts(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    blocks: tuple[Block, ...],
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Return the attention of prompts, [rows, heads, tokens, channels]."""
    rows, heads, tokens, channels = query.shape
    kv_heads = key.shape[1]
    plain = softcap is None and sinks is None
    if plain and not blocks:
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=heads != kv_heads
        )
    outs = []
    for block in blocks or _causal_blocks(tokens, query.device):
        queries = query[:, :, block.start : block.end]
        keys = key[:, :, block.first : block.end]
        values = value[:, :, block.first : block.end]
        if plain:
            outs.append(
                F.scaled_dot_product_attention(
                    queries, keys, values, attn_mask=~block.hidden, scale=scale, enable_gqa=heads != kv_heads
                )
            )
            continue
        added = torch.zeros(block.hidden.shape, device=query.device).masked_fill_(block.hidden, float("-inf"))
        folded = queries.reshape(rows, kv_heads, -1, channels)
        repeated = None if sinks is None else sinks.repeat_interleave(len(added), 2)
        out = attend_in_steps(
            folded, keys, values, added.repeat(heads // kv_heads, 1), scale, softcap, repeated
        )
        outs.append(out.reshape(rows, heads, len(added), value.shape[-1]))
    return torch.cat(outs, 2)


def attend_in_steps(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute attention by two matrix products; on a CPU faster than the fused kernel, with the
    same bits at every length.

    `sinks` [1, kv_heads, queries, 1] are the scores of one more key, which has no value.
    """
    scores = torch.matmul(query, key.transpose(-1, -2)).float().mul_(scale)
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    scores = scores.add_(mask)
    if sinks is None:
        return torch.matmul(scores.softmax(-1).to(value.dtype), value)
    highest = torch.maximum(scores.amax(-1, keepdim=True), sinks.float())
    weights = scores.sub_(highest).exp_()
    weights = weights / (weights.sum(-1, keepdim=True) + (sinks.float() - highest).exp())
    return torch.matmul(weights.to(value.dtype), value)


def attend_fused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Compute attention by torch's fused kernel, which keeps scores in fp32 when the inputs are
    bf16.
    """
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask.to(query.dtype).expand(-1, -1, query.shape[2], -1), scale=scale
    )


def use_slot_attention(model: PreTrainedModel) -> None:
    """Switch a Hugging Face causal LM to `slot_attention`. Raises `RolloutError` if its attention
    cannot be replaced.
    """
    if not getattr(model, "_supports_attention_backend", False):
        raise RolloutError(f"the attention of {type(model).__name__} cannot be replaced")
    AttentionInterface.register(ATTENTION, slot_attention)
    AttentionMaskInterface.register(ATTENTION, slot_mask)
    model.set_attn_implementation(ATTENTION)
