"""Tool calls in the text of replies, and the tools that are shipped."""

from __future__ import annotations

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from agent_system import AgentSystemError, BaseAgent
from agent_system.tools import ToolAgent, calculator, make_tool, python, runs_programs, search_tool
from agent_system.tools.formats import ToolRequest, check_format, read_calls, split_calls, syntaxes_of
from agent_system.tools.tool import ToolInputError

CALL = '{"name": "f", "arguments": {"x": 1}}'
LLAMA = '{"name": "f", "parameters": {"x": 1}}'


@pytest.mark.parametrize(
    ("tool_format", "text", "expected"),
    [
        ("hermes", f"go <tool_call>\n{CALL}\n</tool_call><tool_call>{CALL}</tool_call>", 2),
        ("hermes", f"<tool_call>{CALL}", 1),
        ("hermes", f"<think><tool_call>{CALL}</tool_call></think> done", 0),
        ("hermes", CALL, 0),
        ("llama3", LLAMA, 1),
        ("llama3", f"<|python_tag|>{LLAMA}; {LLAMA}", 2),
        ("llama3", f"I would write {LLAMA}", 0),
        ("json", f"Let me see.\n```json\n[{CALL}, {CALL}]\n```", 2),
        ("json", f"Like so:\n```python\nf(1)\n```\nand now:\n```json\n{CALL}\n```", 1),
        ("json", f"```json\n[{CALL},\n{CALL}]```", 2),
        ("json", f"```python\nd = {CALL}\n```", 0),
        ("json", f"[{CALL}]", 1),
        ("json", '{"answer": 4}', 0),
    ],
)
def test_calls_are_read_in_each_format(tool_format: str, text: str, expected: int) -> None:
    calls = read_calls(text, syntaxes_of(tool_format))
    assert [(c.name, c.arguments, c.error) for c in calls] == [("f", {"x": 1}, "")] * expected


def test_a_tag_in_an_argument_ends_no_call() -> None:
    arguments = {"x": "a </tool_call> b <tool_call> c"}
    call = f"<tool_call>\n{json.dumps({'name': 'f', 'arguments': arguments})}\n</tool_call>"
    cut = f"<tool_call>{CALL[:-1]} <tool_call>{CALL} then</tool_call>"
    assert split_calls(f"go {call}{cut}{call} on", syntaxes_of("hermes")) == (
        f"go {cut} on",
        [ToolRequest("f", arguments)] * 2,
    )
    assert [request.error == "" for request in read_calls(call + cut + call, syntaxes_of("hermes"))] == [
        True,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    "text", ['{"name": "f", "parameters": {', '[{"name": 1}]', '{"name": "f", "parameters": ' + "[" * 9000]
)
def test_a_malformed_call_is_no_answer(text: str) -> None:
    (call,) = read_calls(text, syntaxes_of("llama3"))
    assert call.error


def test_an_unknown_format_is_named_with_those_that_there_are() -> None:
    with pytest.raises(AgentSystemError, match=r"hermes, llama3, json, .*found 'xml'"):
        check_format("xml")


@pytest.mark.parametrize(
    ("text", "value"),
    [("(2+3)*4", "20"), ("2**10 - -1", "1025"), ("7//2", "3"), ("1/4", "0.25"), ("2**-1", "0.5")],
)
def test_the_calculator_computes(text: str, value: str) -> None:
    assert calculator(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9",
        "2**99999",
        "(2**4000)*(2**4000)",
        "1e999**2j",
        "__import__('os')",
        "x",
        "1 if 1 else 2",
        "(" * 600,
        "True",
        "(-8)**0.5",
    ],
)
def test_the_calculator_refuses(text: str) -> None:
    with pytest.raises((ValueError, SyntaxError)):
        calculator(text)


class Noting(ToolAgent):
    tools = (calculator, "note")

    def start(self, task: Any) -> None:
        self.notes: list[str] = []

    def note(self, text: str, times: int = 1) -> str:
        """Take a note.

        Args:
            text: the note.
            times: how often.
        """
        self.notes += [text] * times
        return " ".join(self.notes)


def test_an_agent_with_tools_and_a_state_can_be_pickled_and_forked() -> None:
    agent = Noting("A")
    agent.start(None)
    agent.notes.append("first")
    for other in (pickle.loads(pickle.dumps(agent)), agent.fork()):
        tool = other.by_name["note"]
        assert (
            other.schemas == agent.schemas
            and asyncio.run(tool.call(tool.validate({"text": "b", "times": "2"}), 9.0)) == "first b b"
        )
        with pytest.raises(ToolInputError, match="times"):
            tool.validate({"text": "b", "times": "x"})
    assert agent.notes == ["first"]
    assert pickle.loads(pickle.dumps(agent.by_name["calculator"])).validate({"expression": "1"}) == {
        "expression": "1"
    }


def call(function: Any, **arguments: Any) -> str:
    tool = make_tool(function)
    return asyncio.run(tool.call(tool.validate(arguments), 60.0))


def test_programs_run_in_the_sandbox() -> None:
    assert call(python, code="print(6 * 7)").strip() == "42"
    assert "ZeroDivisionError" in call(python, code="print('so far')\n1 / 0")
    assert "failed (output)" in call(python, code="while True: print('x' * 10**6)")


def test_a_search_reads_a_corpus(tmp_path: Path) -> None:
    from agent_system.workflows.search.world.shared import shared_retriever

    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(
        '{"id": "0", "contents": "\\"Oslo\\"\\nThe capital of Norway."}\n{"id": "1", "contents": '
        '"\\"Bern\\"\\nIn Switzerland."}\n'
    )
    try:
        assert "capital of Norway" in call(search_tool(corpus=str(corpus), topk=1), query="capital of Norway")
    finally:
        shared_retriever(str(corpus), "", 1, 15.0, 600.0, 2000).close()


def test_only_agents_with_the_python_tool_need_the_sandbox() -> None:
    class Programmer(ToolAgent):
        tools = (python,)

    class Counter(ToolAgent):
        tools = (calculator,)

    assert [runs_programs(cls) for cls in (Programmer, Counter, BaseAgent)] == [True, False, False]
