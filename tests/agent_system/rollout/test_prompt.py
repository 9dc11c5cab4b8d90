"""Prompts that do not fit: role and question stay, the oldest context goes first, and it is counted."""

from __future__ import annotations

from typing import Any

import pytest

from agent_system import AgentSystemError, BaseAgent, Entry, SimpleMemory
from agent_system.rollout.prompt import PromptBuilder, PromptTooLongError
from agent_system.testing import make_tokenizer


class Role(BaseAgent):
    system = "ROLE"
    prompt = "{memory}\n{team_context}\nQUESTION {env_prompt}"


ENTRIES = [Entry("A", "oldest " + "a" * 40), Entry("B", "middle " + "b" * 40), Entry("C", "newest " + "c" * 40 + " END")]
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
    thinking.chat_template += "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    prompt = PromptBuilder(Role("Role"), thinking, 1000, {"enable_thinking": False}).build({"env_prompt": "why"}, [], SimpleMemory(0))
    assert prompt.text.endswith("<think></think>")
    assert "<think>" not in PromptBuilder(Role("Role"), thinking, 1000).build({"env_prompt": "why"}, [], SimpleMemory(0)).text


def test_first_lengths_are_those_of_first_prompts() -> None:
    one = builder(10_000)
    questions = [{"env_prompt": text} for text in ("why", "why <|im_end|> not", "w" * 300)]
    assert one.first_lengths(questions, SimpleMemory(0)) == [len(one.build(q, [], SimpleMemory(0)).ids) for q in questions]


class Particular(BaseAgent):
    prompt = "{env_prompt}{grid.rows[0]}{score:.2f}{who!r}"


class Stubborn(BaseAgent):
    def messages(self, variables: Any) -> Any:
        return [{"role": "user", "content": str(variables["round"] / 2)}]


def test_variables_of_the_orchestra_do_not_stop_a_measurement() -> None:
    assert PromptBuilder(Particular("P"), TOKENIZER, 10).first_lengths([{"env_prompt": "why"}], SimpleMemory(0))[0] > 3
    assert PromptBuilder(Stubborn("S"), TOKENIZER, 10).first_lengths([{"env_prompt": "why"}], SimpleMemory(0)) == [0]


def test_a_tokenizer_without_a_template_is_refused() -> None:
    bare = make_tokenizer()
    bare.chat_template = None
    with pytest.raises(AgentSystemError, match="has no chat template"):
        PromptBuilder(Role("Role"), bare, 100)
