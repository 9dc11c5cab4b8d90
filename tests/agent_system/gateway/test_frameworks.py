"""Teams of agent frameworks, as their users write them; a framework that is not installed is skipped.

Each asks an agent that calls a tool, gives it the result, and asks a second one. The tool's result must
continue the sampled tokens, in whatever form the framework sends the conversation.
"""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
import types
from typing import Any

import pytest

from agent_system import Task
from agent_system.gateway.session import Session
from tests.docs.pages import blocks
from tests.house.source import ROOT

from .conftest import TASK, USER
from .templates import tokenizer_of

CALL = f"I add.\n<tool_call>\n{json.dumps({'name': 'add', 'arguments': {'b': 3, 'a': 1}})}\n</tool_call>"


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b


def replies(prompt: str, request: Any) -> str:
    return "4" if "<tool_response>\n4" in prompt or "Judge" in prompt else CALL


async def langgraph(task: Task, session: Session) -> str:
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    def model(name: str) -> Any:
        return ChatOpenAI(model=name, base_url=session.base_url, api_key=session.api_key)

    tools = [tool(add)]
    writer = model("Writer").bind_tools(tools)

    async def write(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await writer.ainvoke(state["messages"])]}

    async def judge(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model("Editor").ainvoke(f"Judge: {state['messages'][-1].content}")]}

    graph = StateGraph(MessagesState)
    graph.add_node("write", write)
    graph.add_node("tools", ToolNode(tools))
    graph.add_node("judge", judge)
    graph.add_edge(START, "write")
    graph.add_conditional_edges("write", tools_condition, {"tools": "tools", END: "judge"})
    graph.add_edge("tools", "write")
    graph.add_edge("judge", END)
    found = await graph.compile().ainvoke({"messages": [("user", task.prompt)]})
    return str(found["messages"][-1].content)


async def autogen(task: Task, session: Session) -> str:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_agentchat.teams import RoundRobinGroupChat
    from autogen_core.models import ModelFamily, ModelInfo
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    info = ModelInfo(
        vision=False,
        function_calling=True,
        json_output=False,
        family=ModelFamily.UNKNOWN,
        structured_output=False,
    )

    def model(name: str) -> Any:
        return OpenAIChatCompletionClient(
            model=name, base_url=session.base_url, api_key=session.api_key, model_info=info
        )

    writer = AssistantAgent(
        "writer", model("Writer"), tools=[add], max_tool_iterations=2, system_message="You add."
    )
    editor = AssistantAgent("editor", model("Editor"), system_message="Judge the sum.")
    result = await RoundRobinGroupChat([writer, editor], max_turns=2).run(task=task.prompt)
    return str(result.messages[-1].content)


async def agents(task: Task, session: Session, responses: bool = False) -> str:
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=session.base_url, api_key=session.api_key)
    kind = OpenAIResponsesModel if responses else OpenAIChatCompletionsModel
    writer = Agent("writer", model=kind("Writer", client), tools=[function_tool(add)])
    editor = Agent("editor", model=kind("Editor", client), instructions="Judge the sum.")
    sum_ = (await Runner.run(writer, task.prompt)).final_output
    return str((await Runner.run(editor, str(sum_))).final_output)


async def agents_by_responses(task: Task, session: Session) -> str:
    return await agents(task, session, responses=True)


def smolagents(task: Task, session: Session) -> str:
    from smolagents import OpenAIModel
    from smolagents.models import ChatMessage, MessageRole

    def model(name: str) -> Any:
        return OpenAIModel(name, api_base=session.base_url, api_key=session.api_key)

    messages = [ChatMessage(MessageRole.USER, [{"type": "text", "text": f"Judge: {task.prompt}"}])]
    first = model("Writer").generate(messages)
    return str(model("Editor").generate([*messages, first, *messages]).content)


NEEDS = {
    langgraph: ("langgraph", "langchain_openai"),
    autogen: ("autogen_agentchat", "autogen_ext.models.openai"),
    agents: ("agents.models",),
    agents_by_responses: ("agents.models",),
    smolagents: ("smolagents",),
}


@pytest.mark.parametrize("team", NEEDS, ids=lambda team: team.__name__)
async def test_a_team_of_a_framework_is_played_with_exact_tokens(play: Any, team: Any) -> None:
    for module in NEEDS[team]:
        pytest.importorskip(module)
    episode, metrics, engine = await play(team, replies, chat=tokenizer_of("qwen2.5"))
    assert (episode.failure, episode.answer) == (None, "4")
    spoken = [s.agent_id for s in episode.samples]
    assert spoken == (["Writer", "Editor"] if team is smolagents else ["Writer", "Writer", "Editor"])
    assert [(s.request.prompt_ids, s.generation.token_ids) for s in episode.samples] == engine.sampled
    if team is not smolagents:
        first, second, _ = episode.samples
        whole = first.request.prompt_ids + first.generation.token_ids
        assert second.request.prompt_ids[: len(whole)] == whole, second.request.prompt_text
        assert second.request.messages[0] is first.request.messages[0], (
            "the text of a conversation is kept once"
        )
    assert not any(count for name, count in metrics.items() if name.startswith("gateway/rewritten"))


async def test_a_plain_function_may_run_an_event_loop_of_its_own(make_team: Any) -> None:
    pytest.importorskip("openai")

    def team(task: Task, session: Session) -> Any:
        async def ask() -> Any:
            return (
                (await session.openai().chat.completions.create(model="Writer", messages=USER))
                .choices[0]
                .message.content
            )

        return asyncio.run(ask())

    collector, _ = make_team(team)
    (episode,) = (await collector.collect([TASK], 1, step=1)).episodes
    assert (episode.failure, episode.answer) == (None, "4") and not collector.orchestra._server._open


def calling(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def hands_over(prompt: str, request: Any) -> str:
    return (
        "<verify>approve</verify>"
        if "Check the solution" in prompt
        else "\\boxed{4} " + calling("transfer_to_verifier")
    )


def multiplies(prompt: str, request: Any) -> str:
    if "<verify>" in prompt:
        return "<verify>approve</verify>"
    return (
        calling("final_answer", answer="\\boxed{4}")
        if "Observation:\n4" in prompt
        else calling("multiply", a=2, b=2)
    )


FRAMEWORKS, ROLES = ROOT / "examples" / "frameworks", ("Solver", "Verifier")
SOLVER, VERIFIER = "Solver Agent", "Verifier Agent"
EXAMPLES = {"agents_team": ("agents.models", hands_over, 1), "smolagents_team": ("smolagents", multiplies, 2)}


@pytest.mark.parametrize("name", EXAMPLES)
async def test_an_example_hands_over_and_uses_its_tool(play: Any, name: str) -> None:
    module, script, solved = EXAMPLES[name]
    pytest.importorskip(module)
    team = runpy.run_path(str(FRAMEWORKS / f"{name}.py"))["team"]
    options = {"agents": (SOLVER, VERIFIER), "limits": (40000, 400)}
    episode, _, engine = await play(team, script, chat=tokenizer_of("qwen2.5"), **options)
    assert (episode.failure, episode.answer) == (None, "4")
    assert [s.agent_id for s in episode.samples] == [SOLVER] * solved + [VERIFIER]
    assert [(s.request.prompt_ids, s.generation.token_ids) for s in episode.samples] == engine.sampled
    if name == "agents_team":  # the handoff's result is in the verifier's prompt, so no second run asked it
        assert '{"assistant": "Verifier"}' in episode.samples[-1].request.prompt_text


async def test_the_lines_of_the_page_that_bring_a_langgraph_program(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in NEEDS[langgraph]:
        pytest.importorskip(module)
    (block,) = [block for block in blocks("python") if block.marker == "file: my_team.py"]
    graph = runpy.run_path(str(FRAMEWORKS / "langgraph_team.py"))["build"]
    monkeypatch.setitem(sys.modules, "my_project", types.SimpleNamespace(build_graph=graph))
    added: dict[str, Any] = {}
    exec(compile(block.text, block.page, "exec"), added)
    replies = {"Solve": "\\boxed{4}", "Check": "<verify>approve</verify>"}
    episode, _, engine = await play(
        added["team"], lambda prompt, _: replies["Check" if "Check" in prompt else "Solve"], agents=ROLES
    )
    assert (episode.failure, episode.answer) == (None, "\nVerifier: <verify>approve</verify>")
    assert [s.agent_id for s in episode.samples] == list(ROLES)
    assert [(s.request.prompt_ids, s.generation.token_ids) for s in episode.samples] == engine.sampled


def openai_in_thread(task: Task, session: Session) -> str:
    with session.clients.openai_in_thread() as client:
        messages: Any = [{"role": "user", "content": task.prompt}]
        return str(
            client.chat.completions.create(model="Writer", messages=messages).choices[0].message.content
        )


def langgraph_in_thread(task: Task, session: Session) -> str:
    from langgraph.graph import START, MessagesState, StateGraph

    model = session.chat_model("Writer")
    graph = StateGraph(MessagesState)
    graph.add_node("write", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "write")
    return str(graph.compile().invoke({"messages": [("user", task.prompt)]})["messages"][-1].content)


@pytest.mark.parametrize("team", [openai_in_thread, langgraph_in_thread])
async def test_a_plain_function_asks_by_a_blocking_client(play: Any, team: Any) -> None:
    for module in ("openai",) if team is openai_in_thread else NEEDS[langgraph]:
        pytest.importorskip(module)
    episode, _, engine = await play(team)
    assert (episode.failure, episode.answer) == (None, "4")
    assert [(s.request.prompt_ids, s.generation.token_ids) for s in episode.samples] == engine.sampled


async def test_a_model_selects_the_next_speaker_of_autogen(play: Any) -> None:
    """The choice is a call of an agent of the team too."""
    for module in NEEDS[autogen]:
        pytest.importorskip(module)

    async def team(task: Task, session: Session) -> str:
        from autogen_agentchat.agents import AssistantAgent
        from autogen_agentchat.conditions import MaxMessageTermination
        from autogen_agentchat.teams import SelectorGroupChat

        names = ("Writer", "Editor")
        agents = [AssistantAgent(name, session.autogen(name), description=name) for name in names]
        ends = MaxMessageTermination(3)  # the task, and two replies
        chat = SelectorGroupChat(
            agents, session.autogen("Editor"), termination_condition=ends, allow_repeated_speaker=True
        )
        return str((await chat.run(task=task.prompt)).messages[-1].to_text())

    def script(prompt: str, request: Any) -> str:
        return "Writer" if "select the next role" in prompt.lower() else "4"

    episode, _, engine = await play(team, script)
    assert (episode.failure, episode.answer) == (None, "4")
    assert [s.agent_id for s in episode.samples] == ["Editor", "Writer"] * 2
    assert [(s.request.prompt_ids, s.generation.token_ids) for s in episode.samples] == engine.sampled


async def test_langchain_knows_the_error_of_a_prompt_that_is_too_long(play: Any) -> None:
    for module in NEEDS[langgraph]:
        pytest.importorskip(module)

    async def team(task: Task, session: Session) -> str:
        from langchain_core.exceptions import ContextOverflowError

        with pytest.raises(ContextOverflowError, match=r"data\.max_prompt_length=4000"):
            await session.chat_model("Writer").ainvoke("x" * 5000)
        return "4"

    episode, _, _ = await play(team)
    assert episode.failure is None, episode.failure
