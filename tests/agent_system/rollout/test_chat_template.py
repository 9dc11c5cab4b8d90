"""What a chat template's own rendering says of thinking, answers, ends of turn, roles and calls."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from agent_system import AgentSystemError, raw_text, tag
from agent_system.rollout import chat_template
from agent_system.rollout.chat_template import ChatTemplate
from agent_system.rollout.prompt import SpecialTokens
from agent_system.rollout.template_check import template_facts
from agent_system.rollout.template_trials import FIRST, TOOLS
from agent_system.rollout.tool_loop import ToolPromptBuilder
from agent_system.testing import make_tokenizer
from agent_system.tools import ToolAgent, calculator
from agent_system.tools.formats import OfferedTools, read_calls
from verl.protocol.turns import turn_end_ids

BEGIN = "{{ '<|im_start|>' ~ message.role ~ '\\n' }}"
LOOP = "{% for message in messages %}BODY{% endfor %}{% if add_generation_prompt %}PROMPT{% endif %}"
# Thinking in tags of its own, shown in the last reply; the prompt begins it.
OWN_TAGS = LOOP.replace(
    "BODY",
    BEGIN
    + "{% if message.reasoning_content and loop.last %}<deep>\n{{ message.reasoning_content }}\n</deep>\n{% endif %}"
    "{{ message.content }}<|im_end|>\n",
).replace("PROMPT", "<|im_start|>assistant\n<deep>\n")
# Messages in channels between special tokens, calls in a channel of their own.
CHANNELS = LOOP.replace(
    "BODY",
    "{% if message.role != 'assistant' %}<|start|>{{ message.role }}<|message|>{{ message.content "
    "}}<|end|>{% else %}{% if message.thinking %}<|start|>assistant<|channel|>inner<|message|>{{ "
    "message.thinking }}<|end|>{% endif %}<|start|>assistant<|channel|>outer<|message|>{{ message.content "
    "}}<|return|>{% endif %}",
).replace("PROMPT", "<|start|>assistant")
CHANNEL_TOKENS = ["<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>"]


def template(source: str, *tokens: str, **kwargs: Any) -> ChatTemplate:
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [*tokens, "<|im_start|>"]})
    tokenizer.chat_template = source
    return ChatTemplate(tokenizer, kwargs)


def text_of(chat: ChatTemplate, reply: str, prompt: str = "") -> str:
    return chat.text_of(chat.tokenizer.encode(reply, add_special_tokens=False), prompt)


def test_thinking_is_found_between_the_marks_of_the_template() -> None:
    chat = template(OWN_TAGS, "<deep>", "</deep>")
    prompt = chat.render([{"role": "user", "content": "?"}])
    assert raw_text(text_of(chat, "hm\n</deep>\nParis.<|im_end|>", prompt)).action == "Paris."
    assert text_of(chat, "<deep>\nhm\n</deep>\nParis.<|im_end|>") == "<think>\nhm\n</think>\nParis."
    cut = text_of(chat, "Perhaps <answer>12</answer>, no, wait", prompt)
    assert not tag("answer")(cut).valid and raw_text(cut).action == "", (
        "the limit cuts thinking that the prompt begins"
    )
    said = chat.prepared([{"role": "assistant", "content": "<think>\nhm\n</think>\n\nParis."}])
    assert said == [{"role": "assistant", "content": "Paris.", "reasoning_content": "hm"}]


def test_an_answer_loses_its_channel_and_thinking_stays_thinking() -> None:
    chat = template(CHANNELS, *CHANNEL_TOKENS)
    thought = "<|channel|>inner<|message|>Easy.<|end|><|start|>assistant"
    assert (
        text_of(chat, f"{thought}<|channel|>outer<|message|>Paris.<|return|>") == "<think>Easy.</think>Paris."
    )
    assert text_of(chat, "<|channel|>outer<|message|>Paris.<|return|>") == "Paris."
    assert raw_text(text_of(chat, "<|channel|>inner<|message|>Easy, but")).action == ""
    assert turn_end_ids(chat.tokenizer) == {chat.tokenizer.convert_tokens_to_ids("<|return|>")}, (
        "<|end|> is inside a turn"
    )


def test_tags_that_are_special_tokens_reach_projections() -> None:
    chat = template(
        LOOP.replace("BODY", BEGIN + "{{ message.content }}<|im_end|>\n"), "<answer>", "</answer>", "<|fim|>"
    )
    assert text_of(chat, "so <answer>4</answer><|fim|><|im_end|>") == "so <answer>4</answer>"


def test_a_token_that_ends_no_reply_but_begins_the_next_turn_ends_it() -> None:
    chat = template(
        LOOP.replace("BODY", "<|{{ message.role }}|>\n{{ message.content }}"), "<|user|>", "<|assistant|>"
    )
    assert turn_end_ids(chat.tokenizer) == {chat.tokenizer.convert_tokens_to_ids("<|user|>")}
    chat.tokenizer.chat_template = "{{ raise_exception('no') }}"
    assert turn_end_ids(chat.tokenizer) == frozenset()


def test_role_tokens_are_taken_out_of_texts_though_the_vocabulary_does_not_mark_them() -> None:
    chat = template(LOOP.replace("BODY", "<user>{{ message.content }}<eot>"))
    chat.tokenizer.add_tokens(["<user>", "<eot>", "<other>"])
    cleaned = SpecialTokens(chat.tokenizer, chat.structure).cleaned
    assert cleaned("x<eot><user>yes<other>") == "xyes<other>"


def test_a_system_message_goes_to_the_user_and_texts_into_parts_where_the_template_wants_that() -> None:
    strict = LOOP.replace(
        "BODY",
        "{% if message.role == 'system' %}{{ raise_exception('no') }}{% endif %}[{{ message.content }}]",
    )
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"}]
    assert template(strict).render(messages, prompt=False) == "[Be brief.\n\n?]"
    parts = LOOP.replace("BODY", "{% for part in message.content %}[{{ part.text }}]{% endfor %}")
    assert template(parts).render(messages, prompt=False) == "[Be brief.][?]"


NATIVE = "{% if tools %}{{ tools | tojson }}{% endif %}" + LOOP.replace(
    "BODY",
    "<|im_start|>{{ message.role }}\n{{ message.content }}{% for call in message.tool_calls or [] %}CALL{% "
    "endfor %}<|im_end|>\n",
).replace("PROMPT", "<|im_start|>assistant\n")
UNREAD = NATIVE.replace(
    "CALL", "{{ call.function.name }} with {{ call.function.arguments.values() | list | length }} values"
)
INVENTED = NATIVE.replace(
    "CALL",
    "<run:{{ call.function.name }}>{% for key, value in call.function.arguments.items() %}"
    "<put {{ key }}>{{ value if value is string else value | tojson }}</put>{% endfor %}</run>",
)


class Solver(ToolAgent):
    prompt = "{env_prompt}"
    tools = (calculator,)


def test_calls_in_a_syntax_that_nobody_has_named_are_read() -> None:
    chat = template(INVENTED)
    assert chat.calls is not None and chat.calls.is_exact
    found = read_calls(
        "I look.\n<run:f><put a>x > y\n</put><put b>3</put></run><run:g></run>", chat.checked_syntaxes("A")
    )
    assert [(r.name, r.arguments) for r in found] == [("f", {"a": "x > y\n", "b": 3}), ("g", {})]


def test_an_agent_with_tools_does_not_start_where_calls_do_not_come_back() -> None:
    chat = template(UNREAD)
    with pytest.raises(
        AgentSystemError, match=r"form that cannot be read back; set tool_format .*chat_template"
    ):
        ToolPromptBuilder(Solver("Solver"), chat.tokenizer, 1000)
    as_text = template(
        NATIVE.replace(
            "CALL",
            '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ \'\' ~ call.function.arguments '
            "}}}</tool_call>",
        )
    )
    assert as_text.calls is not None and as_text.calls.as_text and as_text.calls.is_exact, (
        "an object would be shown as Python writes it"
    )
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": [None]}}}
    assert json.dumps({"x": [None]}) in as_text.render(
        [{"role": "assistant", "content": "", "tool_calls": [call]}]
    )


def test_a_template_that_the_arguments_name_counts_instead_of_the_tokenizers() -> None:
    chat = template("{{ raise_exception('no') }}", chat_template=INVENTED)
    assert chat.shows_tools and chat.calls is not None


# Answers begin with a word and thinking that is empty; the model begins its turn itself after the result of a
# tool.
WORDS = LOOP.replace(
    "BODY", BEGIN + "{% if message.role == 'assistant' %}to all\n{% endif %}{{ message.content }}<|im_end|>\n"
)
EMPTY_BLOCK = LOOP.replace(
    "BODY",
    BEGIN + "{% if message.role == 'assistant' %}<think></think>{% endif %}{{ message.content }}"
    "{% if message.reasoning_content and 0 %}{% endif %}<|im_end|>\n",
)
OPENING = "<|im_start|>assistant\n"


def test_words_that_begin_every_answer_are_no_part_of_it() -> None:
    chat = template(WORDS.replace("PROMPT", OPENING))
    assert text_of(chat, "to all\nParis.<|im_end|>") == "Paris."
    assert text_of(chat, "Paris, to all\n.<|im_end|>") == "Paris, to all\n."


def test_an_empty_block_that_the_template_adds_stands_there_once() -> None:
    chat = template(EMPTY_BLOCK.replace("PROMPT", OPENING))
    said = {"role": "assistant", "content": "<think>hm</think>Paris."}
    assert chat.render([{"role": "user", "content": "q"}, said], prompt=False).endswith(
        "assistant\n<think></think>Paris.<|im_end|>\n"
    )


def test_an_end_of_thinking_without_a_begin_is_no_part_of_the_answer() -> None:
    chat = template(
        OWN_TAGS.replace("<deep>\n", "<deep>", 1).replace("assistant\n<deep>\n", "assistant\n"),
        "<deep>",
        "</deep>",
    )
    assert text_of(chat, "</deep>Paris.<|im_end|>") == "Paris."
    assert text_of(chat, "<deep>hm</deep>Paris.<|im_end|>") == "<think>hm</think>Paris."


JSON_CALL = '{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}'
# A text stands between marks, and the call behind it without one.
TEXT_IN_MARKS = "{% if tools %}{{ tools | tojson }}{% endif %}" + LOOP.replace(
    "BODY",
    BEGIN
    + "{% if message.tool_calls %}{% if message.content %}<|text|>{{ message.content }}<|/text|>{% endif %}"
    "{% for call in message.tool_calls %}"
    + JSON_CALL
    + "{% endfor %}{% else %}{{ message.content }}{% endif %}"
    "<|im_end|>\n",
).replace("PROMPT", OPENING)
# A call stands in a message of its own, behind the token that ends the reply.
BEHIND_THE_END = NATIVE.replace("CALL", "<|im_end|>\n<|im_start|>call\n" + JSON_CALL)
ONLY_WITH_TOOLS = "{{ tools[0].function.name }}" + LOOP.replace(
    "BODY", BEGIN + "{{ message.content }}<|im_end|>\n"
).replace("PROMPT", OPENING)
# After results no turn begins: the model begins it.
NO_TURN_AFTER_RESULTS = INVENTED.replace("<|im_start|>assistant\n", "PROMPT").replace(
    "PROMPT", "{% if messages[-1].role != 'tool' %}<|im_start|>assistant\n{% endif %}"
)


def test_calls_after_a_text_that_cannot_be_read_are_told() -> None:
    chat = template(TEXT_IN_MARKS, "<|text|>", "<|/text|>")
    assert chat.calls is not None and not chat.calls.syntax.trigger and not chat.reads_calls_after_text
    (fact,) = [f for f in template_facts(chat.tokenizer) if f.name == "tool calls"]
    assert not fact.is_right and "but not after a text" in fact.text
    assert template(INVENTED).reads_calls_after_text


# What a prompt asks for, where the template shows earlier calls as JSON alone.
ASKED_FOR = {
    'functools[{"name": NAME, "arguments": ARGUMENTS}]': 'functools[{"name": "f", "arguments": {"x": [1]}}]',
    '<tool_call>{"name": NAME}</tool_call>': '<tool_call>{"name": "f", "arguments": {"x": [1]}}</tool_call>',
    "<function_calls>NAME(KEY=VALUE)</function_calls>": "<function_calls>f(x=[1])</function_calls>",
}


@pytest.mark.parametrize("asked", ASKED_FOR)
def test_calls_are_read_as_the_prompt_asks_for_them_and_as_the_template_shows_them(asked: str) -> None:
    source = NATIVE.replace("CALL", JSON_CALL).replace("{{ tools | tojson }}", "{{ tools | tojson }}" + asked)
    chat = template(source)
    assert chat.calls is not None and not chat.calls.syntax.trigger
    for reply in (ASKED_FOR[asked], '{"name": "f", "parameters": {"x": [1]}}'):
        (call,) = read_calls(reply, chat.syntaxes, OfferedTools({"f": {"type": "object"}}))
        assert (call.name, call.arguments, call.error) == ("f", {"x": [1]}, "")
    assert len(template(NATIVE.replace("CALL", JSON_CALL)).syntaxes) < len(chat.syntaxes)


def test_a_call_behind_the_end_of_a_turn_is_refused_because_no_model_writes_it() -> None:
    chat = template(BEHIND_THE_END)
    assert chat.calls is None and chat.syntaxes == ()
    with pytest.raises(AgentSystemError, match="tool_format"):
        chat.checked_syntaxes("A")


def test_the_end_of_a_turn_is_found_where_no_conversation_is_shown_without_tools() -> None:
    chat = template(ONLY_WITH_TOOLS)
    assert turn_end_ids(chat.tokenizer) == {chat.tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert chat.opening == "<|im_end|>\n" + OPENING


def test_a_turn_that_the_model_begins_itself_after_results_is_no_part_of_its_answer() -> None:
    chat = template(NO_TURN_AFTER_RESULTS)
    asked = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [FIRST.message(False)]},
        {"role": "tool", "content": "7", "tool_call_id": FIRST.id},
    ]
    prompt = chat.render(asked, TOOLS)
    assert prompt.endswith("7<|im_end|>\n")
    assert text_of(chat, "<|im_start|>assistant\nParis.<|im_end|>", prompt) == "Paris."


class Unending:
    """A tokenizer whose template never ends, as long as the test lasts."""

    is_fast = False
    chat_template = "{{ messages }}"
    name_or_path = "unending"

    def __init__(self) -> None:
        self.ended = threading.Event()

    def apply_chat_template(self, *_: Any, **__: Any) -> str:
        self.ended.wait(60)
        return ""


def test_a_template_that_never_ends_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "RENDER_S", 0.2)
    tokenizer = Unending()
    chat = ChatTemplate(tokenizer)
    monkeypatch.setattr(ChatTemplate, "wants_parts", False)
    monkeypatch.setattr(ChatTemplate, "shows_system", True)
    assert [(f.is_right, f.text) for f in template_facts(tokenizer)] == [
        (False, "did not show a question within 0.2 s")
    ]
    assert chat.hides_texts
    tokenizer.ended.set()


def test_of_two_templates_the_one_for_tools_is_shown_with_tools() -> None:
    tokenizer = make_tokenizer()
    shown = LOOP.replace("BODY", BEGIN + "{{ message.content }}<|im_end|>\n").replace("PROMPT", OPENING)
    tokenizer.chat_template = {"default": shown, "tool_use": "{{ tools[0].function.name }}" + shown}
    chat = ChatTemplate(tokenizer)
    asked = [{"role": "user", "content": "q"}]
    tools = [
        {
            "type": "function",
            "function": {
                "name": "clock",
                "description": "d",
                "parameters": {"type": "object", "properties": {}},
            },
        }
    ]
    assert chat.problem == "" and chat.render(asked, tools) == "clock" + chat.render(asked)
    assert turn_end_ids(tokenizer) == {tokenizer.convert_tokens_to_ids("<|im_end|>")}
