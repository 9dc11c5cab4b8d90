"""Replies of the hf engine that follow a form, against the masks of xgrammar and a plain forward of the same
model.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from agent_system.testing import make_tokenizer
from tests.workers.rollout.conftest import VOCAB, request, tiny_model
from verl.protocol.generate import GenerateRequest, Generation, RolloutError, StructureError
from verl.workers.rollout.hf_engine import HFEngine
from verl.workers.rollout.structure import GrammarCompiler

xgrammar = pytest.importorskip("xgrammar")

TOKENIZER = make_tokenizer()
EOS = TOKENIZER.eos_token_id
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
SCHEMA = {
    "type": "object",
    "properties": {"a": DIGIT, "b": {"enum": ["yes", "no"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
LONG = {"type": "array", "items": {"type": "integer"}, "minItems": 200}


def form(schema: Any) -> str:
    return json.dumps({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}})


def make_engine(seed: int = 0, load_tokenizer: Callable[[], Any] = lambda: TOKENIZER) -> HFEngine:
    return HFEngine(tiny_model(seed), max_num_seqs=8, max_model_len=256, load_tokenizer=load_tokenizer)


def follow(schema: Any, length: int, max_tokens: int, **more: Any) -> GenerateRequest:
    return request(length, max_tokens, structure=form(schema), stop_token_ids=(EOS,), **more)


@functools.cache
def compiled(structure: str) -> Any:
    return xgrammar.GrammarCompiler(
        xgrammar.TokenizerInfo.from_huggingface(TOKENIZER, vocab_size=VOCAB)
    ).compile_structural_tag(structure)


def check(req: GenerateRequest, reply: Generation, weights: Sequence[torch.nn.Module]) -> None:
    """Every token is allowed after those before it and has the log-prob of the masked logits of the weights
    that sampled it.
    """
    ids = torch.tensor([req.prompt_ids + reply.token_ids])
    with torch.no_grad():
        every = [
            model(ids).logits[0, len(req.prompt_ids) - 1 : -1] / req.sampling.temperature for model in weights
        ]
    used = [logits for logits, (_, count) in zip(every, reply.spans, strict=True) for _ in range(count)]
    matcher, mask = (
        xgrammar.GrammarMatcher(compiled(req.sampling.structure)),
        xgrammar.allocate_token_bitmask(1, VOCAB),
    )
    for place, (token, found) in enumerate(zip(reply.token_ids, reply.log_probs, strict=True)):
        logits = used[place][place : place + 1].clone()
        matcher.fill_next_token_bitmask(mask)
        xgrammar.apply_token_bitmask_inplace(logits, mask)
        assert matcher.accept_token(token) and logits.log_softmax(-1)[0, token].item() == pytest.approx(
            found, abs=1e-5
        )
    assert matcher.is_terminated() == (reply.stop_reason == "stop")


async def test_masked_replies_have_the_log_probs_of_the_mask_and_those_beside_them_keep_their_bits() -> None:
    sampling: list[dict[str, Any]] = [{}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 5}]
    masked = [follow(SCHEMA, 10 + seed, 60, seed=seed, n=4, **more) for seed, more in enumerate(sampling)]
    plain = [request(10 + seed, 60, seed=seed, n=2, stop_token_ids=(EOS,)) for seed in range(3)]
    engine = make_engine()
    replies = await asyncio.gather(*(engine.generate(req) for req in masked + plain))
    alone = make_engine()
    assert replies == [await alone.generate(req) for req in masked + plain], (
        "slots are reused and copied; no bit depends on it"
    )
    assert replies[len(masked) :] == [
        await HFEngine(tiny_model(), max_num_seqs=8, max_model_len=256).generate(req) for req in plain
    ]
    ended = 0
    for req, several in zip(masked, replies, strict=False):
        for reply in several:
            check(req, reply, [tiny_model()])
            if reply.stop_reason == "stop":
                value = json.loads(TOKENIZER.decode(reply.token_ids, skip_special_tokens=True))
                assert set(value) == {"a", "b"} and value["a"] in range(10) and value["b"] in ("yes", "no")
                ended += 1
    assert ended
    (greedy,) = await engine.generate(
        request(10, 60, structure=form({"enum": ["yes"]}), stop_token_ids=(7,), temperature=0.0)
    )
    assert TOKENIZER.decode(greedy.token_ids[:-1]) == '"yes"' and greedy.token_ids[-1] == 7, (
        "the request's own stop token, not another"
    )


async def test_new_weights_and_aborts_keep_the_form() -> None:
    engine, req = make_engine(), follow(LONG, 10, 200, n=12, request_id="x")
    flight = asyncio.create_task(engine.generate(req))
    while engine.stats()["steps"] < 15:
        await asyncio.sleep(0)
    engine.update_weights(
        {name: tensor.detach() for name, tensor in tiny_model(seed=1).named_parameters()}, version=5
    )
    held = engine.stats()["steps"]
    while engine.stats()["steps"] < held + 15:
        await asyncio.sleep(0)
    assert engine.abort("x") == 12
    replies = [reply for reply in await flight if reply.token_ids]
    assert len(replies) == 8 and all(
        reply.stop_reason == "abort" and len(reply.token_ids) >= 25 for reply in replies
    )
    for reply in replies:
        assert reply.version == 5 and len(reply.earlier) == 1
        check(req, reply, [tiny_model(), tiny_model(seed=1)])
    after = request(10, 60, n=8)
    unmasked = await make_engine(seed=1).generate(after)
    assert [reply.token_ids for reply in await engine.generate(after)] == [
        reply.token_ids for reply in unmasked
    ]


async def test_a_form_that_no_reply_can_follow_is_an_error_of_its_request() -> None:
    nested: Any = DIGIT
    for _ in range(60):
        nested = {"type": "array", "items": {"anyOf": [nested]}}
    wrong = {
        form({"type": "objekt"}): "xgrammar refused",
        form({"type": "integer", "minimum": 5, "maximum": 3}): "xgrammar refused",
        form(nested): "nested in more than 80 levels",
        "[" * 50000: "cannot be read",
        form({"enum": ["x" * 200000]}): "expected at most 131072; use a smaller schema",
        "{}": "xgrammar refused",
    }
    engine, good = make_engine(), follow(SCHEMA, 10, 60)
    for _ in range(2):
        for structure, said in wrong.items():
            with pytest.raises(StructureError, match=said):
                await engine.generate(request(10, 60, structure=structure))
        (reply,) = await engine.generate(good)
        check(good, reply, [tiny_model()])
    assert engine.stats()["active"] == engine.stats()["waiting"] == 0
    with pytest.raises(RolloutError, match="set actor_rollout_ref"):
        await HFEngine(tiny_model(), max_num_seqs=8, max_model_len=256).generate(good)


async def test_a_form_that_the_vocabulary_cannot_spell_fails_its_request_alone() -> None:
    words = Tokenizer(models.WordLevel({'"': 0, "a": 1, "!": 2}, unk_token="!"))
    few = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="!")
    engine = make_engine(load_tokenizer=lambda: few)
    failed, kept = await asyncio.gather(
        engine.generate(request(10, 60, structure=form({"const": "ab"}), n=12)),
        engine.generate(request(10, 60)),
        return_exceptions=True,
    )
    assert isinstance(failed, StructureError) and "allows no token after the beginning" in str(failed)
    assert kept == await make_engine().generate(request(10, 60)) and engine.stats()["failed"] == 12


async def test_compiled_forms_are_kept_up_to_a_bound_and_one_that_takes_long_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled, plain = list[str](), GrammarCompiler._compiled
    compiler = GrammarCompiler(lambda: TOKENIZER, VOCAB)
    monkeypatch.setattr(
        GrammarCompiler, "_compiled", lambda own, text: compiled.append(text) or plain(own, text)
    )
    monkeypatch.setattr("verl.workers.rollout.structure.KEPT", 2)
    forms = [form({"const": word}) for word in ("1", "2", "3")]
    await compiler.compile(forms[0])
    await asyncio.gather(compiler.compile(forms[1]), compiler.compile(forms[1]))
    for asked in (forms[2], forms[2], forms[0]):
        await compiler.compile(asked)
    assert compiled == [*forms, forms[0]]
    monkeypatch.setattr(compiler, "_limit_s", 0.1)
    with compiler._turn, pytest.raises(StructureError, match=r"was not compiled in 0\.1 s"):
        await compiler.compile(form(DIGIT))
    assert await compiler.compile(forms[0]), "kept"


async def test_nothing_is_kept_of_the_requests_that_an_error_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler, plain = GrammarCompiler(lambda: TOKENIZER, VOCAB), GrammarCompiler._compiled
    asked: list[str] = []

    def compiled(own: GrammarCompiler, structure: str) -> Any:
        asked.append(structure)
        if len(asked) == 2:
            raise RolloutError("once")
        return plain(own, structure)

    async def failed(structure: str, kind: type[Exception]) -> weakref.ref[Exception]:
        with pytest.raises(kind) as caught:
            await compiler.compile(structure)
        return weakref.ref(caught.value)

    monkeypatch.setattr(GrammarCompiler, "_compiled", compiled)
    impossible, good = form({"type": "objekt"}), form(DIGIT)
    errors = [
        await failed(*case)
        for case in ((impossible, StructureError), (impossible, StructureError), (good, RolloutError))
    ]
    gc.collect()
    assert [error() for error in errors] == [None] * 3
    assert await compiler.compile(good) and asked == [impossible, good, good]
