"""The patch of parameters that a model writes itself while its weights are reloaded: still needed, and right
where it is applied.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

import patches
from patches import PatchError, vllm_direct_writes

NEW = {
    "sinks": torch.arange(4.0),
    "experts": torch.arange(12.0).view(2, 2, 3),
    "weight": torch.full((3,), 5.0),
}


class DirectModel(torch.nn.Module):
    """Writes its sinks whole and its experts one by one, and its weight by a loader, as gpt-oss does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Module()
        for name, value in NEW.items():
            self.inner.register_parameter(
                name, torch.nn.Parameter(torch.full_like(value, -1), requires_grad=False)
            )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        for name, value in weights:
            parameter = dict(self.inner.named_parameters())[name]
            if name == "sinks":
                parameter.data.copy_(value)
            elif name == "experts":
                for index, expert in enumerate(value):
                    parameter.data[index].copy_(expert)
            else:
                getattr(parameter, "weight_loader", default_weight_loader)(parameter, value)


def reloaded(patched: bool, buckets: int) -> DirectModel:
    """The model after new weights have come by vLLM's reload."""
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
        record_metadata_for_reloading,
    )

    model = DirectModel()
    record_metadata_for_reloading(model)
    initialize_layerwise_reload(model)
    names = list(NEW)
    for part in [names[i::buckets] for i in range(buckets)]:
        with vllm_direct_writes.redirected(model) if patched else nullcontext():
            model.load_weights([(name, NEW[name]) for name in part])
    finalize_layerwise_reload(model, SimpleNamespace(dtype=torch.float32))
    return model


def test_without_the_patch_what_the_model_writes_is_lost() -> None:
    """When this fails, vLLM does what the patch is for: remove it."""
    model = reloaded(patched=False, buckets=1)
    assert not any(torch.equal(model.inner.get_parameter(name), NEW[name]) for name in ("sinks", "experts"))


@pytest.mark.parametrize("buckets", [1, 2, 3])
def test_with_it_everything_arrives_in_the_old_storage(buckets: int) -> None:
    model = reloaded(patched=True, buckets=buckets)
    for name, value in NEW.items():
        assert torch.equal(model.inner.get_parameter(name), value)
        assert not model.inner.get_parameter(name).is_meta


def test_it_refuses_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "version", lambda name: "0.33.0")
    refusal = pytest.raises(
        PatchError, match=r"vllm_direct_writes\.py is for vllm>=0\.32,<0\.33, but vllm 0\.33\.0"
    )
    with refusal, vllm_direct_writes.redirected(DirectModel()):
        pass
