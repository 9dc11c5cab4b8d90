"""A tiny random Qwen3 and engines over it."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from verl.protocol.generate import GenerateRequest, SamplingParams
from verl.workers.rollout.hf_engine import HFEngine

VOCAB = 512


def tiny_model(seed: int = 0, head_dim: int = 16) -> torch.nn.Module:
    """A Qwen3 of two layers whose random weights are large enough to make uneven distributions."""
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=head_dim, max_position_embeddings=512, tie_word_embeddings=True, initializer_range=0.15,
    )  # fmt: skip
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


def request(
    length: int, max_tokens: int, *, seed: int = 0, n: int = 1, request_id: str = "", prompt_seed: int | None = None, **sampling: object
) -> GenerateRequest:
    """A request with a random prompt of `length` tokens."""
    generator = torch.Generator().manual_seed(seed if prompt_seed is None else prompt_seed)
    prompt = tuple(torch.randint(0, VOCAB, (length,), generator=generator).tolist())
    return GenerateRequest(prompt, SamplingParams(max_tokens=max_tokens, **sampling), n=n, seed=seed, request_id=request_id)


def engine_processes() -> list[psutil.Process]:
    """The processes that vLLM has started below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "EngineCore" in " ".join(process.cmdline()):
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
