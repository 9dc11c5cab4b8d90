"""Texts that end a reply: tokens and log-probs after the first of them are cut off."""

import pytest

from agent_system.rollout import AgentBinding
from agent_system.rollout.prompt import Prompt
from agent_system.testing import make_tokenizer
from verl.protocol.generate import GenerateRequest, Generation, SamplingParams, StopReason

TOKENIZER = make_tokenizer(["search for apples </search> and more of it"] * 5, vocab_size=320)
PROMPT = Prompt("ask", tuple(TOKENIZER.encode("ask")))


async def replies(text: str, *stop: str, reason: StopReason = "length", n: int = 1) -> list[Generation]:
    ids = tuple(TOKENIZER.encode(text, add_special_tokens=False))

    class Engine:
        async def generate(self, request: GenerateRequest) -> list[Generation]:
            return [Generation(ids, tuple(-i / 100 for i in range(len(ids))), reason, version=3)] * request.n

    sampling = SamplingParams(64, stop=stop)
    binding = AgentBinding("A", "a", "a", Engine(), TOKENIZER, sampling, sampling, 64)
    return list(await binding.replies(PROMPT, sampling, n, 0, ""))


@pytest.mark.parametrize(
    ("text", "stop", "kept"),
    [
        ("apples </search> and more of it", ["</search>"], "apples </search>"),
        ("</search></search>", ["</search>"], "</search>"),
        ("more of it, and more", ["of it", "more"], "more"),
        ("中文。 and more", ["文"], "中文"),
        ("apples <|im_start|>user more", ["<|im_start|>"], "apples <|im_start|>"),
        ("one\n\ntwo\n\nthree", ["\n\n"], "one\n\n"),
    ],
)
async def test_a_reply_ends_with_the_first_of_the_texts(text: str, stop: list[str], kept: str) -> None:
    (reply,) = await replies(text, *stop)
    found = TOKENIZER.decode(reply.token_ids)
    assert any(end in found for end in stop)
    assert not any(end in TOKENIZER.decode(reply.token_ids[:-1]) for end in stop), (
        "one token less would not hold it"
    )
    assert found.startswith(kept)
    assert len(found) - len(kept) < len(TOKENIZER.decode(reply.token_ids[-1:])), (
        "no more than its last token goes beyond"
    )
    assert reply.log_probs == tuple(-i / 100 for i in range(len(reply.token_ids)))
    assert (reply.stop_reason, reply.version) == ("stop", 3)


async def test_a_reply_without_any_of_them_and_an_aborted_one_stay_as_they_are() -> None:
    for text, stop, reason in (
        ("apples", ["</search>"], "length"),
        ("a </search> b", [], "length"),
        ("a </search> b", ["</search>"], "abort"),
    ):
        whole, cut = (await replies(text, reason=reason))[0], (await replies(text, *stop, reason=reason))[0]
        assert cut == whole


async def test_every_reply_of_a_call_is_cut_and_a_text_at_the_very_end_counts_as_a_stop() -> None:
    several = await replies("a </search> b", "</search>", n=3)
    assert [TOKENIZER.decode(r.token_ids) for r in several] == ["a </search>"] * 3
    (last,) = await replies("a </search>", "</search>")
    assert last.stop_reason == "stop"
