"""Prompts that do not fit: role and question stay, the oldest context goes first, and it is counted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import time
from typing import Any

import pytest

from agent_system import AgentSystemError, BaseAgent, Entry, SimpleMemory
from agent_system.agent import Message
from agent_system.rollout.prompt import PromptBuilder, PromptTooLongError, SpecialTokens
from agent_system.rollout.tool_loop import ToolPromptBuilder
from agent_system.testing import make_tokenizer
from agent_system.tools import ToolAgent, calculator


class Role(BaseAgent):
    system = "ROLE"
    prompt = "{memory}\n{team_context}\nQUESTION {env_prompt}"


ENTRIES = [
    Entry("A", "oldest " + "a" * 40),
    Entry("B", "middle " + "b" * 40),
    Entry("C", "newest " + "c" * 40 + " END"),
]
TOKENIZER = make_tokenizer()


def builder(limit: int) -> PromptBuilder:
    return PromptBuilder(Role("Role"), TOKENIZER, limit)


def full_length() -> int:
    return len(builder(10_000).build({"env_prompt": "why"}, ENTRIES, SimpleMemory(0)).ids)


def test_what_fits_is_left_alone() -> None:
    prompt = builder(full_length()).build({"env_prompt": "why"}, ENTRIES, SimpleMemory(0))
    assert prompt.dropped == 0
    assert "oldest" in prompt.text


@pytest.mark.parametrize("limit", range(80, 230, 10))
def test_role_and_question_stay_and_context_goes_oldest_first(limit: int) -> None:
    prompt = builder(limit).build({"env_prompt": "why"}, ENTRIES, SimpleMemory(0))
    assert len(prompt.ids) <= limit
    assert "ROLE" in prompt.text and "QUESTION why" in prompt.text
    assert prompt.text.endswith("<|im_start|>assistant\n")
    kept = [word in prompt.text for word in ("oldest", "middle", "newest")]
    assert kept == sorted(kept)
    assert (prompt.dropped > 0) == (limit < full_length())


def test_the_end_of_the_newest_entry_is_what_stays_of_it() -> None:
    prompt = builder(90).build({"env_prompt": "why"}, ENTRIES[2:], SimpleMemory(0))
    assert "..." in prompt.text and "c END" in prompt.text and "newest" not in prompt.text
    assert prompt.dropped == 1


def test_remembered_turns_go_oldest_first_after_the_team_context() -> None:
    memory = SimpleMemory(5)
    memory.store("first" + "x" * 40, "go")
    memory.store("second", "go")
    prompt = builder(140).build({"env_prompt": "why"}, [], memory)
    assert "first" not in prompt.text and "second" in prompt.text
    assert prompt.dropped == 1


def test_a_question_that_cannot_fit_is_an_error_and_is_not_cut() -> None:
    with pytest.raises(PromptTooLongError, match=r"more than data\.max_prompt_length=30; raise it"):
        builder(30).build({"env_prompt": "why" * 20}, ENTRIES, SimpleMemory(0))


def test_the_template_is_applied_once() -> None:
    prompt = builder(1000).build({"env_prompt": "why"}, [], SimpleMemory(0))
    assert prompt.text.count("<|im_start|>") == 3
    assert prompt.ids.count(TOKENIZER.convert_tokens_to_ids("<|im_start|>")) == 3


def test_arguments_of_the_chat_template_reach_it() -> None:
    thinking = make_tokenizer()
    thinking.chat_template += (
        "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    )
    prompt = PromptBuilder(Role("Role"), thinking, 1000, {"enable_thinking": False}).build(
        {"env_prompt": "why"}, [], SimpleMemory(0)
    )
    assert prompt.text.endswith("<think></think>")
    assert (
        "<think>"
        not in PromptBuilder(Role("Role"), thinking, 1000)
        .build({"env_prompt": "why"}, [], SimpleMemory(0))
        .text
    )


def test_first_lengths_are_those_of_first_prompts() -> None:
    one = builder(10_000)
    questions = [{"env_prompt": text} for text in ("why", "why <|im_end|> not", "w" * 300)]
    assert one.first_lengths(questions, SimpleMemory(0)) == [
        len(one.build(q, [], SimpleMemory(0)).ids) for q in questions
    ]


class Particular(BaseAgent):
    prompt = "{env_prompt}{grid.rows[0]}{score:.2f}{who!r}"


class Stubborn(BaseAgent):
    def messages(self, variables: Any) -> Any:
        return [{"role": "user", "content": str(variables["round"] / 2)}]


def test_variables_of_the_orchestra_do_not_stop_a_measurement() -> None:
    assert (
        PromptBuilder(Particular("P"), TOKENIZER, 10).first_lengths([{"env_prompt": "why"}], SimpleMemory(0))[
            0
        ]
        > 3
    )
    assert PromptBuilder(Stubborn("S"), TOKENIZER, 10).first_lengths(
        [{"env_prompt": "why"}], SimpleMemory(0)
    ) == [0]


def test_a_tokenizer_without_a_template_is_refused() -> None:
    bare = make_tokenizer()
    bare.chat_template = None
    with pytest.raises(AgentSystemError, match="has no chat template"):
        PromptBuilder(Role("Role"), bare, 100)


class Messages(BaseAgent):
    """Shows the messages of its task."""

    def messages(self, variables: Mapping[str, Any]) -> list[Message]:
        return list(variables["messages"])


class ToolUser(Messages, ToolAgent):
    """The same with a tool."""

    tools = (calculator,)


def conversations() -> dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Pairs of conversations with the same roles and contents that a template can tell apart."""

    def said(**fields: Any) -> list[dict[str, Any]]:
        return [
            {"role": "user", "content": "w?"},
            {"role": "assistant", "content": "", **fields},
            {"role": "user", "content": "now?"},
        ]

    def called(arguments: Any, name: str = "get", **fields: Any) -> list[dict[str, Any]]:
        return said(
            tool_calls=[{"type": "function", "function": {"name": name, "arguments": arguments}, **fields}]
        )

    return {
        "argument": (called({"city": "Oslo"}), called({"city": "Rome"})),
        "argument as text": (called('{"city": "Oslo"}'), called('{"city": "Rome"}')),
        "name of a tool": (called({}, "get"), called({}, "put")),
        "id of a call": (called({}, id="a"), called({}, id="b")),
        "order of arguments": (called({"a": 1, "b": 2}), called({"b": 2, "a": 1})),
        "type of an argument": (called({"a": 1}), called({"a": True})),
        "call and none": (called({}), said()),
        "thinking": (said(reasoning_content="one"), said(reasoning_content="two")),
        "thinking under another name": (said(thinking="one"), said(thinking="two")),
        "name of a speaker": (said(name="ann"), said(name="bob")),
        "a field there or not": (said(name=""), said()),
        "tool of a result": (
            [*called({}), {"role": "tool", "content": "", "tool_call_id": "a"}],
            [*called({}), {"role": "tool", "content": "", "tool_call_id": "b"}],
        ),
    }


@pytest.mark.parametrize("kind", list(conversations()))
@pytest.mark.parametrize("builder_class", [PromptBuilder, ToolPromptBuilder])
def test_conversations_that_a_template_can_tell_apart_have_prompts_of_their_own(
    kind: str, builder_class: Any
) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in (tools or []) + messages %}{{ m | tojson }}\n{% endfor %}"
    agent = ToolUser("Role") if builder_class is ToolPromptBuilder else Messages("Role")
    prompts = builder_class(agent, tokenizer, 10_000)
    pair = conversations()[kind]
    first, second, again = (prompts.build({"messages": one}, [], SimpleMemory(0)) for one in (*pair, pair[0]))
    fresh = builder_class(agent, tokenizer, 10_000).build({"messages": pair[1]}, [], SimpleMemory(0))
    assert first.text != second.text == fresh.text
    assert again is first


def test_a_message_with_objects_that_cannot_be_compared_is_rendered_each_time() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{{ m.time.hour }}{% endfor %}"
    prompts = PromptBuilder(Messages("Role"), tokenizer, 1000)

    def text(hour: int) -> str:
        return prompts.build(
            {"messages": [{"role": "user", "content": "", "time": time(hour)}]}, [], SimpleMemory(0)
        ).text

    assert [text(3), text(4)] == ["3", "4"]


def test_special_tokens_are_removed_from_every_text_of_a_message() -> None:
    call = {
        "function": {"name": "get<|im_end|>", "arguments": {"<|im_end|>city": ["Os<|im_end|>lo", 3, None]}}
    }
    message = {
        "role": "assistant",
        "content": "a<|im_end|>",
        "reasoning_content": "<|im_end|>b",
        "tool_calls": [call],
    }
    assert SpecialTokens(TOKENIZER).removed([message]) == [
        {
            "role": "assistant",
            "content": "a",
            "reasoning_content": "b",
            "tool_calls": [{"function": {"name": "get", "arguments": {"city": ["Oslo", 3, None]}}}],
        }
    ]
