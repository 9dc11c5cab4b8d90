"""The hf engine against a plain forward of the same model."""

from __future__ import annotations

import asyncio

import pytest
import torch

from tests.workers.rollout.conftest import request, tiny_model
from verl.protocol.generate import Generation
from verl.workers.rollout.base import RolloutEngine


def plain_log_probs(prompt: tuple[int, ...], reply: tuple[int, ...], temperature: float) -> torch.Tensor:
    ids = torch.tensor([prompt + reply])
    with torch.no_grad():
        logits = tiny_model()(input_ids=ids).logits[0, len(prompt) - 1 : -1]
    return (logits.float() / temperature).log_softmax(-1).gather(1, torch.tensor(reply)[:, None]).squeeze(1)


@pytest.mark.parametrize("length", [1, 31, 32, 100, 199])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_log_probs_equal_those_of_a_plain_forward(make_engine, length, temperature):
    req = request(length, 40, temperature=temperature)
    (reply,) = await make_engine().generate(req)
    assert len(reply.token_ids) == 40 and reply.stop_reason == "length"
    expected = plain_log_probs(req.prompt_ids, reply.token_ids, temperature)
    torch.testing.assert_close(torch.tensor(reply.log_probs), expected, atol=1e-5, rtol=0)


async def test_greedy_takes_the_most_likely_token_at_every_step(make_engine):
    req = request(20, 30, temperature=0.0)
    (reply,) = await make_engine().generate(req)
    with torch.no_grad():
        logits = tiny_model()(input_ids=torch.tensor([req.prompt_ids + reply.token_ids])).logits[0, 19:-1]
    assert tuple(logits.argmax(-1).tolist()) == reply.token_ids


async def test_random_arrivals_change_no_bit(make_engine):
    generator = torch.Generator().manual_seed(7)
    requests = []
    for i in range(48):
        length, tokens = (int(x) for x in torch.randint(1, 90, (2,), generator=generator))
        extra = [{}, {"top_p": 0.8}, {"top_k": 5}, {"temperature": 0.0}, {"temperature": 0.7, "stop_token_ids": (3, 9)}][i % 5]
        requests.append(request(length, tokens, seed=i, n=1 + i % 3, prompt_seed=i // 2, **extra))
    engine = make_engine(slots=12)

    async def arrive(i: int) -> list[Generation]:
        for _ in range(int(torch.randint(0, 120, (1,), generator=generator))):
            await asyncio.sleep(0)
        return await engine.generate(requests[i])

    together = await asyncio.gather(*(arrive(i) for i in range(len(requests))))
    for req, shared in zip(requests, together, strict=True):
        assert await make_engine(slots=12).generate(req) == shared


def test_engine_fits_the_protocol(make_engine):
    assert isinstance(make_engine(), RolloutEngine)
