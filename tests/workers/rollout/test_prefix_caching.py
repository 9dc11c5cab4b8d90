"""What slots hold already, what is computed beside it and in which order change no bit of a reply."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import itertools
from collections.abc import Sequence

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, MistralConfig

from tests.workers.rollout.conftest import (
    EVERYONE,
    SPECS,
    largest_gap,
    peft_model,
    request,
    tensors_of,
    tiny_model,
)
from verl.models.lora import select_adapter
from verl.protocol.generate import GenerateRequest, Generation, RolloutError, SamplingParams
from verl.workers.rollout.hf_engine import HFEngine

LONGEST = 448
SYSTEM = request(150, 1, prompt_seed=99).prompt_ids


def make_engine(slots: int = 8, caching: bool = True) -> HFEngine:
    engine = HFEngine(
        tiny_model(), max_num_seqs=slots, max_model_len=LONGEST, adapters=SPECS, enable_prefix_caching=caching
    )
    for name in SPECS:
        engine.update_weights(tensors_of(peft_model(), name), adapter=name, version=1)
    return engine


def ask(
    prompt: Sequence[int], tokens: int = 8, adapter: str | None = None, **fields: object
) -> GenerateRequest:
    return GenerateRequest(tuple(prompt), SamplingParams(tokens), adapter=adapter, **fields)


def conversations() -> list[list[GenerateRequest]]:
    """Turns of several conversations, each turn's prompt the beginning of the next one's; all of an adapter
    have one system prompt, and some prompts are equal, of one token, or whole chunks.
    """
    generator = torch.Generator().manual_seed(5)
    turns = []
    for number, adapter in enumerate((*EVERYONE, None, "a")):
        text = list(SYSTEM if number % 3 else ())
        turns.append([])
        for turn in range(3):
            more = int(torch.randint(1, 90, (1,), generator=generator))
            text += torch.randint(0, 512, (more,), generator=generator).tolist()
            turns[-1].append(ask(text, 6, adapter, seed=number, n=1 + turn % 2))
    turns.append([ask(SYSTEM[:64]), ask(SYSTEM[:128]), ask(SYSTEM[:1]), ask(SYSTEM), ask(SYSTEM)])
    return turns


async def play(engine: HFEngine, turns: list[list[GenerateRequest]], pause: int) -> list[list[Generation]]:
    """All conversations at once; they begin `pause` steps apart."""

    async def one(number: int) -> list[Generation]:
        for _ in range(pause * number):
            await asyncio.sleep(0)
        return [reply for request in turns[number] for reply in await engine.generate(request)]

    return list(await asyncio.gather(*(one(number) for number in range(len(turns)))))


@pytest.fixture(scope="module")
def alone() -> list[list[Generation]]:
    """The replies of engines that see one request each, without the cache."""
    torch.set_num_threads(1)
    engine = make_engine(caching=False)
    replies = []
    for conversation in conversations():
        replies.append([])
        for one in conversation:
            replies[-1] += asyncio.run(engine.generate(one))
            engine.sleep()
    return replies


@pytest.mark.parametrize(("slots", "pause"), [(8, 0), (8, 7), (1, 0), (3, 2), (32, 1)])
@pytest.mark.parametrize("caching", [True, False])
async def test_no_order_batch_or_cache_changes_a_bit(alone, slots, pause, caching):
    engine = make_engine(slots, caching)
    assert await play(engine, conversations(), pause) == alone
    first = engine.stats()
    backwards = [turns[::-1] for turns in conversations()[::-1]]
    again = await play(engine, backwards, pause)
    expected = iter(itertools.chain(*alone))
    by_request = {one: [next(expected) for _ in range(one.n)] for turns in conversations() for one in turns}
    assert again == [[reply for one in turns for reply in by_request[one]] for turns in backwards]
    if caching and slots == 32:
        more = engine.stats()["prompt_tokens_computed"] - first["prompt_tokens_computed"]
        assert more < 0.5 * first["prompt_tokens_computed"]


async def talk(engine: HFEngine, number: int, adapter: str | None, turns: int = 3) -> list[Generation]:
    """A conversation: every prompt is the one before, its reply, and some more tokens."""
    generator = torch.Generator().manual_seed(number)
    text = tuple(SYSTEM[: 20 * number])
    replies = []
    for turn in range(turns):
        text += tuple(torch.randint(0, 512, (9 + 5 * number,), generator=generator).tolist())
        (reply,) = await engine.generate(ask(text, 40, adapter, seed=10 * number + turn))
        text += reply.token_ids
        replies.append(reply)
    return replies


@pytest.mark.parametrize("slots", [12, 2])
async def test_a_conversation_computes_the_keys_of_its_replies_once_and_keeps_its_bits(slots):
    engine, plain = make_engine(slots), make_engine(8, caching=False)
    replies, expected = [
        await asyncio.gather(*(talk(one, i, name) for i, name in enumerate(EVERYONE)))
        for one in (engine, plain)
    ]
    assert replies == expected
    stats, tokens = engine.stats(), plain.stats()["prompt_tokens_computed"]
    assert stats["prompt_tokens_computed"] + stats["prompt_tokens_copied"] == tokens
    # With a slot for each: of a turn what comes behind the last reply, and parts of chunks.
    assert slots == 2 or stats["prompt_tokens_computed"] < 0.6 * tokens
    # Nothing is left under new weights.
    engine.update_weights({name: p.detach() for name, p in tiny_model().named_parameters()}, version=1)
    (again,) = await talk(engine, 1, "a", turns=1)
    assert again.log_probs == expected[1][0].log_probs
    assert engine.stats()["prompt_tokens_copied"] == stats["prompt_tokens_copied"]


async def test_the_next_turn_and_other_prompts_with_the_same_system_prompt_compute_the_rest_alone():
    engine = make_engine()
    lengths, computed = (200, 300, 420), []
    text = request(420, 1, prompt_seed=1).prompt_ids
    for length in lengths:
        await engine.generate(ask(text[:length]))
        computed.append(engine.stats()["prompt_tokens_computed"])
    assert computed == [200, 200 + (300 - 192), 308 + (420 - 256)]
    await engine.generate(ask((*text[:128], *SYSTEM)))
    assert engine.stats()["prompt_tokens_computed"] == computed[-1] + 150
    await asyncio.gather(*(engine.generate(ask((*SYSTEM, *text[-n:]))) for n in range(1, 11)))
    assert engine.stats()["prompt_tokens_computed"] == computed[-1] + 150 + 128 + sum(
        22 + n for n in range(1, 11)
    )


async def test_new_weights_of_an_adapter_leave_the_others_their_cache_and_those_of_the_base_nobody():
    engine, fresh = make_engine(), make_engine()
    newer = peft_model(seed=1)
    for name in EVERYONE:
        await engine.generate(ask(SYSTEM, adapter=name))
    for target in (engine, fresh):
        target.update_weights(tensors_of(newer, "a"), adapter="a", version=2)
    texts = {name: ask((*SYSTEM, 7, 8), adapter=name) for name in EVERYONE}
    before = engine.stats()["prompt_tokens_computed"]
    for name, text in texts.items():
        assert await engine.generate(text) == await fresh.generate(text), name
    assert engine.stats()["prompt_tokens_computed"] - before == 3 * (152 - 128) + 152
    weights = {name: p.detach() * 1.1 for name, p in tiny_model().named_parameters()}
    for target in (engine, fresh):
        target.sleep() if target is fresh else None
        target.update_weights(weights, version=5)
    before = engine.stats()["prompt_tokens_computed"]
    for name, text in texts.items():
        assert await engine.generate(text) == await fresh.generate(text), name
    assert engine.stats()["prompt_tokens_computed"] - before == 4 * 152


@pytest.mark.parametrize("adapter", [None, "a"])
async def test_replies_in_flight_and_prompts_half_computed_go_on_with_new_weights(adapter):
    """Nine replies of different lengths are sampled and one long prompt is half computed when the weights
    come, twice; log-probs are those of the weights of each token.
    """
    engine = make_engine(slots=12)
    requests = [ask((*SYSTEM[:40], *range(n)), 60, adapter, seed=n) for n in range(1, 100, 12)]
    flight = [asyncio.create_task(engine.generate(one)) for one in requests]
    while engine.stats()["steps"] < 12:
        await asyncio.sleep(0)
    late = ask(request(400, 1).prompt_ids, 20, adapter)
    flight.append(asyncio.create_task(engine.generate(late)))
    models = {1: peft_model()} if adapter else {0: peft_model()}
    for version in (2, 3):
        for _ in range(3):
            await asyncio.sleep(0)
        if adapter:
            models[version] = peft_model(seed=version)
            engine.update_weights(tensors_of(models[version], adapter), adapter=adapter, version=version)
        else:
            models[version] = peft_model(base=version)
            weights = {name: p.detach() for name, p in tiny_model(version).named_parameters()}
            engine.update_weights(weights, version=version)
    replies = [reply for (reply,) in await asyncio.gather(*flight)]
    # Some have sampled nothing between the two.
    assert {len(reply.earlier) for reply in replies[:9]} == {1, 2} and replies[9].earlier == ()
    for one, reply in zip([*requests, late], replies, strict=True):
        ends = list(itertools.accumulate(count for _, count in reply.earlier))
        versions = [version for version, _ in reply.earlier] + [reply.version]
        for begin, end, version in zip([0, *ends], [*ends, len(reply.token_ids)], versions, strict=True):
            select_adapter(models[version], adapter)
            ids = torch.tensor([one.prompt_ids + reply.token_ids[:end]])
            with torch.no_grad():
                logits = models[version](ids).logits[0, len(one.prompt_ids) + begin - 1 : -1]
            expected = logits.log_softmax(-1).gather(1, ids[0, len(one.prompt_ids) + begin :, None])[:, 0]
            torch.testing.assert_close(torch.tensor(reply.log_probs[begin:end]), expected, atol=1e-5, rtol=0)


async def test_a_prompt_that_is_given_up_half_way_leaves_what_is_right_and_its_followers_go_on():
    engine, plain = make_engine(slots=4), make_engine(caching=False)
    text = request(400, 1, prompt_seed=3).prompt_ids
    running = asyncio.create_task(engine.generate(ask((5,), 60)))
    while engine.stats()["steps"] < 3:
        await asyncio.sleep(0)
    first = asyncio.create_task(engine.generate(ask(text, request_id="first")))
    second = asyncio.create_task(engine.generate(ask(text, seed=2)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert engine.abort("first") == 1 and (await first)[0].stop_reason == "abort"
    assert await second == await plain.generate(ask(text, seed=2))
    third = asyncio.create_task(engine.generate(ask(text[::-1], request_id="third")))
    for _ in range(3):
        await asyncio.sleep(0)
    assert engine.abort("third") == 1 and (await third)[0].token_ids == ()
    assert engine.stats()["active"] == 1 and engine.stats()["waiting"] == 0
    before = engine.stats()["prompt_tokens_copied"]
    assert await engine.generate(ask((*text[::-1], 4))) == await plain.generate(ask((*text[::-1], 4)))
    assert engine.stats()["prompt_tokens_copied"] > before
    assert await running == await plain.generate(ask((5,), 60))


async def test_a_long_prompt_delays_others_by_one_pass_a_step():
    """Between two decode steps at most 128 tokens of a prompt are computed, also beside 64 short ones."""
    engine = make_engine(slots=72)
    log: list[str] = []
    compute, decode = engine._model.compute, engine._model.decode
    engine._model.compute = lambda chunks: log.append("pass") or compute(chunks)
    engine._model.decode = lambda *args: log.append("step") or decode(*args)
    running = asyncio.create_task(engine.generate(ask((1, 2), 100)))
    while engine.stats()["steps"] < 3:
        await asyncio.sleep(0)
    log.clear()
    await engine.generate(ask(request(440, 1).prompt_ids, 4))
    assert max(sum(1 for _ in group) for kind, group in itertools.groupby(log) if kind == "pass") == 1
    assert log.count("pass") == 4
    log.clear()
    short = [engine.generate(ask(request(20, 1, seed=n).prompt_ids, 30, seed=n)) for n in range(64)]
    long = engine.generate(ask(request(440, 1, prompt_seed=9).prompt_ids, 2))
    await asyncio.gather(long, *short, running)
    most = max(sum(1 for _ in group) for kind, group in itertools.groupby(log) if kind == "pass")
    assert most <= 9 and log.index("step") <= 9


async def test_keys_that_are_no_numbers_reach_no_later_reply():
    """A weight that overflows for one token alone: prompts with it fail, also where they were given up before
    a step has looked at them, and their slots are clean for others.
    """
    engine, plain = make_engine(slots=2), make_engine(slots=2)
    broken = {name: p.detach().clone() for name, p in tiny_model().named_parameters()}
    broken["model.embed_tokens.weight"][3] = float("nan")
    for target in (engine, plain):
        target._model._model.lm_head.weight = torch.nn.Parameter(broken["model.embed_tokens.weight"].clone())
        target._model._model.lm_head.weight.data[3] = 0
        target._model._model.model.embed_tokens.weight.data[3] = float("nan")
    text = (*(n % 3 for n in range(200)), 3, *(4 + n % 5 for n in range(100)))
    flight = asyncio.create_task(engine.generate(ask(text, request_id="x")))
    for _ in range(4):
        await asyncio.sleep(0)
    engine.abort("x")
    await flight
    for one in (ask(text), ask((*text, 5), n=3), ask(text, 4)):
        with pytest.raises(RolloutError, match="non-finite"):
            await engine.generate(one)
    for one in (ask(text[:190], 60), ask((1, 2), 120, n=3), ask(text[:150], 20)):
        one = dataclasses.replace(one, sampling=dataclasses.replace(one.sampling, temperature=0.0))
        assert await engine.generate(one) == await plain.generate(one)
        plain.sleep()


async def test_adapters_of_one_text_never_share_keys():
    engine = make_engine()
    replies = {}
    for name in EVERYONE:
        one = dataclasses.replace(ask(SYSTEM, 12, name), request_id=str(name))
        (replies[name],) = await engine.generate(one)
        assert largest_gap(peft_model(), [one], [replies[name]]) < 1e-5
    assert len({reply.log_probs for reply in replies.values()}) == len(EVERYONE)


async def test_a_text_that_began_with_keys_that_were_no_numbers_is_kept_whole_with_the_next_weights() -> None:
    prompt = torch.randint(0, 512, (300,), generator=torch.Generator().manual_seed(3)).tolist()
    model = tiny_model()
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    broken = {
        name: value * float("nan") if "layers.0" in name and "v_proj" in name else value
        for name, value in weights.items()
    }

    def asked(name: str) -> GenerateRequest:
        return GenerateRequest(tuple(prompt), SamplingParams(8), seed=7, request_id=name)

    engine = HFEngine(model, max_num_seqs=8, max_model_len=LONGEST)
    expected = (await engine.generate(asked("before")))[0].token_ids
    engine = HFEngine(tiny_model(), max_num_seqs=8, max_model_len=LONGEST)
    engine.update_weights(broken, version=1)
    first = asyncio.ensure_future(engine.generate(asked("first")))
    while engine.stats()["prompt_tokens_computed"] < 64:
        await asyncio.sleep(0)
    engine.update_weights(weights, version=2)
    assert (await first)[0].token_ids == expected
    assert (await engine.generate(asked("again")))[0].token_ids == expected


@pytest.mark.parametrize("family", [MistralConfig, Gemma3TextConfig])
async def test_what_slots_without_a_reply_write_stays_a_number_under_a_window(family):
    """A step is as long as the longest reply: of a free slot with a longer text no key within the window
    is looked at.
    """
    config = family(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, sliding_window=24,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)

    def engine(caching: bool) -> HFEngine:
        return HFEngine(
            copy.deepcopy(model), max_num_seqs=2, max_model_len=320, enable_prefix_caching=caching
        )

    long, short, middle = [
        request(size, tokens, seed=size) for size, tokens in ((200, 4), (6, 20), (150, 100))
    ]
    reused = engine(True)
    for one in (long, short, short, middle, long, short, middle):
        assert await reused.generate(one) == await engine(False).generate(one)
