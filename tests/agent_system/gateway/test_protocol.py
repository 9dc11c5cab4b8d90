"""Requests and answers in OpenAI's format: what is honoured, what is refused, and that no refusal makes a
client try again.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_system import Outcome, Task
from agent_system.gateway import routes
from agent_system.gateway.chat_request import ChatRequest, read_chat_request
from agent_system.gateway.completion import Completion
from agent_system.gateway.errors import Refusal
from agent_system.gateway.messages import MessageNormalizer
from agent_system.gateway.responses import ResponseStore, chat_body
from agent_system.gateway.session import Session
from agent_system.gateway.structured_output import structure_of
from agent_system.rollout.batch import build_batch
from agent_system.tools.formats.named import NAMED
from tests.waiting import settle, until
from verl.protocol.generate import StructureError

from .conftest import USER, Answer, posted, say, send

ROLE = {"model": "Writer", "messages": USER}
LONG = [{"role": "user", "content": "x" * 5000}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
OBJECT = {"type": "object", "additionalProperties": {"type": "integer"}}
# Body -> status, the field at fault, the code, part of the message.
REFUSED: list[tuple[Any, int, str | None, str | None, str]] = [
    (b"{", 400, None, None, "the body is not valid JSON"),
    (b"[" * 100_000, 400, None, None, "the body is not valid JSON"),
    (b"[]", 400, None, None, "must be a JSON object"),
    (b"\xff\xfe{}", 400, None, None, "the body is not valid JSON"),
    (b" " * ((16 << 20) + 1), 413, None, "request_too_large", "more than 16 MiB"),
    ({"model": "Writer"}, 400, "messages", None, "at least one message"),
    ({**ROLE, "messages": []}, 400, "messages", None, "at least one message"),
    ({**ROLE, "messages": "hi"}, 400, "messages", None, "messages must be list"),
    ({**ROLE, "messages": ["hi"]}, 400, "messages[0]", None, "messages[0].role must be one of system, developer, user"),
    ({**ROLE, "messages": [{"role": "critic", "content": ""}]}, 400, "messages[0]", None, "found 'critic'"),
    ({**ROLE, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0]", None, "part of type 'image_url'"),
    ({**ROLE, "messages": [{"role": "user", "content": 3}]}, 400, "messages[0]", None, "part of type 'int'"),
    ({**ROLE, "messages": [{"role": "assistant", "tool_calls": [{}]}]}, 400, "messages[0]", None, "a function call with a name"),
    ({**ROLE, "messages": LONG}, 400, "messages", "context_length_exceeded", "more than data.max_prompt_length=4000 tokens; send less"),
    ({**ROLE, "model": "Wirter"}, 404, "model", "model_not_found", "did you mean 'Writer'?; the model is one of: Writer, Editor"),
    ({"messages": USER}, 404, "model", "model_not_found", "no agent ''"),
    ({**ROLE, "n": 0}, 400, "n", None, "n must be int from 1 to 128, found 0"),
    ({**ROLE, "n": 1000}, 400, "n", None, "n must be int from 1 to 128"),
    ({**ROLE, "n": True}, 400, "n", None, "n must be int"),
    ({**ROLE, "max_tokens": 0}, 400, "max_tokens", None, "max_tokens must be int from 1, found 0"),
    ({**ROLE, "seed": "x"}, 400, "seed", None, 'seed must be int, found "x"'),
    ({**ROLE, "stop": [""]}, 400, "stop", None, "not empty"),
    ({**ROLE, "stream": "yes"}, 400, "stream", None, "stream must be bool"),
    ({**ROLE, "response_format": {"type": "json_schema", "json_schema": {}}}, 400, "response_format", None, "masks tokens"),
    ({**ROLE, "tools": [TOOL], "tool_choice": "required"}, 400, "tool_choice", None, "masks tokens"),
    ({**ROLE, "tools": [TOOL]}, 400, "tools", None, "shows no tools"),
    ({**ROLE, "tools": [{"type": "web_search"}]}, 400, "tools", None, "every tool must be"),
    ({**ROLE, "functions": [{"name": "f"}]}, 400, "functions", None, "use tools"),
    ({**ROLE, "logprobs": True, "top_logprobs": 3}, 400, "top_logprobs", None, "sampled token alone"),
    ({**ROLE, "modalities": ["audio"]}, 400, "modalities", None, "replies are text"),
]  # fmt: skip


async def test_what_cannot_be_answered_is_refused_for_good_and_says_why(play: Any) -> None:
    answers: list[Answer] = []

    async def team(task: Task, session: Session) -> str:
        for body, *_ in REFUSED:
            answers.append(await send(session, body))
        for path, key in (
            ("/v1/chat/completions", "sk-wrong"),
            ("/v1/chat/completions", ""),
            ("/v1/embeddings", None),
        ):
            answers.append(await send(session, ROLE, path=path, key=key))
        answers.append(await send(session, ROLE, path="/agents/nobody/v1/chat/completions"))
        return (await say(session, "Writer")).text

    episode, _, engine = await play(team)
    assert episode.failure is None and len(episode.samples) == len(engine.requests) == 1, (
        "nothing that was refused is a call"
    )
    expected = [*(case[1:] for case in REFUSED), *[(401, None, "invalid_api_key", "use session.api_key")] * 2]
    expected += [
        (404, None, None, "POST /v1/chat/completions, POST /v1/responses, GET /v1/models"),
        (404, "model", "model_not_found", "no agent 'nobody'"),
    ]
    for answer, (status, param, code, said) in zip(answers, expected, strict=True):
        error = answer.body["error"]
        assert (answer.status, error["param"], error["code"]) == (status, param, code) and said in error[
            "message"
        ], error
        assert answer.headers["x-should-retry"] == "false" and error["type"].endswith("_error")


FIELDS = (
    *ChatRequest.__slots__,
    "max_completion_tokens",
    "response_format",
    "tool_choice",
    "functions",
    "top_logprobs",
    "stream_options",
)
FIELDS += (
    "input",
    "instructions",
    "text",
    "previous_response_id",
    "max_output_tokens",
    "modalities",
    "temperature",
)
PARTS = (
    "role",
    "content",
    "tool_calls",
    "tool_call_id",
    "type",
    "function",
    "name",
    "arguments",
    "id",
    "call_id",
    "output",
    "format",
)
TEXTS = st.sampled_from(
    [
        "user",
        "assistant",
        "tool",
        "function",
        "function_call",
        "text",
        "input_text",
        "f",
        '{"a": 1}',
        "[",
        "\ud800",
    ]
)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 200) | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(PARTS), inner, max_size=5),
    max_leaves=12,
)
MESSAGE = st.fixed_dictionaries(
    {"role": TEXTS, "content": ANY}, optional={"tool_calls": st.lists(ANY) | ANY, "tool_call_id": ANY}
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(FIELDS), ANY, max_size=6),
    st.lists(MESSAGE, max_size=3),
    st.sampled_from(["messages", "input"]),
)
def test_any_json_is_read_or_refused(body: dict[str, Any], messages: list[Any], name: str) -> None:
    """What a body makes fail is the request, never the server."""
    normalizer = MessageNormalizer(lambda text: text, True, False)
    body = json.loads(json.dumps(body | ({name: messages} if messages else {})))
    with suppress(Refusal):
        request = read_chat_request(body if name == "messages" else chat_body(body, ResponseStore()))
        messages = normalizer.normalize(request.messages)
        json.dumps([message.fields for message in messages]).encode()
        json.dumps(normalizer.clean_json(list(request.tools))).encode()


async def test_a_form_is_for_agents_whose_engine_can_and_marks_what_it_masks(play: Any) -> None:
    form: dict[str, Any] = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    no_form: dict[str, Any] = {"type": "json_schema", "json_schema": {"schema": {"type": "objekt"}}}
    wrong: list[tuple[dict[str, Any], str, str]] = [
        (
            {"model": "Editor", "response_format": form},
            "response_format",
            "set actor_rollout_ref.rollout.structured_outputs=true",
        ),
        ({"response_format": no_form}, "response_format", "no reply can follow this form: objekt"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "with an object as the schema"),
        (
            {"tools": [TOOL], "tool_choice": {"function": {"name": "g"}}},
            "tool_choice",
            "name one of the tools (f)",
        ),
    ]

    async def compiled(request: Any) -> None:
        if "objekt" in request.sampling.structure:
            raise StructureError("objekt")

    async def team(task: Task, session: Session) -> Outcome:
        for body, param, said in wrong:
            answer = await send(session, {**ROLE, **body})
            error = answer.body["error"]
            assert (answer.status, error["param"]) == (400, param) and said in error["message"], error
        await say(session, "Editor")
        await say(session, "Writer", response_format=form, n=2)
        await say(session, "Writer")
        return Outcome(1.0, {"Writer": 0.5})

    episode, metrics, engine = await play(team, delay=compiled, structured="mask", able=["Writer"])
    assert episode.failure is None and metrics["gateway/undelivered"] == 0, (
        "what was refused is neither a call nor a reply"
    )
    masked = [
        ("Editor", 0, False, 0.0),
        ("Writer", 1, True, 0.5),
        ("Writer", 2, True, 0.5),
        ("Writer", 3, False, 0.5),
    ]
    assert [
        (s.agent_id, s.identity.call, s.request.masked, s.rewards.local_reward) for s in episode.samples
    ] == masked
    assert [call.get("masked") for call in episode.to_json()["calls"]] == [None, True, True, None]
    batch = build_batch([episode])
    assert batch is not None and batch.non_tensor_batch["masked"].tolist() == [False, True, True, False]
    forms = [
        json.loads(r.sampling.structure)["format"]["json_schema"]
        for r in engine.requests
        if r.sampling.structure
    ]
    assert forms == [no_form["json_schema"]["schema"], form["json_schema"]["schema"]]


async def test_sampling_of_a_program_is_overridden_once_told_or_refused(
    play: Any, caplog: pytest.LogCaptureFixture
) -> None:
    more = {"temperature": 0.1, "top_p": 1.0, "logit_bias": {}, "presence_penalty": 0}

    async def team(task: Task, session: Session) -> Any:
        return [
            await send(session, {**ROLE, "messages": [{"role": "user", "content": str(i)}], **more})
            for i in range(2)
        ] and "4"

    _, metrics, engine = await play(team)
    assert metrics["gateway/overridden"] == 2 and {
        request.sampling.temperature for request in engine.requests
    } == {1.0}
    assert [record.message for record in caplog.records if "temperature" in record.message] == [
        "a request sets temperature; the values of the run are used (gateway.client_sampling=override), for "
        "all requests"
    ]

    async def refused(task: Task, session: Session) -> str:
        assert (await send(session, {**ROLE, **more})).body["error"]["param"] == "temperature"
        return (await say(session, "Writer", temperature=1)).text

    episode, _, _ = await play(refused, client_sampling="refuse")
    assert episode.failure is None


async def test_lengths_stops_seeds_log_probs_and_several_replies(play: Any) -> None:
    async def team(task: Task, session: Session) -> str:
        answer = await say(
            session, "Writer", n=2, stop=["END", "\n\n"], seed=5, logprobs=True, max_completion_tokens=30
        )
        for choice in answer.body["choices"]:
            assert (choice["message"]["content"], choice["finish_reason"]) == ("4 ", "stop")
            tokens = choice["logprobs"]["content"]
            assert "".join(token["token"] for token in tokens) == "4 END" and {
                token["logprob"] for token in tokens
            } == {-0.5}
        assert answer.body["usage"] == {"prompt_tokens": 23, "completion_tokens": 10, "total_tokens": 33}
        parts = [{"type": "text", "text": "2+2"}, {"type": "text", "text": "?"}]
        return (
            await say(session, "writer", [{"role": "user", "content": parts}], max_tokens=10_000, stop="END")
        ).text

    episode, metrics, engine = await play(team, lambda prompt, request: "4 END and more")
    assert episode.failure is None and episode.answer == "4 ", "as sampled"
    assert (
        [s.identity.call for s in episode.samples] == [0, 1, 2]
        and len(engine.requests) == 2
        and engine.requests[0].n == 2
    )
    first, _, last = episode.samples
    assert [request.sampling.max_tokens for request in engine.requests] == [
        30,
        400,
    ] and first.generation.stop_reason == "stop"
    assert (
        first.request.prompt_ids == last.request.prompt_ids
        and first.request.seed != last.request.seed
        and first.text == "4 END"
    )
    assert metrics["agent/writer/calls"] == 3


async def test_an_agent_may_be_named_by_the_address_and_models_are_listed(play: Any) -> None:
    async def team(task: Task, session: Session) -> str:
        path = session.url_of("Editor").partition("127.0.0.1")[2].partition("/")[2]
        answer = await send(session, {**ROLE, "model": "gpt-4o"}, path=f"/{path}/chat/completions")
        assert answer.body["model"] == "Editor"
        headers = {"Authorization": f"Bearer {session.api_key}"}
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{session.base_url}/models", headers=headers) as listed,
        ):
            assert [model["id"] for model in (await listed.json())["data"]] == ["Writer", "Editor"]
        return answer.text

    episode, _, _ = await play(team)
    assert episode.failure is None and episode.samples[0].agent_id == "Editor"


async def test_a_stream_is_made_of_the_whole_reply_and_kept_alive_until_then(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "KEEP_ALIVE_S", 0.02)

    commented = asyncio.Event()

    async def team(task: Task, session: Session) -> str:
        async with posted(
            session, {**ROLE, "stream": True, "stream_options": {"include_usage": True}}
        ) as answer:
            first = await answer.content.readline()
            commented.set()
            text = (first + await answer.read()).decode()
        assert text.startswith(": ") and text.endswith("data: [DONE]\n\n")
        chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks[:-1]] == ["4", None]
        assert (
            chunks[1]["choices"][0]["finish_reason"] == "stop"
            and chunks[-1]["usage"]["completion_tokens"] == 2
        )
        return "4"

    episode, _, _ = await play(team, delay=lambda request: commented.wait())
    assert episode.failure is None and episode.samples[0].identity.trained


async def test_a_client_that_is_killed_within_a_stream_leaves_a_reply_that_is_not_trained(
    play: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(routes, "KEEP_ALIVE_S", 0.02)
    release = asyncio.Event()

    async def team(task: Task, session: Session) -> str:
        async with posted(session, {**ROLE, "stream": True}) as answer:
            assert (await answer.content.readline()).startswith(b": ")
            answer.connection.transport.abort()
        await settle()  # the server sees that the client is gone
        release.set()
        await until(lambda: session._episode.ledger.unheard)
        await settle()
        return "4"

    episode, metrics, _ = await play(team, delay=lambda request: release.wait())
    assert (
        episode.failure is None
        and not episode.samples
        and metrics["gateway/undelivered"] == len(episode.unheard) == 1
    )


async def test_a_stream_that_breaks_has_been_heard_if_anything_of_the_reply_was_sent(
    play: Any, monkeypatch: Any
) -> None:
    async def team(task: Task, session: Session) -> str:
        with suppress(aiohttp.ClientError):
            async with posted(session, {**ROLE, "stream": True}) as answer:
                await answer.read()
        await say(session, "Editor")
        return "4"

    for before in ([], [b": the first chunk"]):

        def broken(*_: Any, sent: list[bytes] = before) -> Any:
            yield from sent
            raise ConnectionResetError

        monkeypatch.setattr(Completion, "to_events", broken)
        episode, metrics, _ = await play(team)
        assert episode.failure is None and metrics["gateway/undelivered"] == len(episode.unheard) == 1 - len(
            before
        )
        assert [(sample.agent_id, sample.identity.trained) for sample in episode.samples] == [
            ("Writer", True)
        ] * len(before) + [("Editor", True)]


async def test_the_openai_library_reads_every_answer(play: Any) -> None:
    openai = pytest.importorskip("openai")
    arguments = {"x": True}
    reply = f"I look. <tool_call>{json.dumps({'name': 'f', 'arguments': arguments})}</tool_call>"

    async def team(task: Task, session: Session) -> str:
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            create = client.chat.completions.create
            messages: list[Any] = list(USER)
            answer = await create(model="Writer", messages=messages, tools=[TOOL], logprobs=True, seed=1)
            message = answer.choices[0].message
            openai.types.chat.ChatCompletion.model_validate(answer.model_dump(), strict=True)
            assert (
                message.content == "I look."
                and json.loads(message.tool_calls[0].function.arguments) == arguments
            )
            messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "r"}]
            pieces = [
                chunk
                async for chunk in await create(model="Writer", messages=messages, tools=[TOOL], stream=True)
            ]
            text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
            assert text == "I look." and pieces[0].choices[0].delta.tool_calls[0].function.name == "f"
            assert [model.id async for model in client.models.list()] == ["Writer", "Editor"]
            with pytest.raises(openai.BadRequestError) as error:
                await create(model="Writer", messages=LONG)
            assert error.value.code == "context_length_exceeded"
            with pytest.raises(openai.NotFoundError):
                await create(model="Nobody", messages=messages)
        return "4"

    from .templates import tokenizer_of

    episode, metrics, engine = await play(team, lambda prompt, request: reply, chat=tokenizer_of("qwen2.5"))
    assert episode.failure is None, episode.failure
    assert len(engine.requests) == 2 and metrics["gateway/rewritten/client"] == 0
    first, second = episode.samples
    assert second.request.prompt_ids[: len(first.request.prompt_ids)] == first.request.prompt_ids


async def test_responses_are_chat_completions_in_another_form(play: Any) -> None:
    openai = pytest.importorskip("openai")
    tool = {
        "type": "function",
        "name": "f",
        "parameters": {"type": "object", "properties": {}},
        "strict": False,
    }
    replies = [
        f"<think>hm</think>I look.\n<tool_call>\n{json.dumps({'name': 'f', 'arguments': {}})}\n</tool_call>",
        "4",
        "5",
    ]
    refused: list[tuple[Any, str | None]] = [
        ({"stream": 1}, "stream"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"input": []}, "input"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"input": [{"type": "image"}]}, "input"),
        ({"input": 3}, "input"),
    ]

    async def team(task: Task, session: Session) -> str:
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            create = client.responses.create
            events = [
                event
                async for event in await create(
                    model="Writer", instructions="s", input="2+2?", tools=[tool], stream=True
                )
            ]
            for event in events:
                type(event).model_validate(event.model_dump(), strict=True)
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert "".join(event.delta for event in events if event.type.endswith(".delta")) == "I look.{}"
            first = events[-1].response
            assert first.output_text == "I look." and first.status == "completed"
            called = first.output[1]
            result = {"type": "function_call_output", "call_id": called.call_id, "output": "r"}
            items = [
                {"role": "user", "content": "2+2?"},
                *(item.model_dump() for item in first.output),
                result,
            ]
            async with client.responses.stream(
                model="Writer", instructions="s", input=items, tools=[tool]
            ) as stream:
                second = await stream.get_final_response()
            more = {"model": "Writer", "instructions": "s", "tools": [tool], "max_output_tokens": 1}
            third = await create(**more, input="sure?", previous_response_id=second.id)
            assert (third.status, third.incomplete_details.reason) == ("incomplete", "max_output_tokens")
            for answer in (first, second, third):
                openai.types.responses.Response.model_validate(answer.model_dump())
        for wrong, param in refused:
            answer = await send(session, {"model": "Writer", "input": "a", **wrong}, path="/v1/responses")
            assert answer.status in (400, 404) and answer.body["error"]["param"] == param, answer.body
        return second.output_text

    from .templates import tokenizer_of

    episode, metrics, engine = await play(team, replies, chat=tokenizer_of("qwen2.5"))
    assert (episode.failure, episode.answer, len(engine.requests)) == (None, "4", 3)
    texts = [sample.request.prompt_ids + sample.generation.token_ids for sample in episode.samples]
    assert all(after[: len(before)] == before for before, after in pairwise(texts))
    assert not any(count for name, count in metrics.items() if name.startswith("gateway/rewritten"))


@pytest.mark.parametrize(
    ("schema", "reply"),
    [
        ({"type": "string", "not": {"const": "a"}}, '"a"'),
        (OBJECT | {"if": {"required": ["a"]}, "then": {"required": ["b"]}}, '{"a": 1}'),
        (OBJECT | {"dependentRequired": {"a": ["b"]}}, '{"a": 1}'),
        (OBJECT | {"dependentSchemas": {"a": {"required": ["b"]}}}, '{"a": 1}'),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "[1, 1]"),
        ({"type": "string", "format": "idn-email"}, '"a"'),
        ({"type": "string", "pattern": "^a+$", "maxLength": 2}, '"aaa"'),
        ({"minimum": 5}, "3"),
        ({"$defs": {"x": {"type": "integer"}}, "$ref": "#/$defs/x", "minimum": 5}, "3"),
        ({"type": "string", "enum": ["a"], "minLength": 2}, '"a"'),
        (OBJECT | {"anyOf": [{"required": ["a"]}]}, '{"b": 1}'),
        ({"allOf": [{"type": "string"}, {"enum": ["yes"]}]}, '"no"'),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "3"),
    ],
)
def test_keywords_of_a_schema_that_docs_frameworks_says_have_no_effect(
    schema: dict[str, Any], reply: str
) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert allows({"response_format": asked}, "hermes", reply)


@pytest.mark.parametrize(
    ("schema", "text", "may_be_written"),
    [
        ({"type": "string"}, r'"a\n"', True),
        ({"type": "string", "maxLength": 30}, '"a"', True),
        ({"type": "string", "maxLength": 30}, r'"a\n"', False),
        ({"type": "string", "minLength": 1}, r'"\""', False),
        ({"type": "string", "pattern": '^"$'}, '"""', True),
        ({"type": "string", "pattern": '^"$'}, r'"\""', False),
    ],
)
def test_strings_whose_lengths_and_patterns_mean_their_json_text_as_docs_frameworks_says(
    schema: dict[str, Any], text: str, may_be_written: bool
) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert allows({"response_format": asked}, "hermes", text) is may_be_written


def allows(body: dict[str, Any], tool_format: str, reply: str) -> bool:
    """Whether the grammar of a request allows a reply, and ends with it."""
    xgrammar = pytest.importorskip("xgrammar")
    vocabulary = ["\n", *(chr(code) for code in range(32, 127))]
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[]))
    form = structure_of(read_chat_request({**ROLE, **body}, "mask"), NAMED[tool_format])
    matcher = xgrammar.GrammarMatcher(
        compiler.compile_structural_tag(form), terminate_without_stop_token=True
    )
    return bool(matcher.accept_string(reply) and matcher.is_terminated())


SIZED = {
    "type": "object",
    "properties": {"size": {"type": "integer"}},
    "required": ["size"],
    "additionalProperties": False,
}
ITEMS = {
    "type": "object",
    "properties": {"default": {"type": "array", "items": {"$ref": "#/$defs/Item"}}},
    "$defs": {"Item": SIZED},
}
FIRST = {
    "type": "object",
    "properties": {"first": SIZED, "default": {"type": "array", "items": {"$ref": "#/properties/first"}}},
}
WHOLE = {
    "type": "object",
    "properties": {"default": {"type": "array", "items": {"$ref": "#"}}, **SIZED["properties"]},
}
DATA = {"properties": {"const": {"const": {"$ref": "x"}}, "$ref": {"type": "string"}}}


@pytest.mark.parametrize("tool_format", ["hermes", "llama3", "json"])
def test_references_of_the_parameters_of_a_forced_tool_begin_at_their_root(tool_format: str) -> None:
    arguments = "parameters" if tool_format == "llama3" else "arguments"

    def body(parameters: Any) -> dict[str, Any]:
        return {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}],
            "tool_choice": "required",
        }

    for schema in (ITEMS, json.loads(json.dumps(ITEMS).replace("$defs", "definitions")), FIRST, WHOLE):
        for size, good in (("1", True), ('"x"', False)):
            items = f'[{{"size": {size}}}]'
            call = f'{{"name": "f", "{arguments}": {{"default": {items}}}}}'
            reply = f"<tool_call>\n{call}\n</tool_call>" if tool_format == "hermes" else call
            assert allows(body(schema), tool_format, reply) == good, schema
    assert json.dumps(DATA) in structure_of(
        read_chat_request({**ROLE, **body(DATA)}, "mask"), NAMED[tool_format]
    ), "a name, and a value, are no reference"
    for wrong in ("$ref", "#size"), ("$ref", "http://a.example/b"), ("$dynamicRef", "#"):
        schema = {"anyOf": [{wrong[0]: wrong[1]}, {"$anchor": "size", "type": "integer"}]}
        forms = body(schema), {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
        for asked, field in zip(forms, ("tools", "response_format"), strict=True):
            with pytest.raises(Refusal, match="a schema has the reference") as refusal:
                structure_of(read_chat_request({**ROLE, **asked}, "mask"), NAMED[tool_format])
            assert refusal.value.param == field
