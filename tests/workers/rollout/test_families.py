"""The `hf` engine serves every family exactly, or refuses it in one line before it loads anything."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.models.families import FAMILIES, LIMIT, WINDOW, make_model
from tests.workers.rollout.conftest import largest_gap, tensors_of
from verl.models.lora import LoraSpec, adapter_parameters, add_adapters, select_adapter
from verl.protocol.generate import GenerateRequest, Generation, RolloutError, SamplingParams
from verl.workers.rollout.hf_engine import HFEngine
from verl.workers.rollout.serving import serving_of

# in tokens: one wraps a ring, one is continued across every window, one across every position limit
PROMPTS = (
    70,
    3,
    26,
)
REPLIES = (6, 12, 10)
SHORT_PROMPTS = (12, 3, 20)  # with their replies below the position limit
SHORT_REPLIES = (6, 12, 10)
LONG = 128
ROWS = {  # decoded one by one: no other way is exact
    "stablelm", "falcon", "bloom", "mpt", "gptj", "mamba2", "minimax", "lfm2", "lfm2_moe", "nemotron_h",
    "falcon_h1", "bamba", "zamba2",
    "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text",
}  # fmt: skip
LIMITED = {"llama-dynamic", "phi3-longrope"}
REFUSED = {"recurrent_gemma"}  # its own decode step is no continuation of its full pass
# by which the model's own decode step differs from its full pass
OWN_DECODE = {
    "nemotron_h": 0.05,
    "zamba2": 0.2,
    "qwen3_next": 5e-3,
}


def greedy_requests(prompts: Sequence[int], replies: Sequence[int]) -> list[GenerateRequest]:
    generator = torch.Generator().manual_seed(1)
    texts = [tuple(torch.randint(3, 576, (length,), generator=generator).tolist()) for length in prompts]
    return [
        GenerateRequest(text, SamplingParams(n, temperature=0.0), request_id=str(n))
        for text, n in zip(texts, replies, strict=True)
    ]


async def staggered(engine: HFEngine, requests: Sequence[GenerateRequest]) -> list[Generation]:
    """The replies to requests that arrive a few steps apart, more of them than slots."""

    async def later(index: int, one: GenerateRequest) -> Generation:
        for _ in range(3 * index):
            await asyncio.sleep(0)
        return (await engine.generate(one))[0]

    return list(await asyncio.gather(*(later(i, one) for i, one in enumerate(requests))))


@torch.no_grad()
def largest_gaps(
    model: Any, requests: Sequence[GenerateRequest], replies: Sequence[Generation]
) -> tuple[float, float]:
    """Of the replies' log-probs from those of a full pass over each row alone, and of their tokens' from the
    most likely ones.
    """
    log_prob = greedy = 0.0
    pairs = sorted(
        zip(requests, replies, strict=True), key=lambda pair: len(pair[0].prompt_ids + pair[1].token_ids)
    )
    for req, reply in pairs:
        row = torch.tensor([req.prompt_ids + reply.token_ids])
        expected = (
            model(input_ids=row, use_cache=False)
            .logits[0, len(req.prompt_ids) - 1 : -1]
            .float()
            .log_softmax(-1)
        )
        chosen = expected.gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]
        log_prob = max(log_prob, float((chosen - torch.tensor(reply.log_probs)).abs().max()))
        greedy = max(greedy, float((expected.amax(-1) - chosen).max()))
    return log_prob, greedy


@torch.no_grad()
def generated(model: Any, one: GenerateRequest) -> tuple[int, ...]:
    """The greedy reply of transformers' `generate` to one prompt alone."""
    ids = torch.tensor([one.prompt_ids])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=one.sampling.max_tokens,
        eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    return tuple(out[0, ids.shape[1] :].tolist())


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - REFUSED))
async def test_replies_of_a_batch_are_those_of_a_full_pass_over_each_row_and_of_generate(name: str) -> None:
    model = make_model(FAMILIES[name].config())
    prompts, replies, longest = (
        (PROMPTS, REPLIES, LONG) if name not in LIMITED else (SHORT_PROMPTS, SHORT_REPLIES, LIMIT)
    )
    serving = serving_of(model.config, max_model_len=longest)
    assert (serving.mode, serving.same_bits) == ("rows" if name in ROWS else "slots", True)
    requests = greedy_requests(prompts, replies)
    engine = HFEngine(copy.deepcopy(model), max_num_seqs=2, max_model_len=longest)
    batch = await staggered(engine, requests)
    log_prob, greedy = largest_gaps(copy.deepcopy(model), requests, batch)
    assert log_prob < OWN_DECODE.get(name, 1e-3)
    assert greedy < OWN_DECODE.get(name, 1e-3), "a token that is not the most likely one"
    (again,) = await engine.generate(requests[2])
    assert again == batch[2], "alone, after others, a reply has the bits that it has beside them"
    assert generated(model, requests[2]) == batch[2].token_ids


@pytest.mark.parametrize("name", sorted(LIMITED | REFUSED))
def test_what_cannot_be_exact_is_refused_in_one_line_that_names_the_keys(name: str) -> None:
    with pytest.raises(
        RolloutError, match=f"at most {LIMIT}$" if name in LIMITED else "rollout.name=vllm$"
    ) as refusal:
        HFEngine(make_model(FAMILIES[name].config()), max_num_seqs=4, max_model_len=LONG)
    assert "\n" not in str(refusal.value) and "hf engine" in str(refusal.value)
    assert WINDOW < LIMIT < LONG


ADAPTED = ("qwen3", "opt", "qwen2_moe", "gemma2", "bloom", "lfm2", "phimoe", "deepseek_v3", "qwen3_next")


@pytest.mark.parametrize("name", sorted(FAMILIES))
async def test_adapters_are_those_of_peft(name: str, request: pytest.FixtureRequest) -> None:
    """Layers get inputs of two or four dimensions, or return tuples; rows have different adapters or none."""
    if name not in ADAPTED and not request.config.getoption("--all-levels"):
        pytest.skip("one family more: needs --all-levels")
    try:
        serving = serving_of(FAMILIES[name].config(), max_model_len=LONG)
    except RolloutError as refusal:
        pytest.skip(f"refused: {refusal}")
    # A model's own decode step rounds differently from its own full pass: Zamba-2 by 9e-3.
    tolerance = 1e-3 if serving.mode == "slots" else 2e-2
    specs = {"a": LoraSpec(4, 8), "b": LoraSpec(2, 4)}
    model = add_adapters(make_model(FAMILIES[name].config()), specs, name, 0).eval()
    generator = torch.Generator().manual_seed(0)
    for adapter in specs:
        for parameter in adapter_parameters(model, adapter).values():
            parameter.data.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    engine = HFEngine(make_model(FAMILIES[name].config()), max_num_seqs=4, max_model_len=LONG, adapters=specs)
    for adapter in specs:
        engine.update_weights(tensors_of(model, adapter), adapter=adapter, version=1)
    plain = greedy_requests((20, 20, 9), (8, 8, 8))
    requests = [
        dataclasses.replace(one, adapter=adapter)
        for one, adapter in zip(plain, ("a", None, "b"), strict=True)
    ]
    replies = await staggered(engine, requests)
    assert largest_gap(model, requests, replies) < tolerance
    select_adapter(model, "b")
    assert largest_gaps(model, requests[:1], replies[:1])[0] > 1e-2, "the adapter changes nothing"
