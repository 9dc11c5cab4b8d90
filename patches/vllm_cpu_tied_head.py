"""vLLM on a CPU: update an output head that shares its weights with the input embedding.

A head keeps a packed copy of its weights for the matrix product. Reloaded weights (`model_loader.reload`) are
packed again layer by layer as they arrive, but a tied head receives none and keeps the copy of the old
weights, so that replies come from a model with old and new weights. After an update, `apply` packs the packed
heads that still have their weights again.

Upstream: a limitation that is documented in `vllm/model_executor/model_loader/reload/__init__.py` ("tied
parameters will only reflect processing from one of the parent layers"); there is no issue about heads on a
CPU. For vLLM 0.32. The patch can be removed when a reload packs tied heads:
`tests/patches/test_vllm_cpu_tied_head.py` fails then.
"""

from __future__ import annotations

from typing import Any

from patches import PatchError, require

NAME = "patches/vllm_cpu_tied_head.py"
PACKAGES = ("vllm-cpu", "vllm")
VERSIONS = ">=0.32,<0.33"


def apply(model: Any) -> int:
    """Pack the heads of a model whose weights have just been reloaded and return their number, 0 on a GPU.

    Raises:
        PatchError: another version of vLLM, or a packed head that cannot be packed again.
    """
    found = require(NAME, PACKAGES, VERSIONS)
    heads = [
        module
        for module in model.modules()
        if "cpu_linear" in vars(module) and getattr(module, "weight", None) is not None
    ]
    # a layer without weights was packed when they arrived
    heads = [head for head in heads if head.weight.numel()]
    for head in heads:
        pack = getattr(getattr(head, "quant_method", None), "process_weights_after_loading", None)
        if pack is None:
            raise PatchError(
                f"{NAME} does not fit {type(head).__name__} of vLLM {found}: it is packed, but has no method "
                "that packs it"
            )
        pack(head)
    return len(heads)
