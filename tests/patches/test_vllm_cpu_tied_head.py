"""The patch of tied heads after a reload of weights: still needed, and right where it is applied."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import patches
from patches import PatchError, vllm_cpu_tied_head


class TiedModel(torch.nn.Module):
    """An embedding and a head with one weight `[tokens, width]`, which vLLM's own method packs for
    the head.
    """

    def __init__(self) -> None:
        from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

        super().__init__()
        self.embed, self.head = torch.nn.Module(), torch.nn.Module()
        self.embed.weight = torch.nn.Parameter(torch.randn(512, 64), requires_grad=False)
        self.head.weight = self.embed.weight
        self.head.quant_method = UnquantizedEmbeddingMethod()  # type: ignore[assignment]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head.quant_method.apply(self.head, hidden)  # type: ignore[operator, union-attr]


@pytest.fixture
def reloaded() -> TiedModel:
    """The model after new weights have come by vLLM's reload, under the embedding's name alone."""
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
        record_metadata_for_reloading,
    )
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    model = TiedModel()
    record_metadata_for_reloading(model)
    model.head.quant_method.process_weights_after_loading(model.head)  # type: ignore[operator, union-attr]
    initialize_layerwise_reload(model)
    model.embed.weight.weight_loader(
        model.embed.weight, torch.randn(512, 64, generator=torch.Generator().manual_seed(1))
    )  # type: ignore[operator, union-attr]
    finalize_layerwise_reload(model, SimpleNamespace(dtype=torch.float32))
    return model


HIDDEN = torch.randn(3, 64, generator=torch.Generator().manual_seed(2))


def test_without_the_patch_the_head_keeps_the_old_weights(reloaded: TiedModel) -> None:
    """When this fails, vLLM does what the patch is for: remove it."""
    assert reloaded.head.weight is reloaded.embed.weight
    assert (reloaded.logits(HIDDEN) - HIDDEN @ reloaded.embed.weight.T).abs().max() > 1


def test_with_it_the_head_has_the_new_ones(reloaded: TiedModel) -> None:
    assert vllm_cpu_tied_head.apply(reloaded) == 1
    torch.testing.assert_close(reloaded.logits(HIDDEN), HIDDEN @ reloaded.embed.weight.T, atol=1e-4, rtol=0)


def test_it_refuses_what_it_does_not_know(reloaded: TiedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    del reloaded.head.quant_method
    with pytest.raises(PatchError, match="does not fit Module of vLLM"):
        vllm_cpu_tied_head.apply(reloaded)
    monkeypatch.setattr(patches, "version", lambda name: "0.31.2")
    with pytest.raises(
        PatchError, match=r"is for vllm-cpu>=0\.32,<0\.33, but vllm-cpu 0\.31\.2 is installed"
    ):
        vllm_cpu_tied_head.apply(reloaded)
