"""The model row by row: every slot has transformers' own cache, and a row is computed alone, as
`generate` computes it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from verl.models.lora import LoraSpec
from verl.workers.rollout.adapters import RowAdapters
from verl.workers.rollout.chunks import TextChunk
from verl.workers.rollout.experts import MIN_ROWS
from verl.workers.rollout.forward import without_router_logits

_CACHES = ("past_key_values", "cache_params")


@dataclass
class _Row:
    """The tokens of a row and the arguments that carry its state from one forward pass to the next."""

    tokens: list[int]
    state: dict[str, Any] = field(default_factory=dict)

    def branch(self) -> _Row:
        """Return a row that continues from here and leaves this one as it is."""
        return _Row(list(self.tokens), copy.deepcopy(self.state))


class RowModel:
    """A Hugging Face causal LM that `generate` serves, with the methods of `SlotModel` and the same
    arguments.

    Slow, because a decode step is one forward pass per reply, and exact for every kind of state:
    recurrences, convolutions, biases of positions. Attention is transformers' eager one, which
    drops nothing that the model asks for.

    Attributes:
        adapters: of the rows.
        slots: the requested number.
        token_budget: None: texts are computed whole.
        row_block: slots among which a reply may have any.
        is_shapeless: False: what a reply leaves behind is not looked at.
        logits: next-token logits [slots, vocab] after the last text, copy or decode of each slot.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        slots: int,
        max_length: int,
        adapters: Mapping[str, LoraSpec] | None = None,
    ) -> None:
        use_eager_attention(model)
        without_router_logits(model)
        self._model = model.eval()
        weight = next(model.parameters())
        self.device = weight.device
        self.slots = slots
        self.adapters = RowAdapters(model, adapters or {}, slots)
        self.vocab_size = int(model.config.get_text_config().vocab_size)
        self.token_budget = None  # a text is computed whole
        self.row_block = MIN_ROWS
        self.is_shapeless = False
        self.logits = torch.zeros(slots, self.vocab_size, dtype=weight.dtype, device=self.device)
        self._prompt_logits = torch.zeros_like(self.logits)
        self._prompts: dict[int, _Row] = {}
        self._replies: dict[int, _Row] = {}
        arguments = inspect.signature(model.forward).parameters
        self._cache_name = next((name for name in _CACHES if name in arguments), _CACHES[0])
        self._takes_positions = "position_ids" in arguments
        self._last_logits_only = {"logits_to_keep": 1} if "logits_to_keep" in arguments else {}

    def reserve(self, length: int) -> None:
        """Do nothing: caches grow with their rows."""

    def release(self) -> None:
        """Free all caches."""
        self._prompts = {}
        self._replies = {}

    def weights_changed(self) -> None:
        """Do nothing: nothing is made of weights."""

    def compute(self, chunks: Sequence[TextChunk]) -> list[bool]:
        """Compute texts, each whole and alone and under its adapter, into their slots."""
        for chunk in chunks:
            self.adapters.use_rows([chunk.adapter], 1, len(chunk.text))
            row = _Row([])
            logits = self._run(row, list(chunk.text))
            self._prompts[chunk.slot] = row
            self._replies[chunk.slot] = row.branch()
            self.logits[chunk.slot] = logits
            self._prompt_logits[chunk.slot] = logits
        return [True] * len(chunks)

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Start from the prompts of the source slots in the target slots; a slot may be its own
        source.
        """
        rows = [self._prompts[source] for source in sources]
        logits = self._prompt_logits[list(sources)]
        for row, target in zip(rows, targets, strict=True):
            self._prompts[target] = row
            self._replies[target] = row.branch()
        self.logits[list(targets)] = logits
        self._prompt_logits[list(targets)] = logits

    def copy_prefix(self, source: int, target: int, start: int, end: int) -> None:
        """Never called: texts that are computed whole share no beginnings."""
        raise NotImplementedError

    def holds_same(self, slot: int, other: int, length: int) -> bool:
        """Return False: rows are not compared."""
        return False

    def end(self, slots: Sequence[int]) -> None:
        """Free the caches of replies that have ended; the slots keep their prompts."""
        for slot in slots:
            self._replies.pop(slot, None)

    def clear(self, slots: Sequence[int]) -> None:
        """Drop the prompts and replies of slots with non-finite values."""
        for slot in slots:
            self._prompts.pop(slot, None)
            self._replies.pop(slot, None)

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, length: int, used: int) -> None:
        """Append tokens [slots] to the rows of the first `used` slots whose replies have not ended,
        one after another.
        """
        new = tokens[:used].tolist()
        for slot in range(used):
            if slot in self._replies:
                self.adapters.use_slot(slot)
                self.logits[slot] = self._run(self._replies[slot], [new[slot]])

    def _run(self, row: _Row, tokens: Sequence[int]) -> torch.Tensor:
        """Append tokens to a row and return the logits after the last one, `[vocab]`, by the steps
        of `generate` for a row alone.
        """
        first = not row.state
        row.tokens.extend(tokens)
        ids = torch.tensor([row.tokens], device=self.device)
        arguments = {
            "attention_mask": torch.ones_like(ids),
            "use_cache": True,
            **row.state,
            **self._last_logits_only,
        }
        if self._takes_positions:
            arguments["position_ids"] = torch.arange(ids.shape[1], device=self.device)[None]
        if first and self._model._supports_default_dynamic_cache():
            arguments[self._cache_name] = DynamicCache(
                config=self._model.config.get_text_config(decoder=True)
            )
        inputs = self._model.prepare_inputs_for_generation(
            ids, next_sequence_length=len(tokens), is_first_iteration=first, **arguments
        )
        out = self._model(**inputs, return_dict=True)
        row.state = {name: out[name] for name in _CACHES if name in out}
        return out.logits[0, -1]


def use_eager_attention(model: PreTrainedModel) -> None:
    """Switch a model to transformers' eager attention where it can be switched; others keep that
    with which they were built.
    """
    if model._can_set_attn_implementation() and model.config._attn_implementation != "eager":
        model.set_attn_implementation("eager")
