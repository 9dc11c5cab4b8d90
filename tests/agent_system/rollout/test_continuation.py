"""The prompt after a reply: the sampled tokens where the template goes on from them, else its own rendering
and the reason.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from agent_system.rollout.chat_template import ChatTemplate
from agent_system.rollout.continuation import END, REPLY, THINKING, Continuation, NextPrompt, texts_of_tokens
from agent_system.rollout.prompt import Prompt
from agent_system.rollout.template_check import template_facts
from agent_system.rollout.tokens import encode_all
from agent_system.testing import make_tokenizer
from verl.protocol.generate import Generation
from verl.protocol.template_time import TEMPLATE_TIME

LOOP = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ CONTENT }}END{% endfor %}{% if add_generation_prompt %}PROMPT{% endif %}"
PLAIN = LOOP.replace("CONTENT", "m.content").replace("PROMPT", "<|im_start|>assistant\n")
ASKED = {"role": "user", "content": "?"}


def after(
    source: str, reply: str, stop: str = "stop", content: str | None = None, tokenizer: Any = None
) -> tuple[NextPrompt, Prompt, Any]:
    """The prompt after a reply, the prompt before it, and the template."""
    tokenizer = tokenizer or make_tokenizer()
    tokenizer.chat_template = source
    chat = ChatTemplate(tokenizer)

    def encode(text: str) -> tuple[int, ...]:
        return encode_all(tokenizer, [text])[0]

    text = chat.render([ASKED])
    prompt = Prompt(text, encode(text))
    ids = encode(text + reply)[len(prompt.ids) :]
    generation = Generation(ids, (-0.5,) * len(ids), stop)  # type: ignore[arg-type]
    said = chat.text_of(generation.token_ids, text) if content is None else content
    whole = chat.render([ASKED, {"role": "assistant", "content": said}, {"role": "user", "content": "b"}])
    return Continuation(chat, encode).after(prompt, generation, whole), prompt, chat


@pytest.mark.parametrize(
    "reply",
    ["Paris.<|im_end|>", "    return x\n<|im_end|>", "<|im_end|>", "<think>\nhm\n</think>\n\na<|im_end|>"],
)
def test_a_reply_goes_on_as_it_was_sampled_with_its_blanks(reply: str) -> None:
    following, prompt, chat = after(PLAIN.replace("END", "<|im_end|>\n"), reply)
    sent = (*prompt.ids, *encode_all(chat.tokenizer, [reply])[0])
    assert following.rewritten == "" and following.ids[: len(sent)] == sent
    assert following.text == prompt.text + reply + "\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"


def test_a_reply_that_was_cut_gets_what_the_template_puts_before_the_end() -> None:
    following, prompt, _ = after(PLAIN.replace("END", "\n<|im_end|>"), "Par", "length")
    assert following.rewritten == "" and following.text.startswith(f"{prompt.text}Par\n<|im_end|>")
    ended, _, _ = after(PLAIN.replace("END", "\n<|im_end|>"), "Paris\n<|im_end|>")
    assert ended.rewritten == "" and "Paris\n<|im_end|>" in ended.text, (
        "the blanks before the end are the template's own"
    )


def test_a_reason_is_given_where_the_template_does_not_go_on() -> None:
    dropped = LOOP.replace("CONTENT", "m.content.split('</think>')[-1].lstrip('\\n')").replace(
        "END", "<|im_end|>\n"
    )
    thinking, *_ = after(
        dropped.replace("PROMPT", "<|im_start|>assistant\n"), "<think>\nhm\n</think>\n\na<|im_end|>"
    )
    assert thinking.rewritten == THINKING and "hm" not in thinking.text
    begun, *_ = after(
        dropped.replace("PROMPT", "<|im_start|>assistant\n<think>\n\n</think>\n\n"), "a<|im_end|>"
    )
    assert begun.rewritten == THINKING and begun.text.count("<think>") == 1, (
        "an old prompt's empty block does not stay"
    )
    other, prompt, chat = after(PLAIN.replace("END", "<|im_end|>\n"), "a<|endoftext|>")
    body = (*prompt.ids, *encode_all(chat.tokenizer, ["a"])[0])
    assert other.rewritten == END and other.ids[: len(body)] == body and "<|endoftext|>" not in other.text
    trimmed, *_ = after(
        PLAIN.replace("m.content", "m.content | trim").replace("END", "<|im_end|>\n"), "  a<|im_end|>"
    )
    assert trimmed.rewritten == REPLY and "assistant\na<|im_end|>" in trimmed.text


def sentencepiece() -> Any:
    """Characters with a blank before every text, and a token that takes the blanks after it, as in Phi-3's
    and Llama 2's vocabularies.
    """
    letters = ["<unk>", "▁", "\n", *(chr(c) for c in range(33, 127))]
    core = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, [], unk_token="<unk>"))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    core.add_special_tokens(
        [AddedToken(t, normalized=False, rstrip=True) for t in ("<|im_start|>", "<|im_end|>")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")


def test_a_vocabulary_that_adds_and_takes_blanks_gets_the_template_s_own_tokens() -> None:
    tokenizer = sentencepiece()
    following, _, chat = after(
        PLAIN.replace("END", "<|im_end|>\n"), "Paris.<|im_end|>", content="Paris.", tokenizer=tokenizer
    )
    assert not chat.keeps_text and following.rewritten == ""
    assert following.ids == encode_all(tokenizer, [following.text])[0], (
        "no blank more behind a token that takes them"
    )
    assert texts_of_tokens(chat, encode_all(tokenizer, ["a b"])[0]) == [" ", "a", " ", "b"]


def test_a_clock_shows_one_time_for_the_run_and_the_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ strftime_now('%H:%M:%S') }}" + PLAIN.replace("END", "<|im_end|>\n")
    monkeypatch.setattr(TEMPLATE_TIME, "value", datetime(2026, 1, 2))
    TEMPLATE_TIME.restore("2031-05-06T07:08:09")
    assert ChatTemplate(tokenizer).render([ASKED]).startswith("07:08:09")
    facts = {fact.name: fact for fact in template_facts(tokenizer)}
    assert "2031-05-06T07:08:09" in facts["time"].text and TEMPLATE_TIME.state() == "2031-05-06T07:08:09"
    assert facts["continuation"].is_right and facts["end of turn"].text == "<|im_end|>"
    tokenizer.chat_template = "nothing"
    assert [fact.is_right for fact in template_facts(tokenizer)] == [False]
