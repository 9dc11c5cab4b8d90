"""Requests as OpenAI's API has them: what it answers is answered, and what has no meaning is one error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_system import Task
from agent_system.gateway.request_fields import OF_OTHER_ROUTES
from agent_system.gateway.session import Session

from .conftest import USER, posted, say, send
from .templates import CHATML, tokenizer_of

CHAT, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/responses", "/v1/completions"
PLAIN: dict[str, dict[str, Any]] = {
    CHAT: {"model": "Writer", "messages": USER},
    RESPONSES: {"model": "Writer", "input": "2+2?"},
    COMPLETIONS: {"model": "Writer", "prompt": "2+2="},
}
ADD = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
ADD_TOOL = {"type": "function", "function": ADD}
TWO_CALLS = "\n".join(
    f'<tool_call>\n{{"name": "{name}", "arguments": {{"a": {a}}}}}\n</tool_call>'
    for name, a in (("add", 1), ("sub", 2))
)
TOOLS = [ADD_TOOL, {"type": "function", "function": {**ADD, "name": "sub"}}]
# Values of no meaning, by the field that the error names.
NUMBER = ("hot", True, [], {}, float("nan"), -3)
WRONG: dict[str, tuple[Any, ...]] = {
    "temperature": (*NUMBER, 101), "top_p": (*NUMBER, 2), "min_p": (*NUMBER, 2),
    "presence_penalty": (*NUMBER, 3),
    "frequency_penalty": (*NUMBER, 3), "repetition_penalty": NUMBER, "top_k": NUMBER, "best_of": NUMBER,
    "logit_bias": ("hot", [5], {"5": "much"}, {"5": True}),
    "stop": ([""], "", [None], ["a", 5], {"a": 1}, ["x"] * 17, "\ud800", ["a", "b\udc00"]),
    "seed": (1.5, "1", True), "stream": ("true", 1), "stream_options": ("x", []), "n": (0, 1.5, "1", True),
}  # fmt: skip
WRONG_CHAT: dict[str, tuple[Any, ...]] = {
    "max_tokens": (0, -1, 64.0, "5", True), "max_completion_tokens": (0, "5"), "logprobs": (1, "true"),
    "parallel_tool_calls": ("x", 1),
    "tools": ({"a": 1}, "x", [{}], [{"type": "custom", "custom": {"name": "c"}}]),
    "tool_choice": ("any", [], 5, {}, {"type": "auto"}),
    "response_format": ("json_object", [], {}, 5, {"type": "x"}, {"type": "json_schema"},
                        {"type": "json_schema", "json_schema": {"name": "v", "schema": True}}),
}  # fmt: skip
WRONG_RESPONSES: dict[str, tuple[Any, ...]] = {
    "max_output_tokens": (0, "5", True), "text": ("x", 5, ["x"]), "parallel_tool_calls": ("x", 1),
    "text.format": ("json_object", {}, {"type": "x"}), "tools": ("x", [{"type": "web_search"}], [None]),
    "input": (None, [], 5, {}, ["hi"], [{}], [{"role": "bob", "content": "x"}], [{"type": "web_search_call"}],
              [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
}  # fmt: skip
TOOLS_WITHOUT_MEANING = (
    {"name": ""}, {"name": "f", "parameters": "x"}, {"name": "f", "parameters": [1]}, {"parameters": {}},
)  # fmt: skip


@pytest.mark.parametrize("path", PLAIN)
async def test_a_value_without_meaning_is_one_error_that_names_its_field(play: Any, path: str) -> None:
    more = {CHAT: WRONG_CHAT, RESPONSES: WRONG_RESPONSES, COMPLETIONS: {}}[path]
    values = WRONG | more
    if path == RESPONSES:
        values = {**values, "n": (2, "1")}

    async def team(task: Task, session: Session) -> str:
        for name, wrong in values.items():
            for value in wrong:
                field, _, inner = name.partition(".")
                body = PLAIN[path] | {field: {inner: value} if inner else value}
                answer = await send(session, json.dumps(body).encode(), path=path)
                assert answer.status == 400, (name, value)
                assert answer.body["error"]["param"].split(".")[0] == field, answer.body
        if path == CHAT:
            for function in TOOLS_WITHOUT_MEANING:
                tools = [{"type": "function", "function": function}]
                answer = await send(session, PLAIN[path] | {"tools": tools}, path=path)
                assert (answer.status, answer.body["error"]["param"]) == (400, "tools"), function
        return "4"

    episode, metrics, engine = await play(team, chat=tokenizer_of("qwen2.5"), structured="free")
    assert (episode.failure, engine.requests, metrics.get("gateway/overridden", 0)) == (None, [], 0)


@pytest.mark.parametrize("path", OF_OTHER_ROUTES)
async def test_a_field_of_another_route_is_refused_with_its_name_here(play: Any, path: str) -> None:
    async def team(task: Task, session: Session) -> str:
        for name, here in OF_OTHER_ROUTES[path].items():
            answer = await send(session, PLAIN[path] | {name: "x"}, path=path)
            assert (answer.status, answer.body["error"]["param"]) == (400, name), answer.body
            assert answer.body["error"]["message"] == f"{name} is no field of {path}; use {here}"
            assert (await send(session, PLAIN[path] | {name: None}, path=path)).status == 200
        return "4"

    episode, metrics, _ = await play(team)
    assert (episode.failure, metrics.get("gateway/ignored", 0)) == (None, 0)


@pytest.mark.parametrize("parallel", [None, True, False])
async def test_the_calls_of_a_reply_are_one_an_event_and_one_alone_if_not_parallel(
    play: Any, parallel: bool | None
) -> None:
    fields = {} if parallel is None else {"parallel_tool_calls": parallel}
    names = ["add"] if parallel is False else ["add", "sub"]

    async def team(task: Task, session: Session) -> str:
        body = {**PLAIN[CHAT], "tools": TOOLS, **fields}
        first = await say(session, "Writer", tools=TOOLS, **fields)
        calls = first.message["tool_calls"]
        assert [call["function"]["name"] for call in calls] == names and first.message["content"] is None
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "7"} for call in calls]
        await say(session, "Writer", [*USER, first.message, *results], tools=TOOLS, **fields)
        async with posted(session, body | {"stream": True}) as answer:
            lines = (await answer.read()).decode().splitlines()
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        deltas = [chunk["choices"][0]["delta"].get("tool_calls", []) for chunk in chunks]
        assert [[(call["index"], call["function"]["name"]) for call in delta] for delta in deltas] == [
            *([(index, name)] for index, name in enumerate(names)),
            [],
        ]
        answer = await send(
            session,
            PLAIN[RESPONSES] | {"tools": [{"type": "function", **t["function"]} for t in TOOLS]} | fields,
            path=RESPONSES,
        )
        assert [item["name"] for item in answer.body["output"]] == names
        assert answer.body["parallel_tool_calls"] is (parallel is not False)
        return "4"

    episode, metrics, _ = await play(team, lambda prompt, request: TWO_CALLS, chat=tokenizer_of("qwen2.5"))
    assert (episode.failure, metrics.get("gateway/ignored", 0)) == (None, 0)


IDS: dict[str, list[str | None]] = {
    "equal": ["c", "c"], "none": [None, None], "empty": ["", ""], "own": ["x", "y"],
}  # fmt: skip


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("earlier", [False, True])
async def test_results_of_calls_with_equal_ids_go_to_them_in_their_order(
    play: Any, ids: str, earlier: bool
) -> None:
    """Also after an earlier reply whose call of this id got no result."""
    names = [tool["function"]["name"] for tool in TOOLS]
    calls = [
        {"type": "function", "function": {"name": name, "arguments": "{}"}}
        | ({"id": client_id} if client_id is not None else {})
        for name, client_id in zip(names, IDS[ids], strict=True)
    ]
    results = [
        {"role": "tool", "content": f"of {name}"}
        | ({"tool_call_id": client_id} if client_id is not None else {})
        for name, client_id in zip(names, IDS[ids], strict=True)
    ]
    before = [{"role": "assistant", "content": "", "tool_calls": calls[:1]}, *USER] if earlier else []

    async def team(task: Task, session: Session) -> str:
        messages = [*USER, *before, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
        await say(session, "Writer", messages, tools=TOOLS)
        return "4"

    shows = "message.name ~ ' ' ~ message.tool_call_id ~ ': ' ~ message.content"
    chat = tokenizer_of("qwen2.5")
    chat.chat_template = chat.chat_template.replace(
        "<tool_response>\n' ~ message.content", f"<tool_response>\n' ~ {shows}"
    )
    episode, _, engine = await play(team, chat=chat)
    assert episode.failure is None
    (prompt,) = [chat.decode(request.prompt_ids) for request in engine.requests]
    first = 1 if earlier else 0
    for index, name in enumerate(names):
        assert f"{name} call{first + index:05d}: of {name}" in prompt


READS = {
    "parameters": "{%- for tool in tools or [] %}"
    "{% for name, field in tool.function.parameters.properties.items() %}"
    "{{ name }}{% endfor %}{% endfor %}",
    "a description": "{%- for tool in tools or [] %}"
    "{{ tool.function.name + tool.function.description }}{% endfor %}",
    "JSON of its parts": "{%- for tool in tools or [] %}{{ tool.function.parameters | tojson }}{% endfor %}",
}


@pytest.mark.parametrize("reads", READS)
async def test_a_tool_needs_neither_description_nor_parameters_whatever_a_template_reads(
    play: Any, reads: str
) -> None:
    chat = tokenizer_of("qwen2.5")
    chat.chat_template = READS[reads] + CHATML.replace("SHOWN", "message.content")

    async def team(task: Task, session: Session) -> str:
        for function in (
            {"name": "f"}, {"name": "f", "parameters": None, "description": None},
            {"name": "f", "parameters": {}}, ADD,
        ):  # fmt: skip
            await say(session, "Writer", tools=[{"type": "function", "function": function}])
        return "4"

    episode, _, engine = await play(team, chat=chat)
    assert (episode.failure, len(engine.requests)) == (None, 4)
    assert all("null" not in chat.decode(request.prompt_ids) for request in engine.requests)


async def test_a_response_has_log_probabilities_if_they_are_included(play: Any) -> None:
    async def team(task: Task, session: Session) -> str:
        for include, count in ((["message.output_text.logprobs"], 2), (["reasoning.encrypted_content"], 0)):
            body = PLAIN[RESPONSES] | {"include": include}
            answer = await send(session, body, path=RESPONSES)
            details = answer.body["output"][0]["content"][0].get("logprobs", [])
            assert len(details) == count and all(entry["logprob"] <= 0 for entry in details)
            async with posted(session, body | {"stream": True}, path=RESPONSES) as stream:
                lines = (await stream.read()).decode().splitlines()
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            deltas = [event for event in events if event["type"] == "response.output_text.delta"]
            assert [len(event["logprobs"]) for event in deltas] == [count]
        return "4"

    episode, metrics, _ = await play(team)
    assert (episode.failure, metrics.get("gateway/ignored", 0)) == (None, 0)


async def test_what_an_assistant_said_in_an_old_form_is_shown_or_refused(play: Any) -> None:
    async def team(task: Task, session: Session) -> str:
        refused = {"role": "assistant", "content": None, "refusal": "I will not."}
        await say(session, "Writer", [*USER, refused, *USER])
        called = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
        answer = await send(session, PLAIN[CHAT] | {"messages": [*USER, called, *USER]})
        assert answer.status == 400 and "use tool_calls" in answer.body["error"]["message"]
        return "4"

    chat = tokenizer_of("qwen2.5")
    episode, _, engine = await play(team, chat=chat)
    assert episode.failure is None
    assert "assistant\nI will not." in chat.decode(engine.requests[0].prompt_ids)
