"""What is trained of a conversation, against published chat templates: a round trip that does not use the
encoder's own steps.

A conversation is exact if every reply is trained once, behind the tokens of the prompt that sampling would
have, up to the end that the template shows, and nothing else; all others are refused with a cause.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from tests.published_templates import all_templates, tokenizer_for, trl_templates
from verl.trainer.sft.chats import Chat
from verl.trainer.sft.data import TokenizedConversation
from verl.trainer.sft.encoding import encode
from verl.utils.dataset import DatasetError
from verl.utils.dataset.messages import read_messages

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The {name}.",
            "parameters": {
                "type": "object",
                "properties": {"fruit": {"type": "string"}, "count": {"type": "integer"}},
                "required": [],
            },
        },
    }
    for name in ("price", "clock")
]
USER = {"role": "user", "content": "What does a plum cost?"}
ANSWER = {"role": "assistant", "content": "It costs three."}


def calls(*names: str, content: Any = "", **fields: Any) -> dict[str, Any]:
    """A message with calls in OpenAI's form, whose arguments are JSON text."""
    made = [
        {
            "id": f"call0000{n}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps({"fruit": "plum", "count": 3})},
        }
        for n, name in enumerate(names)
    ]
    return {"role": "assistant", "content": content, "tool_calls": made, **fields}


def result(number: int = 0, name: str = "price") -> dict[str, Any]:
    return {"role": "tool", "content": "seventeen", "tool_call_id": f"call0000{number}", "name": name}


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "plain": [USER, ANSWER],
    "system": [{"role": "system", "content": "Be brief."}, USER, ANSWER],
    "two turns": [
        USER,
        ANSWER,
        {"role": "user", "content": "And a pear?"},
        {"role": "assistant", "content": "Four."},
    ],
    "blanks": [USER, {"role": "assistant", "content": "\n  if x:\n    return 1 \n"}],
    "thinking": [USER, {**ANSWER, "reasoning_content": "One and two."}],
    "thinking in two turns": [
        USER,
        {**ANSWER, "reasoning_content": "Hm."},
        USER,
        {**ANSWER, "reasoning_content": "One and two."},
    ],
    "call": [USER, calls("price")],
    "call without content": [USER, calls("price", content=None)],
    "call with content": [USER, calls("price", content="I look it up.")],
    "two calls": [USER, calls("price", "clock")],
    "call, result, answer": [USER, calls("price"), result(), ANSWER],
    "two calls, results, answer": [USER, calls("price", "clock"), result(), result(1, "clock"), ANSWER],
    "thinking and calls": [
        USER,
        calls("price", reasoning_content="I ask."),
        result(),
        {**ANSWER, "reasoning_content": "So it is."},
    ],
}


def rendered(tokenizer: Any, messages: list[dict[str, Any]], tools: Any, prompt: bool = False) -> list[str]:
    """A conversation in each form of calls that the template may want, without those in which it cannot be
    shown.
    """
    found = []
    for as_text in (False, True):
        for content in ("", None):
            shown = json.loads(json.dumps(messages))
            for message in shown:
                for call in message.get("tool_calls", ()):
                    if as_text:
                        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
                    message["content"] = message["content"] or content
            try:
                found.append(
                    tokenizer.apply_chat_template(
                        shown, tools=tools, tokenize=False, add_generation_prompt=prompt
                    )
                )
            except Exception:
                continue
    return found


def check(tokenizer: Any, chat: Chat, rows: list[TokenizedConversation]) -> None:
    """Fail unless the replies of a conversation are trained exactly."""
    marked = "{% generation" in tokenizer.chat_template or "{%- generation" in tokenizer.chat_template
    special = re.compile("|".join(map(re.escape, sorted(tokenizer.get_added_vocab(), key=len, reverse=True))))
    trained: list[int] = []
    for row in rows:
        starts = [n for n, learned in enumerate(row.loss_mask) if learned and not row.loss_mask[n - 1]]
        for begin in starts:
            end = row.loss_mask.index(False, begin) if False in row.loss_mask[begin:] else len(row.loss_mask)
            at, prompt = replied(tokenizer, chat, row.input_ids[:begin], trained)
            trained.append(at)
            reply = tokenizer.decode(row.input_ids[begin:end])
            wholes = [
                text
                for text in rendered(tokenizer, chat.messages[: at + 1], chat.tools)
                if text.startswith(prompt)
            ]
            shown = [tokenizer.decode(encoded(tokenizer, text)[begin:]) for text in wholes]
            assert marked or special.fullmatch(tokenizer.decode(row.input_ids[end - 1])), (
                f"message {at} has no end: {reply!r}"
            )
            body = special.sub("", reply)
            rests = [
                special.sub("", text).removeprefix(body)
                for text in shown
                if special.sub("", text).startswith(body)
            ]
            assert any(marked or not rest.strip() for rest in rests), (
                f"message {at}: {reply!r} is trained of {shown!r}"
            )
            exact = any(encoded(tokenizer, text)[: end - 1] == row.input_ids[: end - 1] for text in wholes)
            apart = reply[: len(reply.lstrip())] != reply  # white space that one token joins to the prompt's
            assert exact or apart, f"message {at}: other tokens than those of the whole text: {reply!r}"
    assert sorted(trained) == [
        at for at, message in enumerate(chat.messages) if message["role"] == "assistant"
    ]


def replied(tokenizer: Any, chat: Chat, ids: tuple[int, ...], trained: list[int]) -> tuple[int, str]:
    """The place of the message that answers a prompt, and the prompt as text."""
    for at, message in enumerate(chat.messages):
        if message["role"] == "assistant" and at not in trained:
            for text in rendered(tokenizer, chat.messages[:at], chat.tools, prompt=True):
                if encoded(tokenizer, text) == ids:
                    return at, text
    raise AssertionError(f"no prompt has the tokens before what is trained: {tokenizer.decode(ids)!r}")


def encoded(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def outcome(template: str, kind: str, blanks: str = "") -> str:
    """`exact`, or the cause for which the conversation is refused."""
    tokenizer = tokenizer_for(template, blanks=blanks)
    messages = read_messages(CONVERSATIONS[kind], kind)
    chat = Chat(messages, TOOLS if any("tool_calls" in m for m in messages) else None)
    try:
        rows = encode(chat, tokenizer)
    except DatasetError as error:
        assert "\n" not in str(error)
        return str(error)
    check(tokenizer, chat, rows)
    return "exact"


# Of templates with different ends, prompts and calls, the outcome of each conversation in their order: exact
# (.) or refused (r).
EXPECTED = {
    "cohere2": "......rrrrrrr",
    "deepseekv3": "rrrrrrrrrrrrr",
    "gemma": ".r....rrrrrrr",
    "gemma4": ".............",
    "glm4moe": ".............",
    "gptoss": ".............",
    "lfm2_v2": ".............",
    "llama3_1": ".........r.r.",
    "nemotron_3_nano": "rrrr..rrrrrr.",
    "phi3_5": "......rrrrrrr",
    "qwen2_5": ".............",
    "qwen3": ".............",
    "qwen3_training": ".............",
    "qwen3_5_nothink": "....rr......r",
    "qwen3_5_think": ".............",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_reply_is_trained_exactly_as_a_published_template_shows_it_or_refused(name: str) -> None:
    template = trl_templates()[name]
    found = {kind: outcome(template, kind) for kind in CONVERSATIONS}
    assert "".join("." if cause == "exact" else "r" for cause in found.values()) == EXPECTED[name], found


@pytest.mark.parametrize("blanks", ["first", "always"])
@pytest.mark.parametrize("name", ["cohere2", "gemma", "phi3_5", "qwen3"])
def test_tokenizers_with_blanks_before_a_text_train_the_tokens_of_the_whole_text(
    name: str, blanks: str
) -> None:
    template = trl_templates()[name]
    for kind in ("plain", "two turns", "call, result, answer"):
        assert (outcome(template, kind, blanks) == "exact") == (outcome(template, kind) == "exact")


# How many of the packages' 200 templates are exact; the others are refused.
EXACT = {
    "plain": 145,
    "system": 140,
    "two turns": 145,
    "blanks": 145,
    "thinking": 156,
    "thinking in two turns": 156,
    "call": 92,
    "call without content": 92,
    "call with content": 92,
    "two calls": 90,
    "call, result, answer": 87,
    "two calls, results, answer": 85,
    "thinking and calls": 97,
}


def test_every_published_template_is_exact_or_refused(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--all-levels"):
        pytest.skip("downloads 130 MB: needs --all-levels")
    templates = all_templates()
    found = {
        kind: Counter(outcome(template, kind) == "exact" for template in templates.values())
        for kind in CONVERSATIONS
    }
    assert {kind: counts[True] for kind, counts in found.items()} == EXACT, f"of {len(templates)} templates"
