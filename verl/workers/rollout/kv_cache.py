"""Key-value cache with one fixed slot per reply, and the attention that reads it.

The cache has two modes. In a pass over chunks every row is a piece of a text: its keys and values
are written into the slot at the piece's own positions, and its queries attend to that slot up to
the piece's end. Each row is computed alone, in a shape that its place in the text decides. In a
decode step row i is slot i: its new key and value are written at the slot's own position and
attention reads the slot up to `length`, a multiple of `KV_BLOCK`. Positions after a slot's own are
masked; appending masked blocks changes no bit of the result, so a row does not depend on the
lengths of other rows.

Which earlier tokens a layer attends to is decided by the mask that the model itself asks
transformers for: `slot_mask` is registered as the function that makes it. All layers hold all
positions: what a sliding window or a chunk hides is hidden by the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.masking_utils import causal_mask_function

from verl.protocol.generate import RolloutError

KV_BLOCK = 64
# Queries of a product of attention at least, on a CPU: with fewer, kernels round in another way.
MIN_QUERIES = 4
# Keys of such a product at most: with more, kernels choose where they cut the sum by how many there
# are, and a masked block would change bits.
MOST_KEYS = 3 * KV_BLOCK
ATTENTION = "verl_slots"

MaskFunction = Callable[[Any, Any, Any, Any], Any]


def round_up(n: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least n."""
    return -(-n // multiple) * multiple


@dataclass(frozen=True)
class Place:
    """Where a row of a pass over chunks belongs: its slot and the position of its first token."""

    slot: int
    start: int


@dataclass(frozen=True)
class SlotReading:
    """The keys that a row of a pass over chunks reads: those from position `first` to before `end`.

    `added` [tokens, keys] is 0, or -inf where a key is not attended to.
    """

    first: int
    end: int
    added: torch.Tensor
    _repeated: dict[int, torch.Tensor] = field(default_factory=dict)

    def repeated(self, group: int) -> torch.Tensor:
        """Return `added` once for each of the query heads of a key head, made once a pass."""
        if group not in self._repeated:
            self._repeated[group] = self.added.repeat(group, 1)
        return self._repeated[group]


@dataclass(frozen=True)
class SlotMask:
    """The mask of the layers of one kind in one forward pass.

    Attributes:
        readings: of a pass over chunks, one per row that has a chunk.
        added: of a decode step: 0 or -inf, [slots, 1, 1, columns].
    """

    readings: tuple[SlotReading, ...] = ()
    added: torch.Tensor | None = None
    _of_heads: dict[int, torch.Tensor] = field(default_factory=dict)

    def of_heads(self, heads: int) -> torch.Tensor:
        """Return `added` once for each key head, `[slots * heads, 1, columns]`, made once a step."""
        assert self.added is not None
        if heads not in self._of_heads:
            rows = len(self.added)
            self._of_heads[heads] = self.added.expand(rows, heads, 1, -1).reshape(rows * heads, 1, -1)
        return self._of_heads[heads]


class SlotCache(Cache):
    """Keys and values of all slots, by layer [slots, heads, positions, channels] each; tensors are
    allocated when a layer first stores something, by the shapes that it stores.
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
        self._stored: dict[int, list[torch.Tensor]] = {}
        self._room = 0
        self._all_rows = torch.arange(slots, device=device)
        self._columns = torch.arange(self._max_length, device=device)
        self._zero = torch.zeros((), dtype=torch.long, device=device)
        self._positions = self._all_rows
        self._length = 0
        self.places: tuple[Place, ...] = ()
        # Such models compute keys from what they store, so that only the rows' own are returned.
        self.gathers = getattr(config.get_text_config(), "kv_lora_rank", None) is not None
        self._has_reach = False
        self._padded: torch.Tensor | None = None
        self._padded_queries = 0
        self._last_written: tuple[torch.Tensor, torch.Tensor] | None = None
        # Of decode steps of one shape: what their attention reads, by layer; of one step: where it
        # writes, by the number of heads.
        self._views: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._written_at: dict[int, torch.Tensor] = {}

    @property
    def allocated(self) -> int:
        """Number of allocated positions per slot."""
        return self._room

    @property
    def is_shapeless(self) -> bool:
        """Whether attention has the same bits in a decode step and in a chunk, as far as is known: a
        chunk that leaves out keys beyond a layer's reach adds others up together.
        """
        return not (self._has_reach or self.gathers) and _attends_alike(*self._sizes, self._dtype)

    @property
    def _sizes(self) -> tuple[int, int]:
        """Query heads of a key head, and channels of a head."""
        text = self._config.get_text_config()
        heads = text.num_attention_heads
        group = heads // (getattr(text, "num_key_value_heads", None) or heads)
        return group, getattr(text, "head_dim", None) or text.hidden_size // heads

    @property
    def bytes(self) -> int:
        """Number of bytes of all tensors."""
        return sum(tensor.nbytes for tensors in self._stored.values() for tensor in tensors)

    def reserve(self, length: int) -> None:
        """Allocate `length` positions per slot (at most the maximum), keeping stored values; at
        least doubles, to keep copies rare.
        """
        length = min(length, self._max_length)
        if length <= self._room:
            return
        self._room = min(self._max_length, max(round_up(length, KV_BLOCK), 2 * self._room))
        for tensors in self._stored.values():
            for i, tensor in enumerate(tensors):
                grown = self._zeros(tensor.shape[1], tensor.shape[3])
                grown[:, :, : tensor.shape[2]] = tensor
                tensors[i] = grown
        self._views = {}

    def _zeros(self, heads: int, channels: int) -> torch.Tensor:
        return torch.zeros(self._slots, heads, self._room, channels, dtype=self._dtype, device=self._device)

    def release(self) -> None:
        """Free all memory and stored values."""
        self._stored = {}
        self._views = {}
        self._room = 0

    def begin_chunks(self, places: Sequence[Place]) -> None:
        """In the next forward pass, write the tokens of the first `len(places)` rows at these
        places, each of which ends within the allocated positions.
        """
        self.places = tuple(places)
        self._last_written = None

    def chunks_are_finite(self) -> list[bool]:
        """Return, per row of the last pass over chunks, whether its keys and values are numbers.

        Those of the last layer are looked at: what is not finite in an earlier one reaches the
        same row of all later ones through the residual.
        """
        if self._last_written is None:  # a model whose layers store nothing
            return [True] * len(self.places)
        rows = len(self.places)
        finite = [states[:rows].isfinite().flatten(1).all(1) for states in self._last_written]
        return [bool(row) for row in (finite[0] & finite[1]).tolist()]

    def begin_decode(self, positions: torch.Tensor, length: int) -> None:
        """In the next forward pass, write the first `len(positions)` slots at `positions` and
        attend to the first `length` positions.
        """
        self.places = ()
        if (len(positions), length) != (len(self._positions), self._length):
            self._views = {}
        self._written_at = {}
        self._positions = positions
        self._length = length

    def copy(self, source: torch.Tensor, target: torch.Tensor, start: int, end: int) -> None:
        """Copy the positions from `start` to before `end` of the source slots into the target
        slots.
        """
        for tensors in self._stored.values():
            for tensor in tensors:
                tensor[target, :, start:end] = tensor[source, :, start:end]

    def holds_same(self, slot: int, other: int, length: int) -> bool:
        """Return whether two slots hold the same bits at the first `length` positions."""
        return all(
            torch.equal(tensor[slot, :, :length], tensor[other, :, :length])
            for tensors in self._stored.values()
            for tensor in tensors
        )

    def clear(self, slots: torch.Tensor) -> None:
        """Zero the slots, so that a non-finite value cannot reach a later reply through a masked
        position.
        """
        for tensors in self._stored.values():
            for tensor in tensors:
                tensor[slots] = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store one layer's new keys and values and return those that attention reads: in a pass
        over chunks those of all slots (of the rows, if the model computes keys from them), in a
        decode step the rows' own up to `length`.
        """
        states = (key_states, value_states)
        if layer_idx not in self._stored:
            self._stored[layer_idx] = [self._zeros(state.shape[1], state.shape[3]) for state in states]
        keys, values = self._stored[layer_idx]
        if self.places:
            end = key_states.shape[2]
            for tensor, state in zip((keys, values), states, strict=True):
                for row, place in enumerate(self.places):
                    tensor[place.slot, :, place.start : place.start + end] = state[row]
            self._last_written = states
            return self._of_rows(keys, values, len(key_states), end) if self.gathers else (keys, values)
        for tensor, state in zip((keys, values), states, strict=True):
            # One row for each position of each head.
            flat = tensor.view(-1, tensor.shape[-1])
            flat.index_copy_(0, self._places_of(tensor), state.reshape(-1, tensor.shape[-1]).to(tensor.dtype))
        if layer_idx not in self._views:
            rows = len(self._positions)
            self._views[layer_idx] = (keys[:rows, :, : self._length], values[:rows, :, : self._length])
        return self._views[layer_idx]

    def with_least(self, folded: torch.Tensor) -> torch.Tensor:
        """Return the queries of a decode step [slots, key heads, queries, channels] with some of
        zeros behind, `MIN_QUERIES` in all; the next call overwrites them.
        """
        rows, heads, queries, channels = folded.shape
        shape = (rows, heads, MIN_QUERIES, channels)
        if self._padded is None or self._padded.shape != shape or self._padded_queries != queries:
            self._padded = folded.new_zeros(shape)
            self._padded_queries = queries
        self._padded[:, :, :queries] = folded
        return self._padded

    def _places_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return where a decode step writes to a tensor of one layer, an index of `[rows * heads]`
        into its positions.
        """
        heads = tensor.shape[1]
        if heads not in self._written_at:
            first = self._all_rows[: len(self._positions), None] * heads + torch.arange(
                heads, device=self._device
            )
            self._written_at[heads] = (first * tensor.shape[2] + self._positions[:, None]).flatten()
        return self._written_at[heads]

    def _of_rows(
        self, keys: torch.Tensor, values: torch.Tensor, rows: int, width: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of the slots of `rows` rows up to the end of their chunks."""
        slots = [place.slot for place in self.places]
        index = torch.as_tensor(slots + slots[:1] * (rows - len(slots)), device=self._device)
        length = round_up(max(place.start for place in self.places) + width, KV_BLOCK)
        return keys[index, :, :length], values[index, :, :length]

    def mask(self, visible: MaskFunction, reach: int | None, tokens: int) -> SlotMask:
        """Return the mask of a forward pass of `tokens` per row.

        Args:
            visible: tells whether a query attends to a key:
                `visible(row, head, query position, key position)`.
            reach: number of tokens, up to a token's own, that it can attend to; None without a
                limit.
            tokens: of a row; 1 in a decode step.
        """
        if self.places:
            return SlotMask(
                tuple(self._reading(visible, reach, place.start, tokens) for place in self.places)
            )
        # A row without a reply may be behind the last key that is read: under a window it would attend
        # to none, and what it writes would be no number, which reaches later replies of its slot.
        query = self._positions.clamp(max=self._length - 1)[:, None]
        key = self._columns[: self._length]
        rows = self._all_rows[: len(self._positions), None]
        hidden = key > query if visible is causal_mask_function else ~visible(rows, self._zero, query, key)
        return SlotMask(added=_added(hidden)[:, None, None, :])

    def _reading(self, visible: MaskFunction, reach: int | None, start: int, tokens: int) -> SlotReading:
        # Whole blocks, as in a decode step: products round in another way up to the middle of one.
        end = round_up(start + tokens, KV_BLOCK)
        self._has_reach = self._has_reach or reach is not None
        # Whole blocks, so that the shape is a matter of the chunk's place alone.
        first = 0 if reach is None else max(0, start - reach + 1) // KV_BLOCK * KV_BLOCK
        query = self._columns[start : start + tokens, None]
        key = self._columns[None, first:end]
        hidden = (
            key > query if visible is causal_mask_function else ~visible(self._zero, self._zero, query, key)
        )
        return SlotReading(first, end, _added(hidden.expand(tokens, end - first)))


def _added(hidden: torch.Tensor) -> torch.Tensor:
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, float("-inf"))


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
    """Compute the attention of chunks or of a decode step, under the mask of `slot_mask`; None is
    a plain causal mask.

    query [rows, heads, tokens, channels], key and value as `SlotCache.update` returns them;
    `s_aux` [heads] are attention sinks. Returns [rows, tokens, heads, channels of a value]. Query
    heads that share a key head are folded, so keys are never repeated. Raises RolloutError for a
    mask or a bias that another function than `slot_mask` has made.
    """
    cache = _CACHE.get()
    rows, heads, tokens, channels = query.shape
    if attention_mask is None:
        attention_mask = cache.mask(causal_mask_function, None, tokens)
    if not isinstance(attention_mask, SlotMask) or kwargs.get("position_bias") is not None:
        raise RolloutError(f"{type(module).__name__} adds numbers of its own to the scores of its attention")
    scale = channels**-0.5 if scaling is None else scaling
    sinks = None if s_aux is None else s_aux.reshape(1, key.shape[1], -1, 1)
    if cache.places:
        out = query.new_zeros(rows, tokens, heads, value.shape[-1])
        for row, (place, reading) in enumerate(zip(cache.places, attention_mask.readings, strict=True)):
            columns = slice(reading.first, reading.end)
            at = row if cache.gathers else place.slot
            keys = key[at : at + 1, :, columns]
            values = value[at : at + 1, :, columns]
            chunk = _attend_chunk(query[row : row + 1], keys, values, reading, scale, softcap, sinks)
            out[row] = chunk[0].transpose(0, 1)
        return out, None
    added = attention_mask.added
    assert added is not None
    group = heads // key.shape[1]
    folded = query.reshape(rows, key.shape[1], group, channels)
    # The fused kernel has neither a soft cap nor sinks, and on a CPU it is slower.
    if query.device.type == "cpu" or softcap is not None or sinks is not None:
        if group < MIN_QUERIES:
            folded = cache.with_least(folded)
            sinks = None if sinks is None else F.pad(sinks, (0, 0, 0, MIN_QUERIES - group))
        if softcap is None and sinks is None and query.dtype == torch.float32:
            added = attention_mask.of_heads(key.shape[1])
        out = attend_in_steps(folded, key, value, added, scale, softcap, sinks)
        out = out[:, :, :group]
    else:
        out = attend_fused(folded, key, value, added, scale)
    return out.reshape(rows, 1, heads, value.shape[-1]), None


@cache
@torch.no_grad()
def _attends_alike(group: int, channels: int, dtype: torch.dtype) -> bool:
    """Return whether a token's attention on a CPU has the same bits as a part of a chunk, alone, and
    with masked blocks behind its keys.
    """
    longest = 10 * KV_BLOCK
    generator = torch.Generator().manual_seed(channels)
    query = torch.randn(1, group, KV_BLOCK, channels, generator=generator).to(dtype)
    key = torch.randn(1, 1, longest, channels, generator=generator).to(dtype)
    value = torch.randn(1, 1, longest, channels, generator=generator).to(dtype)
    token = KV_BLOCK // 3  # of a chunk
    padding = (0, 0, 0, max(0, MIN_QUERIES - group))
    alone = F.pad(query[:, :, token].unsqueeze(1), padding).expand(2, -1, -1, -1)
    for start in range(0, longest, KV_BLOCK):
        end = start + KV_BLOCK
        columns = torch.arange(longest)
        added = _added(columns[:end] > columns[start:end, None])
        reading = SlotReading(0, end, added)
        chunk = _attend_chunk(query, key[:, :, :end], value[:, :, :end], reading, 1.0, None, None)
        for length in range(end, longest + 1, KV_BLOCK):
            mask = _added(columns[:length] > start + token)
            keys = key[:, :, :length].expand(2, -1, -1, -1)
            values = value[:, :, :length].expand(2, -1, -1, -1)
            step = attend_in_steps(alone, keys, values, mask, 1.0)
            if not torch.equal(step[0, 0, :group], chunk[0, :, token]):
                return False
    return True


def _attend_chunk(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    reading: SlotReading,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Return the attention of one chunk, [1, heads, tokens, channels]."""
    _, heads, tokens, channels = query.shape
    kv_heads = key.shape[1]
    # On a CPU as in a decode step, so that a token's keys are the same.
    if query.device.type != "cpu" and softcap is None and sinks is None:
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=reading.added.to(query.dtype),
            scale=scale,
            enable_gqa=heads != kv_heads,
        )
    folded = query.reshape(1, kv_heads, -1, channels)
    repeated = None if sinks is None else sinks.repeat_interleave(tokens, 2)
    added = reading.repeated(heads // kv_heads)
    out = attend_in_steps(folded, key, value, added, scale, softcap, repeated)
    return out.reshape(1, heads, tokens, value.shape[-1])


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

    `mask` [queries, keys], [rows, 1, 1, keys] or [rows * kv_heads, 1, keys] is added to the scores;
    `sinks` [1, kv_heads, queries, 1] are the scores of one more key, which has no value.
    """
    if softcap is None and sinks is None and query.dtype == torch.float32:
        return _attend_in_two(query, key, value, mask, scale)
    scores = torch.matmul(query, key.transpose(-1, -2)).float().mul_(scale)
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    scores = scores.add_(mask)
    if sinks is None:
        return _weighted_sum(scores.softmax(-1).to(value.dtype), value)
    highest = torch.maximum(scores.amax(-1, keepdim=True), sinks.float())
    weights = scores.sub_(highest).exp_()
    weights = weights / (weights.sum(-1, keepdim=True) + (sinks.float() - highest).exp())
    return _weighted_sum(weights.to(value.dtype), value)


def _attend_in_two(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """As `attend_in_steps`, without a soft cap and sinks, in fp32; the first product starts from the
    mask.
    """
    rows, heads, queries, _ = query.shape
    if mask.ndim > 3:
        mask = mask.expand(rows, heads, 1, -1).reshape(rows * heads, 1, -1)
    keys = key.flatten(0, 1).transpose(1, 2)
    values = value.flatten(0, 1)
    weights = torch.baddbmm(mask, query.reshape(rows * heads, queries, -1), keys, alpha=scale).softmax(-1)
    result = torch.bmm(weights[..., :MOST_KEYS], values[:, :MOST_KEYS])
    for start in range(MOST_KEYS, values.shape[1], MOST_KEYS):
        end = start + MOST_KEYS
        result.baddbmm_(weights[..., start:end], values[:, start:end])
    return result.view(rows, heads, queries, -1)


def _weighted_sum(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return weights [..., queries, keys] @ value [..., keys, channels], the same bits with masked
    blocks behind.
    """
    length = value.shape[-2]
    result = torch.matmul(weights[..., :MOST_KEYS], value[..., :MOST_KEYS, :])
    for start in range(MOST_KEYS, length, MOST_KEYS):
        end = start + MOST_KEYS
        result += torch.matmul(weights[..., start:end], value[..., start:end, :])
    return result


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
