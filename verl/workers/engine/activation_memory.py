"""The memory of one training pass, counted without doing it: the model runs on tensors that have shapes and no numbers.

Every operation of forward and backward is run in the engine's own dtype, attention and loss, and the bytes that live at a time are counted,
so temporary tensors and gradients are in the peak as they are in a real pass. It takes no memory, whatever the size of the model.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from verl.models.loader import ModelLoader
from verl.models.lora import LoraSpec, add_adapters, select_adapter
from verl.workers.engine.attention import PACKED_ATTENTION, plan_packing
from verl.workers.engine.forward import run_head
from verl.workers.engine.layout import RowLayout
from verl.workers.engine.layout_check import attention_name
from verl.workers.engine.sharding import checkpoint_activations
from verl.workers.engine.token_scores import token_scores


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors made inside it: `live` now, `peak` the most at a time since it was last set."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._counted: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        if storage in self._counted:
            return
        self._counted.add(storage)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.live -= size


@contextmanager
def _fused_attention() -> Iterator[None]:
    """Let attention on tensors without numbers keep what the fused kernels keep: torch has none for them and would compute all weights."""
    plain = F.scaled_dot_product_attention

    def fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, **options: Any) -> torch.Tensor:
        causal = options.get("is_causal", False)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.empty(attn_mask.shape, dtype=query.dtype)
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return flash(query, key, value, 0.0, causal, attn_mask=attn_mask, scale=options.get("scale"))[0]

    F.scaled_dot_product_attention = fused
    try:
        yield
    finally:
        F.scaled_dot_product_attention = plain


@dataclass(frozen=True)
class Shape:
    """The rows of one micro-batch: `rows` rows of `prompt` plus `response` tokens."""

    rows: int
    prompt: int
    response: int

    @property
    def tokens(self) -> int:
        """Number of tokens of all rows."""
        return self.rows * (self.prompt + self.response)


class TrainingMemory:
    """A model without numbers, whose training passes are counted.

    Args:
        path: of the model.
        loader: the kind of model.
        layout: how its rows are run.
        dtype: of the trainer's computations.
        adapters: by name; the model itself is trained if there are none.
        checkpointing: activations are recomputed.
        trust_remote_code: run code that is shipped with the model.

    Attributes:
        parameters: number of parameters.
        trained: number of trained parameters of each optimizer.
    """

    def __init__(
        self,
        path: str,
        loader: ModelLoader,
        layout: RowLayout,
        *,
        dtype: torch.dtype,
        adapters: Mapping[str, LoraSpec],
        checkpointing: bool,
        trust_remote_code: bool,
    ) -> None:
        self._layout = layout
        with torch.device("meta"):
            self._model = loader.build(
                path, dtype=dtype, attn_implementation=attention_name(layout), trust_remote_code=trust_remote_code
            )
            self.parameters = sum(parameter.numel() for parameter in self._model.parameters())
            if adapters:
                add_adapters(self._model, adapters, path, 0)
                select_adapter(self._model, next(iter(adapters)))
            self._model.eval()
            if checkpointing:
                checkpoint_activations(self._model)
        trained = sum(parameter.numel() for parameter in self._model.parameters() if parameter.requires_grad)
        self.trained = trained

    def _inputs(self, shape: Shape) -> dict[str, Any]:
        """Return what packed rows need besides their tokens; it is planned on real numbers."""
        if self._layout.form != "packed":
            return {}
        length = shape.prompt + shape.response
        if self._model.config._attn_implementation == PACKED_ATTENTION:
            return {"pack_plan": plan_packing([length] * shape.rows, torch.device("meta"))}
        bounds = torch.arange(0, shape.rows * length + 1, length, dtype=torch.int32)
        return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": length, "max_length_k": length}

    def of_pass(self, shape: Shape) -> int:
        """Return the bytes that one forward and backward pass needs at its peak, besides parameters and earlier gradients.

        The second of two passes is counted, in which new gradients are added to those of the first.
        """
        extra = self._inputs(shape)
        with torch.device("meta"), _fused_attention(), LiveBytes() as counter:
            self._run(shape, extra)
            before = counter.live
            counter.peak = before
            self._run(shape, extra)
            self._model.zero_grad(set_to_none=True)
        return counter.peak - before

    def _run(self, shape: Shape, extra: dict[str, Any]) -> None:
        rows, length = shape.rows, shape.prompt + shape.response
        keep: torch.Tensor | int = shape.response + 1
        ids = torch.zeros(rows, length, dtype=torch.long)
        if self._layout.form == "packed":
            keep = torch.zeros(rows * shape.response, dtype=torch.long)
            ids = ids.view(1, -1)
        outputs = run_head(self._model, keep, input_ids=ids, position_ids=torch.zeros_like(ids), **extra)
        logits = outputs[0] if self._layout.form == "packed" else outputs[:, :-1].flatten(0, 1)
        log_probs, entropy = token_scores(logits, torch.zeros(len(logits), dtype=torch.long), 1.0)
        (log_probs.sum() + 0.0 * entropy.detach().sum()).backward()
