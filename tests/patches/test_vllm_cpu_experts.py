"""The patch of experts on a CPU after a reload of weights: still needed, and right where it is applied."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import patches
from patches import PatchError, vllm_cpu_experts


class Experts:
    """Packs by turning the rows around, as the kernel's own packing reorders them."""

    def process_weights_after_loading(self, layer: Any) -> None:
        for name in ("w13_weight", "w2_weight"):
            setattr(layer, name, torch.nn.Parameter(getattr(layer, name).flip(-1), requires_grad=False))


@pytest.fixture
def method(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Any]]:
    """vLLM's class with its own method, which comes back after the test."""
    from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as module

    cls = module.UnquantizedFusedMoEMethod
    monkeypatch.setattr(cls, "_setup_kernel", getattr(cls._setup_kernel, "__wrapped__", cls._setup_kernel))
    monkeypatch.setattr(
        module,
        "convert_to_unquantized_kernel_format",
        lambda *args, w13_weight, w2_weight, **_: (w13_weight, w2_weight),
    )
    yield cls


def loaded_twice(method: type[Any]) -> torch.Tensor:
    """The experts' weights after a load and a reload of the same ones."""
    weights = torch.arange(6.0).view(1, 2, 3)

    def fresh() -> torch.nn.Parameter:
        return torch.nn.Parameter(weights.clone(), requires_grad=False)

    layer = torch.nn.Module()
    layer.moe_config = None  # type: ignore[assignment]
    own = SimpleNamespace(moe_kernel=None, unquantized_backend=None)
    own._init_moe_kernel = lambda layer: setattr(own, "moe_kernel", SimpleNamespace(fused_experts=Experts()))
    for _ in range(2):
        layer.w13_weight, layer.w2_weight = fresh(), fresh()
        method._setup_kernel(own, layer, layer.w13_weight, layer.w2_weight)
    return layer.w13_weight.detach()


def test_without_the_patch_reloaded_experts_are_not_packed(method: type[Any]) -> None:
    """When this fails, vLLM does what the patch is for: remove it."""
    assert torch.equal(loaded_twice(method), torch.arange(6.0).view(1, 2, 3))


def test_with_it_they_are_packed_once_on_every_load(method: type[Any]) -> None:
    vllm_cpu_experts.apply()
    vllm_cpu_experts.apply()
    assert torch.equal(loaded_twice(method), torch.arange(6.0).view(1, 2, 3).flip(-1))


def test_it_refuses_what_it_does_not_know(method: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(method, "_setup_kernel")
    with pytest.raises(PatchError, match="has no _setup_kernel"):
        vllm_cpu_experts.apply()
    monkeypatch.setattr(patches, "version", lambda name: "0.31.2")
    with pytest.raises(
        PatchError,
        match=r"vllm_cpu_experts\.py is for vllm-cpu>=0\.32,<0\.33, but vllm-cpu 0\.31\.2 is installed",
    ):
        vllm_cpu_experts.apply()
