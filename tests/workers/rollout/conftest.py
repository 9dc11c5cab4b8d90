"""A tiny random Qwen3 and engines over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from verl.models.lora import LoraSpec, adapter_parameters, add_adapters, select_adapter
from verl.protocol.generate import GenerateRequest, Generation, SamplingParams
from verl.workers.rollout.base import RolloutEngine
from verl.workers.rollout.hf_engine import HFEngine

VOCAB = 512
SPECS = {
    "a": LoraSpec(4, 8),
    "b": LoraSpec(1, 1, ["q_proj", "up_proj"]),
    "c": LoraSpec(3, 1, exclude_modules=["q_proj"]),
}
EVERYONE = (None, "a", "b", "c")


def tiny_model(seed: int = 0, head_dim: int = 16) -> torch.nn.Module:
    """A Qwen3 of two layers whose random weights are large enough to make uneven distributions."""
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim, max_position_embeddings=512, tie_word_embeddings=True, initializer_range=0.15,
    )  # fmt: skip
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


def peft_model(seed: int = 0, base: int = 0, head_dim: int = 16) -> torch.nn.Module:
    """The tiny model with `SPECS` as PEFT has them, and weights that matter."""
    model = add_adapters(tiny_model(base, head_dim), SPECS, "tiny", 0)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in SPECS:
            for p in adapter_parameters(model, name).values():
                p.copy_(0.2 * torch.randn(p.shape, generator=generator))
    return model.eval()


def tensors_of(model: torch.nn.Module, name: str) -> dict[str, torch.Tensor]:
    """An adapter's weights by their names in PEFT's files."""
    return {key: p.detach().clone() for key, p in adapter_parameters(model, name).items()}


def request(
    length: int,
    max_tokens: int,
    *,
    seed: int = 0,
    n: int = 1,
    request_id: str = "",
    prompt_seed: int | None = None,
    **sampling: object,
) -> GenerateRequest:
    """A request with a random prompt of `length` tokens."""
    generator = torch.Generator().manual_seed(seed if prompt_seed is None else prompt_seed)
    prompt = tuple(torch.randint(0, VOCAB, (length,), generator=generator).tolist())
    return GenerateRequest(
        prompt, SamplingParams(max_tokens=max_tokens, **sampling), n=n, seed=seed, request_id=request_id
    )


async def all_of(engine: RolloutEngine, requests: Sequence[GenerateRequest]) -> list[Generation]:
    """The only reply to each of the requests, which are made at once."""
    return [replies[0] for replies in await asyncio.gather(*(engine.generate(r) for r in requests))]


def largest_gap(
    model: torch.nn.Module, requests: Sequence[GenerateRequest], replies: Sequence[Generation]
) -> float:
    """Between the engine's log-probs and those of PEFT's own forward pass."""
    gaps = []
    for req, reply in zip(requests, replies, strict=True):
        select_adapter(model, req.adapter)
        ids = torch.tensor([req.prompt_ids + reply.token_ids])
        with torch.no_grad():
            logits = model(ids).logits[0, len(req.prompt_ids) - 1 : -1] / (req.sampling.temperature or 1.0)
        expected = torch.log_softmax(logits, -1).gather(-1, torch.tensor(reply.token_ids)[:, None])[:, 0]
        gaps.append(float((expected - torch.tensor(reply.log_probs)).abs().max()))
    return max(gaps)


def engine_processes() -> list[psutil.Process]:
    """The processes that vLLM has started below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any(title in " ".join(process.cmdline()) for title in ("EngineCore", "VLLM::Worker")):
                found.append(process)
        except psutil.Error:  # it has just ended
            continue
    return found


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def make_engine() -> Callable[..., HFEngine]:
    def make(slots: int = 8, max_model_len: int = 256, seed: int = 0) -> HFEngine:
        return HFEngine(tiny_model(seed), max_num_seqs=slots, max_model_len=max_model_len)

    return make
