"""The model with slots: computes texts chunk by chunk, copies them between slots, and decodes one token per
slot; owns the logits of every slot.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from verl.models.fused import fuse_norms, fuse_projections
from verl.models.lora import LoraSpec
from verl.models.packed import PLAIN_ROWS, pack_linears
from verl.workers.rollout.adapters import RowAdapters
from verl.workers.rollout.chunks import TextChunk
from verl.workers.rollout.experts import MIN_ROWS, use_padded_experts
from verl.workers.rollout.kv_cache import KV_BLOCK, Place, SlotCache, attending, round_up, use_slot_attention

TOKEN_BUDGET = {"cpu": 128, "cuda": 1024}


class SlotModel:
    """A Hugging Face causal LM with `slots` rows of state, each under its own adapter or none.

    Attributes:
        adapters: of the rows.
        slots: rows of a decode step, at least the requested number.
        token_budget: tokens of one pass over chunks.
        row_block: a decode step runs a multiple of so many rows.
        logits: next-token logits [slots, vocab] after the last chunk of a text, copy or decode of
            each slot.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        slots: int,
        max_length: int,
        adapters: Mapping[str, LoraSpec] | None = None,
    ) -> None:
        use_slot_attention(model)
        use_padded_experts(model)
        fuse_norms(model)
        # Before adapters, which look up the layers.
        fuse_projections(model)
        self._packed = pack_linears(model)
        self._model = model.eval()
        weight = next(model.parameters())
        self.device = weight.device
        self.slots = round_up(slots, MIN_ROWS)
        self.adapters = RowAdapters(model, adapters or {}, self.slots)
        self.vocab_size = int(model.config.get_text_config().vocab_size)
        self.token_budget = TOKEN_BUDGET.get(self.device.type, TOKEN_BUDGET["cpu"])
        without_router_logits(model)
        self._cache = SlotCache(model.config, self.slots, max_length, weight.dtype, self.device)
        self.logits = torch.zeros(self.slots, self.vocab_size, dtype=weight.dtype, device=self.device)
        self._prompt_logits = torch.zeros_like(self.logits)
        block = self._packed.row_block if self.adapters.rounds_alike else None
        # The products of adapters are plain ones.
        self.row_block = MIN_ROWS if block is None else max(block, PLAIN_ROWS) if adapters else block
        self._rounds_alike = block is not None
        self._last_logits_only = "logits_to_keep" in inspect.signature(model.forward).parameters

    @property
    def is_shapeless(self) -> bool:
        """Whether a token's keys have the same bits in a decode step and in a chunk, as far as is known."""
        return self._rounds_alike and self._cache.is_shapeless

    def reserve(self, length: int) -> None:
        """Ensure that the cache holds `length` positions per slot."""
        self._cache.reserve(length)

    def release(self) -> None:
        """Free the cache, and the copies of weights for products."""
        self._cache.release()
        self._packed.drop()

    def weights_changed(self) -> None:
        """Note that weights of the model were replaced."""
        self._packed.drop()

    def compute(self, chunks: Sequence[TextChunk]) -> list[bool]:
        """Compute chunks of one width, each under its adapter, into their slots, and return whether
        the keys of each are numbers.

        The shape is a function of the width alone: the token budget decides the rows. After the
        last chunk of a text its slot has the logits that follow.
        """
        width = chunks[0].width
        rows = max(1, self.token_budget // width)
        ids = np.zeros((rows, width), dtype=np.int64)
        last = np.zeros(rows, dtype=np.int64)
        starts = np.zeros(rows, dtype=np.int64)
        for row, chunk in enumerate(chunks):
            tokens = chunk.text[chunk.start : chunk.end]
            ids[row, : len(tokens)] = tokens
            last[row] = len(tokens) - 1
            starts[row] = chunk.start
        self._cache.reserve(max(chunk.start for chunk in chunks) + width)
        self._cache.begin_chunks([Place(chunk.slot, chunk.start) for chunk in chunks])
        self.adapters.use_rows([chunk.adapter for chunk in chunks], rows, width)
        ends = torch.as_tensor(last, device=self.device)
        first = torch.as_tensor(starts, device=self.device)
        # Padding repeats the position of the last token: frequencies of some models depend on the
        # highest one.
        places = first[:, None] + torch.arange(width, device=self.device).minimum(ends[:, None])
        ending = [row for row, chunk in enumerate(chunks) if chunk.is_last]
        # The head is run over a number of positions that depends on the width alone, or over none.
        looked_at = ends.repeat(-(-MIN_ROWS // rows)) if ending else ends[:0]
        keep = {"logits_to_keep": looked_at} if self._last_logits_only else {}
        with attending(self._cache):
            out = self._model(
                input_ids=torch.as_tensor(ids, device=self.device),
                position_ids=places,
                past_key_values=self._cache,
                use_cache=True,
                **keep,
            )
        if ending:
            index = torch.as_tensor(ending, device=self.device)
            target = torch.as_tensor([chunks[row].slot for row in ending], device=self.device)
            after_text = out.logits[index, index if keep else ends[index]]
            self.logits[target] = after_text
            self._prompt_logits[target] = after_text
        return self._cache.chunks_are_finite()

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions and the logits after the prompt from source to target
        slots; a slot may be its own source.
        """
        source = torch.as_tensor(sources, device=self.device)
        target = torch.as_tensor(targets, device=self.device)
        moved = source != target
        if bool(moved.any()):
            self._cache.copy(source[moved], target[moved], 0, length)
        after_prompt = self._prompt_logits[source]
        self.logits[target] = after_prompt
        self._prompt_logits[target] = after_prompt

    def copy_prefix(self, source: int, target: int, start: int, end: int) -> None:
        """Copy the positions from `start` to before `end` from one slot to another."""
        self._cache.reserve(end)
        pair = torch.as_tensor([[source], [target]], device=self.device)
        self._cache.copy(pair[0], pair[1], start, end)

    def holds_same(self, slot: int, other: int, length: int) -> bool:
        """Return whether two slots hold the same bits at the first `length` positions."""
        return self._cache.holds_same(slot, other, length)

    def end(self, slots: Sequence[int]) -> None:
        """Note that the replies of slots have ended: nothing to do, the slots keep their prompts."""

    def clear(self, slots: Sequence[int]) -> None:
        """Zero the cache of slots with non-finite values."""
        self._cache.clear(torch.as_tensor(slots, device=self.device))

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, length: int, used: int) -> None:
        """Append tokens [slots] at positions [slots]; the highest active position is below
        `length`.

        Only the first `used` slots are run, rounded up to a multiple of `row_block`.
        """
        rows = round_up(used, self.row_block)
        length = round_up(length, KV_BLOCK)
        tokens = tokens[:rows]
        positions = positions[:rows]
        self._cache.reserve(length)
        self._cache.begin_decode(positions, length)
        self.adapters.use_slots(rows)
        with attending(self._cache):
            out = self._model(
                input_ids=tokens.unsqueeze(1),
                position_ids=positions.unsqueeze(1),
                past_key_values=self._cache,
                use_cache=True,
            )
        self.logits[:rows] = out.logits[:, -1]


def without_router_logits(model: PreTrainedModel) -> None:
    """Switch off the output of router logits, which only the auxiliary loss of a training step
    needs.
    """
    for config in (model.config, model.config.get_text_config()):
        if getattr(config, "output_router_logits", False):
            config.output_router_logits = False
