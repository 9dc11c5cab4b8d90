"""The patch of vLLM's sampler: still needed, and right where it is applied."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import patches
from patches import PatchError, vllm_full_log_probs


class Truncated:
    """Three rows of one batch: top-k, top-p, and neither; all have a temperature."""

    temperature = torch.tensor([0.6, 1.3, 0.8])
    top_k, top_p = torch.tensor([3, 50, 50]), torch.tensor([1.0, 0.5, 1.0])
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    log_probs = (logits / temperature[:, None]).log_softmax(-1)


def sampled(patched: bool, truncate: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and their log-probs, `[3]` each, from vLLM's own sampler."""
    from vllm.platforms import current_platform
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.sampler import Sampler

    current_platform.import_kernels()
    sampler = Sampler(logprobs_mode=vllm_full_log_probs.MODE)
    if patched:
        vllm_full_log_probs.apply(sampler)
        vllm_full_log_probs.apply(sampler)
    metadata = SamplingMetadata(
        temperature=Truncated.temperature, all_greedy=False, all_random=True,
        top_p=Truncated.top_p if truncate else None,
        top_k=Truncated.top_k if truncate else None,
        generators={i: torch.Generator().manual_seed(i) for i in range(3)},
        max_num_logprobs=0, no_penalties=True, prompt_token_ids=None, frequency_penalties=torch.zeros(3),
        presence_penalties=torch.zeros(3), repetition_penalties=torch.ones(3), output_token_ids=[[], [], []],
        allowed_token_ids_mask=None, bad_words_token_ids={}, logitsprocs=LogitsProcessors(),
    )  # fmt: skip
    with torch._dynamo.config.patch(disable=True):
        output = sampler(Truncated.logits.clone(), metadata)
    return output.sampled_token_ids[:, 0].long(), output.logprobs_tensors.logprobs[:, 0]


def full(tokens: torch.Tensor) -> torch.Tensor:
    return Truncated.log_probs.gather(1, tokens[:, None])[:, 0]


def test_without_the_patch_log_probs_are_those_of_the_truncated_distribution() -> None:
    """When this fails, vLLM does what the patch is for: remove it."""
    tokens, log_probs = sampled(patched=False)
    assert ((full(tokens) - log_probs).abs()[:2] > 0.1).all()


@pytest.mark.parametrize("truncate", [True, False])
def test_with_it_they_are_those_of_the_whole_distribution_and_the_tokens_stay(truncate: bool) -> None:
    tokens, log_probs = sampled(patched=True, truncate=truncate)
    torch.testing.assert_close(log_probs, full(tokens), atol=1e-6, rtol=0)
    assert torch.equal(tokens, sampled(patched=False, truncate=truncate)[0])


def test_it_refuses_another_version_another_sampler_and_another_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        PatchError,
        match=r"does not fit the sampler types.SimpleNamespace of vLLM 0\.32.*VLLM_USE_V2_MODEL_RUNNER=0",
    ):
        vllm_full_log_probs.apply(SimpleNamespace())
    raw = SimpleNamespace(topk_topp_sampler=SimpleNamespace(logprobs_mode="raw_logprobs", forward=print))
    with pytest.raises(PatchError, match="in mode processed_logprobs"):
        vllm_full_log_probs.apply(raw)
    monkeypatch.setattr(patches, "version", lambda name: "0.99.0")
    with pytest.raises(PatchError, match=r"is for vllm>=0\.32,<0\.33, but vllm 0\.99\.0 is installed"):
        vllm_full_log_probs.apply(raw)


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(PatchError, match=r"is for no-such-package or another>=1, and none is installed"):
        patches.require("p.py", ["no-such-package", "another"], ">=1")
