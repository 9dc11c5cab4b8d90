"""The hf engine against a plain forward of the same model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3ForCausalLM

from tests.workers.rollout.conftest import VOCAB, request, tiny_model
from verl.protocol.generate import GenerateRequest, Generation, RolloutError, SamplingParams
from verl.workers.rollout.base import RolloutEngine
from verl.workers.rollout.hf_engine import HFEngine


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


@pytest.mark.parametrize("slots", [12, 40])
async def test_random_arrivals_change_no_bit(make_engine, slots):
    generator = torch.Generator().manual_seed(7)
    requests = []
    for i in range(30):
        length, tokens = (int(torch.randint(1, most, (1,), generator=generator)) for most in (90, 40))
        extra = [
            {},
            {"top_p": 0.8},
            {"top_k": 5},
            {"temperature": 0.0},
            {"temperature": 0.7, "stop_token_ids": (3, 9)},
        ][i % 5]
        requests.append(request(length, tokens, seed=i, n=1 + i % 3, prompt_seed=i // 2, **extra))
    engine = make_engine(slots=slots)

    async def arrive(i: int) -> list[Generation]:
        for _ in range(int(torch.randint(0, 120, (1,), generator=generator))):
            await asyncio.sleep(0)
        return await engine.generate(requests[i])

    together = await asyncio.gather(*(arrive(i) for i in range(len(requests))))
    alone = make_engine(slots=slots)
    for i, (req, shared) in enumerate(zip(requests, together, strict=True)):
        assert await (make_engine(slots=slots) if i % 5 == 0 else alone).generate(req) == shared


async def test_a_decode_step_runs_over_the_slots_in_use_alone(make_engine, monkeypatch):
    rows: list[int] = []
    forward = Qwen3ForCausalLM.forward

    def spy(self: Qwen3ForCausalLM, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        if input_ids.shape[1] == 1:
            rows.append(len(input_ids))
        return forward(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(Qwen3ForCausalLM, "forward", spy)
    engine = make_engine(slots=64)
    await asyncio.gather(*(engine.generate(request(40, 5 if i else 30, seed=i)) for i in range(20)))
    assert max(rows) == 20 and rows[-1] == 4  # twenty replies, then the first one alone
    rows.clear()
    await engine.generate(request(40, 5, seed=1))
    assert set(rows) == {4}


def test_engine_fits_the_protocol(make_engine):
    assert isinstance(make_engine(), RolloutEngine)


async def test_a_seed_gives_one_reply_and_other_seeds_give_others(make_engine):
    engine = make_engine()
    replies = [await engine.generate(request(10, 20, seed=seed, prompt_seed=0)) for seed in (1, 1, 2)]
    assert replies[0] == replies[1] != replies[2]


async def test_n_replies_compute_the_prompt_once_and_differ(make_engine):
    engine = make_engine(slots=8)
    replies = await engine.generate(request(40, 10, n=20))
    assert len({reply.token_ids for reply in replies}) == 20
    assert engine.stats()["prompt_tokens_computed"] == 40
    assert (await make_engine(slots=8).generate(request(40, 10, n=3))) == replies[:3]


@pytest.mark.parametrize("length", [1, 40, 130])
async def test_every_copy_of_a_prompt_has_the_log_probs_of_a_plain_forward(make_engine, length):
    req = request(length, 12, n=8)
    for reply in await make_engine(slots=3).generate(req):
        expected = plain_log_probs(req.prompt_ids, reply.token_ids, 1.0)
        torch.testing.assert_close(torch.tensor(reply.log_probs), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("slots", [3, 8, 16])
async def test_replies_of_few_slots_staggered_arrivals_and_aborts_keep_their_bits_and_each_prompt_is_computed_once(
    make_engine, slots
):
    generator = torch.Generator().manual_seed(slots)
    lengths = torch.randint(1, 30, (20,), generator=generator).tolist()  # several are computed together
    stops = {"stop_token_ids": tuple(range(40))}  # replies of a request end at different times
    requests = [
        request(length, 4 + 5 * (i % 6), seed=i, n=8, request_id=str(i), **stops)
        for i, length in enumerate(lengths)
    ]
    engine = make_engine(slots=slots)

    async def arrive(i: int) -> list[Generation]:
        for _ in range(int(torch.randint(0, 20, (1,), generator=generator))):
            await asyncio.sleep(0)
        flight = asyncio.create_task(engine.generate(requests[i]))
        if i % 5 == 0:  # given up somewhere on the way
            for _ in range(20):
                await asyncio.sleep(0)
            engine.abort(str(i))
        return await flight

    together = await asyncio.gather(*(arrive(i) for i in range(len(requests))))
    stats = engine.stats()
    assert stats["prompt_tokens_computed"] <= sum(lengths)
    assert stats["prompt_tokens_computed"] >= sum(n for i, n in enumerate(lengths) if i % 5)
    alone = make_engine(slots=8)
    for i, (req, shared) in enumerate(zip(requests, together, strict=True)):
        for found, expected in zip(shared, await alone.generate(req), strict=True):
            ended = len(found.token_ids) if found.stop_reason == "abort" else None
            assert (found.token_ids, found.log_probs) == (
                expected.token_ids[:ended],
                expected.log_probs[:ended],
            )
            assert found.stop_reason == expected.stop_reason or (i % 5 == 0 and found.stop_reason == "abort")


async def test_a_prompt_that_is_computed_again_for_the_later_replies_changes_none_of_them(make_engine):
    engine = make_engine(slots=3)
    flight = asyncio.create_task(engine.generate(request(40, 10, n=8)))
    await until_running(engine, 4)
    same = {name: tensor.detach() for name, tensor in tiny_model().named_parameters()}
    engine.update_weights(same, version=0)
    again = await flight
    assert engine.stats()["prompt_tokens_computed"] == 80
    assert again == await make_engine(slots=8).generate(request(40, 10, n=8))


async def test_a_reply_ends_with_the_first_stop_token(make_engine):
    (free,) = await make_engine().generate(request(10, 30))
    stops = (free.token_ids[12], free.token_ids[20])
    (stopped,) = await make_engine().generate(request(10, 30, stop_token_ids=stops))
    end = min(free.token_ids.index(stop) for stop in stops)
    assert stopped.stop_reason == "stop" and stopped.token_ids == free.token_ids[: end + 1]
    assert stopped.log_probs == free.log_probs[: end + 1]


async def test_max_tokens_is_clipped_to_the_room_the_model_leaves(make_engine):
    (reply,) = await make_engine(max_model_len=100).generate(request(99, 50))
    assert (len(reply.token_ids), reply.stop_reason) == (1, "length")
    (reply,) = await make_engine(max_model_len=100).generate(request(70, 50))
    assert len(reply.token_ids) == 30


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (request(100, 5, request_id="r7"), "r7 has 100 tokens, max_model_len is 100"),
        (GenerateRequest((), SamplingParams(5)), "0 prompt tokens"),
        (GenerateRequest((1, VOCAB), SamplingParams(5)), "outside"),
        (GenerateRequest((1,), SamplingParams(5), n=0), "n=0"),
        (GenerateRequest((1,), SamplingParams(5), adapter="a"), "no adapter 'a'"),
    ],
)
async def test_a_request_that_cannot_be_served_says_why(make_engine, bad, match):
    with pytest.raises(RolloutError, match=match):
        await make_engine(max_model_len=100).generate(bad)


async def until_running(engine: HFEngine, steps: int) -> None:
    while engine.stats()["steps"] < steps:
        await asyncio.sleep(0)


async def test_weights_change_under_replies_in_flight(make_engine):
    engine = make_engine()
    (before,) = await engine.generate(request(10, 60))
    flight = asyncio.create_task(engine.generate(request(10, 60)))
    start = engine.stats()["steps"]
    await until_running(engine, start + 20)
    new = {name: tensor.detach() for name, tensor in tiny_model(seed=1).named_parameters()}
    names = sorted(new)
    engine.update_weights({name: new[name] for name in names[:4]}, version=5, final=False)
    held = engine.stats()["steps"]
    for _ in range(10):
        await asyncio.sleep(0)
    assert engine.stats()["steps"] <= held + 1 and engine.version == 0
    engine.update_weights({name: new[name] for name in names[4:]}, version=5)
    (reply,) = await flight
    assert (
        reply.version == 5
        and reply.token_ids[:15] == before.token_ids[:15]
        and reply.token_ids != before.token_ids
    )
    assert await engine.generate(request(10, 60)) == [
        Generation(g.token_ids, g.log_probs, g.stop_reason, version=5)
        for g in await make_engine(seed=1).generate(request(10, 60))
    ]


def test_weights_that_do_not_fit_are_refused_whole(make_engine):
    engine, name = make_engine(), "model.norm.weight"
    for bad, match in [
        ({"model.nrom.weight": torch.ones(64)}, "model.nrom.weight"),
        ({name: torch.ones(3)}, r"\(3,\), expected \(64,\)"),
    ]:
        with pytest.raises(RolloutError, match=match):
            engine.update_weights(bad, version=1)
    with pytest.raises(RolloutError, match="never came"):
        engine.update_weights({name: torch.ones(64)}, version=1)


async def test_logits_that_are_not_numbers_fail_their_request_and_no_later_one(make_engine):
    engine = make_engine()
    good = {name: tensor.detach().clone() for name, tensor in tiny_model().named_parameters()}
    engine.update_weights({**good, "model.norm.weight": torch.full((64,), float("nan"))}, version=0)
    failed = await asyncio.gather(
        *(engine.generate(request(10, 5, seed=i)) for i in range(9)), return_exceptions=True
    )
    assert all(isinstance(error, RolloutError) and "non-finite" in str(error) for error in failed)
    engine.update_weights(
        {**good, "model.layers.0.self_attn.v_proj.weight": torch.full((32, 64), float("nan"))}, version=0
    )
    # the last one finds all slots taken
    several = [
        request(10, 5, n=12),
        request(10, 5, seed=1, n=2),
        request(90, 5),
    ]
    failed = await asyncio.gather(*(engine.generate(req) for req in several), return_exceptions=True)
    assert all(
        isinstance(error, RolloutError) and "non-finite logits for request" in str(error) for error in failed
    )
    assert engine.stats()["failed"] == 9 + 12 + 2 + 1
    engine.update_weights(good, version=0)
    assert await engine.generate(request(10, 70, n=8)) == await make_engine().generate(request(10, 70, n=8))


async def test_abort_ends_a_request_with_what_it_has(make_engine):
    engine = make_engine()
    flight = asyncio.create_task(engine.generate(request(10, 200, n=12, request_id="x")))
    await until_running(engine, 10)
    assert engine.abort("x") == 12 and engine.abort("x") == 0
    replies = await flight
    assert {reply.stop_reason for reply in replies} == {"abort"}
    assert [0 < len(reply.token_ids) < 200 for reply in replies] == [True] * 8 + [False] * 4
    assert engine.stats()["active"] == engine.stats()["waiting"] == 0


async def test_a_cancelled_request_frees_its_slots(make_engine):
    engine = make_engine()
    flight = asyncio.create_task(engine.generate(request(10, 200, n=12)))
    await until_running(engine, 5)
    flight.cancel()
    await asyncio.gather(flight, return_exceptions=True)
    assert engine.stats()["active"] == engine.stats()["waiting"] == 0


async def test_a_pause_holds_replies_and_sleep_wants_an_idle_engine(make_engine):
    engine = make_engine()
    (expected,) = await make_engine().generate(request(10, 30))
    flight = asyncio.create_task(engine.generate(request(10, 30)))
    await until_running(engine, 5)
    engine.pause()
    with pytest.raises(RolloutError, match="cannot sleep with 1 request"):
        engine.sleep()
    for _ in range(50):
        await asyncio.sleep(0)
    assert not flight.done()
    engine.resume()
    assert await flight == [expected]
    engine.sleep()
    assert await engine.generate(request(10, 30)) == [expected]


async def test_a_long_prompt_before_a_sleep_does_not_hurt_a_short_one_after_it(make_engine):
    engine = make_engine()
    expected = await make_engine().generate(request(10, 5))
    await engine.generate(request(180, 5))
    engine.sleep()
    assert await engine.generate(request(10, 5)) == expected


async def test_requests_of_a_failed_loop_fail_with_it_and_the_next_ones_are_served(make_engine, monkeypatch):
    engine = make_engine()
    with monkeypatch.context() as broken:
        broken.setattr(engine._model, "decode", lambda *_: (_ for _ in ()).throw(MemoryError("no room")))
        with pytest.raises(RolloutError, match="MemoryError: no room"):
            await engine.generate(request(10, 30, n=20))
    assert await engine.generate(request(10, 30)) == await make_engine().generate(request(10, 30))


async def test_llama_is_served():
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    model = AutoModelForCausalLM.from_config(LlamaConfig(**sizes, num_key_value_heads=4)).eval()
    req = request(33, 20)
    (reply,) = await HFEngine(model, max_num_seqs=4, max_model_len=64).generate(req)
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([req.prompt_ids + reply.token_ids])).logits[0, 32:-1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(reply.token_ids)[:, None]).squeeze(1)
    torch.testing.assert_close(torch.tensor(reply.log_probs), expected, atol=1e-5, rtol=0)
