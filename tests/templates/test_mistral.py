"""Mistral's SentencePiece vocabularies, which write blanks as parts of words, and its templates, which refuse
ids of calls that are not nine letters and digits.
"""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace
from typing import Any

import pytest

from agent_system.rollout.chat_template import ChatTemplate
from agent_system.rollout.tokens import decode, encode_all
from agent_system.rollout.tool_loop import ToolPromptBuilder
from tests.templates.conversations import CONVERSATIONS, Played, Shopper, play, play_rounds
from tests.templates.published import MISTRAL, named_tokens, templates, vocabulary
from tests.templates.test_conversations import ROUNDS, is_right
from verl.protocol.generate import Generation

V3 = "xinference/mistral-instruct-v0.3"


def spoken(name: str, source: str) -> Any:
    tokenizer = copy.copy(vocabulary(name))  # a deep one of 32,768 words takes 0.3 s, and nobody changes them
    tokenizer.chat_template = source
    return tokenizer


@pytest.mark.parametrize("name", MISTRAL)
def test_conversations_go_on_with_their_own_tokens_blanks_at_the_begin_of_a_reply_too(name: str) -> None:
    """In all templates of this vocabulary, of its marks or of none: `[INST]` is a text in the older one."""
    special = set(vocabulary(name).all_special_tokens)
    tried = 0
    wrong: dict[str, dict[str, Played]] = {}
    for title, source in templates(("trl", "xinference")).items():
        marks = named_tokens(source) - {"<s>", "</s>"}
        if "[INST]" not in source or not marks <= special | {"[INST]", "[/INST]"}:
            continue
        tried += 1
        tokenizer = spoken(name, source)
        played = {kind: play(ChatTemplate(tokenizer), steps) for kind, steps in CONVERSATIONS.items()}
        played |= {f"rounds: {kind}": play_rounds(tokenizer, CONVERSATIONS[kind]) for kind in ROUNDS}
        if bad := {kind: p for kind, p in played.items() if not is_right(p)}:
            wrong[title] = bad
    assert tried >= 3 and not wrong, wrong


@pytest.mark.parametrize("name", MISTRAL)
@pytest.mark.parametrize("text", ["Paris.", " Paris.", "    if x:\n        return 1", "\n\n- a", "\tx"])
def test_a_reply_has_its_text_blanks_included(name: str, text: str) -> None:
    known = templates(("xinference",))
    chat = ChatTemplate(spoken(name, known["xinference/mistral-instruct-v0.1"]))
    prompt = chat.render([{"role": "user", "content": "zq?"}])
    shown = chat.render(
        [{"role": "user", "content": "zq?"}, {"role": "assistant", "content": text}], prompt=False
    )
    before, whole = (encode_all(chat.tokenizer, [part])[0] for part in (prompt, shown))
    assert whole[: len(before)] == before
    assert chat.text_of(whole[len(before) :], prompt) == text


@pytest.mark.parametrize("written", ["call00001", "zq", "way too long an id", 'q"uote'])
def test_a_call_whose_id_the_template_refuses_goes_on_as_sampled_and_its_result_has_another(
    written: str,
) -> None:
    tokenizer = spoken("mistral_v3", templates(("xinference",))[V3])
    builder = ToolPromptBuilder(Shopper("A"), tokenizer, 20_000)
    prompt = builder._tokenize([{"role": "user", "content": "What is it?"}])
    call = {"name": "price", "arguments": {"fruit": "fig", "count": 2}, "id": written}
    ids = (*encode_all(tokenizer, [f"[TOOL_CALLS] [{json.dumps(call)}]"])[0], tokenizer.eos_token_id)
    text = builder.chat.text_of(ids, prompt.text)
    (request,) = builder.requests_of(text, 0)
    assert (request.name, request.arguments, request.error) == ("price", call["arguments"], "")
    assert request.renamed is (written != "call00001") and len(request.id) == 9
    generation = Generation(ids, (-0.5,) * len(ids), "stop")
    results = [{"role": "tool", "content": "7"}]
    reply: Any = SimpleNamespace(text=text, generation=generation)
    following, anew = builder.following(prompt, reply, [request], results)
    assert following is not None and not anew
    assert following.ids[: len(prompt.ids) + len(ids)] == (*prompt.ids, *ids)
    shown = decode(tokenizer, following.ids[len(prompt.ids) + len(ids) :], special=True)
    assert shown.count(f'"call_id": "{request.id}"') == 1 and '"content": 7' in shown


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (("abcABC123",), ["abcABC123"]),
        (("bad id",), ["call00004"]),
        (("", ""), ["call00004", "call00005"]),
        (("call00005", "bad id"), ["call00005", "call00006"]),
        (("bad id", "call00004"), ["call00005", "call00004"]),
        (("abcABC123", "abcABC123"), ["abcABC123", "call00005"]),
    ],
)
def test_ids_that_are_refused_empty_or_written_twice_are_made_from_the_places_of_the_calls(
    written: tuple[str, ...], shown: list[str]
) -> None:
    chat = ChatTemplate(spoken("mistral_v3", templates(("xinference",))[V3]))
    assert chat.call_ids([("price", own) for own in written], 4) == shown
