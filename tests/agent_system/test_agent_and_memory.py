"""Roles, memory, rewards and the scripted engine."""

from __future__ import annotations

import pytest

from agent_system import AgentSystemError, BaseAgent, SearchMemory, SimpleMemory, boxed_answer, tag
from agent_system.projection import Projection
from agent_system.reward import mix
from agent_system.testing import ScriptedEngine, make_tokenizer
from verl.protocol.generate import GenerateRequest, RolloutClient, RolloutError, SamplingParams


class Function(BaseAgent):
    projection = boxed_answer


class Factory(BaseAgent):
    projection = tag("answer")


class Method(BaseAgent):
    def projection(self, text: str) -> Projection:
        return Projection(f"{self.agent_id}:{text}")


def test_a_projection_may_be_a_function_a_factory_or_a_method() -> None:
    assert Function("f").project(r"\boxed{1}").action == "1"
    assert Factory("f").project("<answer>1</answer>").action == "1"
    assert Method("me").project("x").action == "me:x"


def test_a_variable_that_was_not_passed_is_named_with_those_that_were() -> None:
    class Needs(BaseAgent):
        prompt = "{hintt}"

    with pytest.raises(AgentSystemError, match=r"uses \{hintt\}.*did you mean 'hint'\?; available: hint"):
        Needs("n").messages({"hint": "x"})


def test_a_template_with_a_stray_brace_says_how_to_write_it() -> None:
    class Stray(BaseAgent):
        prompt = "{"

    with pytest.raises(AgentSystemError, match="write literal braces twice"):
        Stray("s").messages({})


def test_braces_in_what_the_model_or_the_task_wrote_are_left_alone() -> None:
    assert BaseAgent("b").messages({"env_prompt": "{step} {{x}}", "step": 1})[0]["content"] == "{step} {{x}}"


def test_memory_shows_the_last_turns_only_and_forks_are_independent() -> None:
    memory = SimpleMemory(2)
    for i in range(3):
        memory.store(f"o{i}", f"a{i}")
    assert memory.text() == "[Observation 2: 'o1', Action 2: 'a1']\n[Observation 3: 'o2', Action 3: 'a2']"
    copy = memory.fork()
    copy.store("o3", "a3")
    assert (len(memory), len(copy)) == (3, 4)
    assert SimpleMemory(0).text() == ""
    with pytest.raises(ValueError, match="history_length"):
        SimpleMemory(-1)


def test_search_memory_words_queries_and_results() -> None:
    memory = SearchMemory(4)
    memory.store("found it", "where?")
    assert memory.text() == "Step 1: <search>where?</search> <information>found it</information>"


def test_search_memory_shows_a_repeated_search_once_and_a_fork_keeps_every_attribute() -> None:
    memory = SearchMemory(4)
    memory.note = ["kept"]  # type: ignore[attr-defined]
    for result, query in (("x", "a"), ("y", "b"), ("x", "a")):
        memory.store(result, query)
    assert [(t.step, t.action) for t in memory.recent()] == [(2, "b"), (3, "a")]
    assert memory.fork().note == ["kept"]  # type: ignore[attr-defined]


def test_rewards_mix() -> None:
    assert mix(team=1.0, local=0.25, alpha=2.0) == 2.25


async def test_the_scripted_engine_serves_n_replies_and_says_when_the_script_ends() -> None:
    tokenizer = make_tokenizer()
    engine = ScriptedEngine(tokenizer, ["one", "two"], version=3)
    assert isinstance(engine, RolloutClient)
    replies = await engine.generate(GenerateRequest((1,), SamplingParams(10), n=2))
    assert [tokenizer.decode(r.token_ids, skip_special_tokens=True) for r in replies] == ["one", "two"]
    assert {r.version for r in replies} == {3}
    with pytest.raises(RolloutError, match="no reply left"):
        await engine.generate(GenerateRequest((1,), SamplingParams(10)))
