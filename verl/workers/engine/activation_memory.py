"""The memory of one training pass, counted without doing it: the model runs on tensors that have
shapes and no numbers.

Every operation of forward and backward is run in the engine's own dtype, attention and loss, and
the bytes that live at a time are counted, so temporary tensors and gradients are in the peak as
they are in a real pass. It takes no memory, whatever the size of the model.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from verl.models.fused import fuse_norms
from verl.models.loader import ModelLoader
from verl.models.lora import LoraSpec, add_adapters, select_adapter
from verl.workers.engine.attention import PACKED_ATTENTION, plan_packing
from verl.workers.engine.forward import ModelCall, scores_of_call
from verl.workers.engine.head_scores import LogitMap, ScoreRequest
from verl.workers.engine.layout import RowLayout
from verl.workers.engine.layout_check import attention_name
from verl.workers.engine.sharding import checkpoint_activations


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors made inside it: `live` now, `peak` the most at a time since it
    was last set.

    Args:
        before: tensors that exist; operations inside may return views of them.
    """

    def __init__(self, before: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._counted: weakref.WeakSet[Any] = weakref.WeakSet(tensor.untyped_storage() for tensor in before)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = _without_numbers(func, args, kwargs or {})
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


def _without_numbers(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of an operation on tensors without numbers, also of those for which torch
    has no form without numbers.
    """
    if func is torch.ops.aten._local_scalar_dense.default:
        # rows are whole and positions plain, so conditions of masks are met; other numbers are 0
        return args[0].dtype == torch.bool
    # Without numbers torch has this operation in bf16 alone.
    if func is torch.ops.aten._grouped_mm.default and args[0].dtype == torch.float32:
        halves = [
            arg.bfloat16() if isinstance(arg, torch.Tensor) and arg.is_floating_point() else arg
            for arg in args
        ]
        return func(*halves, **kwargs).float()
    return func(*args, **kwargs)


@contextmanager
def _fused_attention() -> Iterator[None]:
    """Let attention on tensors without numbers keep what the fused kernels keep: torch has none for
    them and would compute all weights.
    """
    functional: Any = F
    plain = functional.scaled_dot_product_attention

    def fused(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, **options: Any
    ) -> torch.Tensor:
        causal = options.get("is_causal", False)
        # The kernel adds a mask to the scores.
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.empty(attn_mask.shape, dtype=query.dtype)
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return flash(query, key, value, 0.0, causal, attn_mask=attn_mask, scale=options.get("scale"))[0]

    functional.scaled_dot_product_attention = fused
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = plain


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


class _Phases:
    """The peaks of one counted pass: until the gradient of the last layer's output, of the first
    layer's input, and to the end.

    Between these points the bytes that live are those of all layers, so peaks before the last point
    grow with each layer by `per_layer`.
    """

    def __init__(self, counter: LiveBytes) -> None:
        self._counter = counter
        # peak while the activations of all layers may live
        self.of_layers = 0
        self._starts: list[int] = []

    def layer_starts(self, *_: Any) -> None:
        """Note the bytes that live when a layer's forward pass begins."""
        self._starts.append(self._counter.live)

    def embedded(self, module: Any, inputs: Any, output: torch.Tensor) -> None:
        """End the phase of the layers when the gradient of the embeddings is there."""
        if output.requires_grad:
            output.register_hook(self._layers_end)

    def _layers_end(self, _: torch.Tensor) -> None:
        self.of_layers = self._counter.peak
        self._counter.peak = self._counter.live

    def peak(self, layers: int) -> int:
        """Return the peak of a model that has as many layers more."""
        per_layer = self._starts[3] - self._starts[2] if layers else 0
        # Embeddings that are frozen get no gradient, which would end the phase of the layers.
        if not self.of_layers:
            return self._counter.peak + layers * per_layer
        return max(self.of_layers + layers * per_layer, self._counter.peak)


# Equal layers that are counted; a model with more is counted with these, and the others are added.
COUNTED_LAYERS = 4


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
        logit_map: as for `verl.workers.engine.forward.score_tokens`.
        entropy_gradient: the loss has an entropy bonus.

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
        logit_map: LogitMap | None = None,
        entropy_gradient: bool = False,
    ) -> None:
        self._layout = layout
        self._logit_map = logit_map
        self._entropy_gradient = entropy_gradient
        self._passes: dict[Shape, int] = {}
        with torch.device("meta"):
            self._model = loader.build(
                path,
                dtype=dtype,
                attn_implementation=attention_name(layout),
                trust_remote_code=trust_remote_code,
            )
            self.parameters = sum(parameter.numel() for parameter in self._model.parameters())
            if adapters:
                add_adapters(self._model, adapters, path, 0)
                select_adapter(self._model, next(iter(adapters)))
            fuse_norms(self._model)
            self._model.eval()
            if checkpointing:
                checkpoint_activations(self._model)
        self.trained = sum(
            parameter.numel() for parameter in self._model.parameters() if parameter.requires_grad
        )
        self._layers = _equal_layers(self._model)
        self._more = max(0, len(self._layers) - COUNTED_LAYERS)
        if self._more:
            del self._layers[COUNTED_LAYERS:]

    def _inputs(self, shape: Shape) -> dict[str, Any]:
        """Return what packed rows need besides their tokens; it is planned on real numbers."""
        if self._layout.form != "packed":
            return {}
        length = shape.prompt + shape.response
        if self._model.config._attn_implementation == PACKED_ATTENTION:
            return {"pack_plan": plan_packing([length] * shape.rows, torch.device("meta"))}
        bounds = torch.arange(0, shape.rows * length + 1, length, dtype=torch.int32)
        return {
            "cu_seq_lens_q": bounds,
            "cu_seq_lens_k": bounds,
            "max_length_q": length,
            "max_length_k": length,
        }

    def of_pass(self, shape: Shape) -> int:
        """Return the bytes that one forward and backward pass needs at its peak, besides parameters
        and gradients of passes before it.
        """
        if shape not in self._passes:
            extra = self._inputs(shape)
            before = [*self._model.parameters(), *self._model.buffers()]
            # As after a first micro-batch; they are counted with the parameters.
            for parameter in self._model.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.empty_like(parameter)
                    before.append(parameter.grad)
            with torch.device("meta"), _fused_attention(), LiveBytes(before) as counter:
                phases = _Phases(counter)
                hooks = [layer.register_forward_pre_hook(phases.layer_starts) for layer in self._layers]
                hooks.append(self._model.get_input_embeddings().register_forward_hook(phases.embedded))
                self._run(shape, extra)
            for hook in hooks:
                hook.remove()
            self._passes[shape] = phases.peak(self._more)
        return self._passes[shape]

    def _run(self, shape: Shape, extra: dict[str, Any]) -> None:
        rows = shape.rows
        length = shape.prompt + shape.response
        labels = torch.zeros(rows * shape.response, dtype=torch.long)
        ids = torch.zeros(rows, length, dtype=torch.long)
        keep: torch.Tensor | int = shape.response + 1
        if self._layout.form == "packed":
            ids = ids.view(1, -1)
            keep = torch.zeros_like(labels)
        inputs = {"input_ids": ids, "position_ids": torch.zeros_like(ids), **extra}
        call = ModelCall(inputs, keep, self._before_responses)
        # Entropy is a metric of every update; with a gradient of it a frozen head keeps tiles of logits.
        request = ScoreRequest(labels, entropy_gradient=self._entropy_gradient)
        scores = scores_of_call(self._model, call, request, self._logit_map)
        loss = scores.log_probs.sum()
        if self._entropy_gradient:
            loss = loss + scores.entropy.sum()
        loss.backward()

    def _before_responses(self, outputs: torch.Tensor) -> torch.Tensor:
        """Select the outputs that are read."""
        return outputs[0] if self._layout.form == "packed" else outputs[:, :-1].flatten(0, 1)


def _equal_layers(model: Any) -> Any:
    """Return the list of the model's layers if all of them are alike, else an empty list."""
    config = model.config.get_text_config()
    count = getattr(config, "num_hidden_layers", 0)
    lists = [
        module
        for module in model.modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == count
    ]
    # Layers of several types take different memory, whatever their parameters are.
    if len(lists) != 1 or len(set(getattr(config, "layer_types", None) or ())) > 1:
        return torch.nn.ModuleList()
    shapes = [{name: value.shape for name, value in layer.named_parameters()} for layer in lists[0]]
    return lists[0] if all(layer_shapes == shapes[0] for layer_shapes in shapes) else torch.nn.ModuleList()
