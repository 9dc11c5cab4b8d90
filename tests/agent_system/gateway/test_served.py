"""A saved team for any number of clients: the prompts of training, the client's sampling, forms of replies,
the team as a model.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from agent_system import AgentRegistry, AgentSystemError, Task
from agent_system.conversation import Conversation
from agent_system.gateway import ServedSession, responses, routes, served_team
from agent_system.gateway.served_team import ServedTeam
from agent_system.gateway.server import TeamServer
from agent_system.gateway.team_model import TeamModel
from agent_system.rollout.call import AgentRuntime, EpisodeSpec
from agent_system.rollout.endpoint import Endpoint
from agent_system.rollout.remote import MessageBuilder, RemoteBinding
from tests.chat_server import ChatServer
from tests.waiting import until
from verl.protocol.generate import EngineGoneError, RolloutError, SamplingParams, StructureError
from verl.trainer.config import ApiConfig, GatewayConfig

from .conftest import TASK, USER, Graded, Recorder, build, posted, say, send
from .templates import tokenizer_of

TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
ROLE = {"model": "Writer", "messages": USER}
SPEC = EpisodeSpec(TASK, "served", 0, 0, validate=True)


class Asked(Graded):
    """Takes questions."""

    @classmethod
    def question(cls, text: str) -> Task:
        """The text as a task."""
        return Task("q", text, "sums", None, judged=False)


async def program(task: Task, session: Any) -> str:
    return (await say(session, "Writer", [{"role": "user", "content": f"Solve {task.prompt}"}])).text


@asynccontextmanager
async def serving(
    replies: Any = lambda prompt, request: "4",
    chat: str = "qwen2.5",
    key: str = "",
    host: str = "127.0.0.1",
    **options: Any,
) -> AsyncIterator[tuple[Any, Recorder, ServedTeam]]:
    """A served team, its engine, and a client's address."""
    keys = GatewayConfig(history=options.pop("history", "rendered"))
    collector, engine = build(
        tokenizer_of(chat), program, replies, env=Asked, max_failure_rate=1.0, **options
    )
    async with collector.playing(1):
        team = TeamModel("gateway", Conversation(collector, Asked).ask)
        answering = ServedTeam(collector.runtimes, keys, SPEC, limit_s=10.0, team=team)
        async with listening(answering, key, host) as client:
            yield client, engine, answering


@asynccontextmanager
async def listening(answering: ServedTeam, key: str = "", host: str = "127.0.0.1") -> AsyncIterator[Any]:
    """A client's address of a team."""
    server = TeamServer(answering, host, 0, key)
    url = await server.start()
    try:
        yield SimpleNamespace(base_url=f"{url}/v1", api_key=key or "any")
    finally:
        await server.stop()


@pytest.mark.parametrize("history", ["rendered", "sampled"])
async def test_a_conversation_goes_on_with_the_tokens_of_training(play: Any, history: str) -> None:
    """The same program, in an episode and against a server, gives the engine the same prompts."""

    async def chat(session: Any) -> str:
        first = await say(session, "Writer")
        more = [*USER, first.message, {"role": "user", "content": "sure?"}]
        return (await say(session, "Writer", more)).text

    def replies(prompt: str, request: Any) -> str:
        return "<think>hm</think>4"

    async def team(task: Task, session: Any) -> str:
        return await chat(session)

    _, _, trained = await play(team, replies, chat=tokenizer_of("qwen3"), history=history)
    async with serving(replies, "qwen3", history=history) as (client, engine, _):
        await chat(client)
    prompts = [request.prompt_ids for request in engine.requests]
    assert prompts == [request.prompt_ids for request in trained.requests]
    (first, reply), (second, _) = engine.sampled
    assert (second[: len(first) + len(reply)] == first + reply) == (history == "sampled")


async def test_the_client_chooses_how_an_agent_samples() -> None:
    async with serving() as (client, engine, _):
        await say(client, "Writer", temperature=0.3, top_p=0.9, top_k=5, max_tokens=7, seed=3, n=2)
        await say(client, "writer", seed=3)
        for name, value in (
            ("temperature", -1), ("temperature", "hot"), ("top_p", 0), ("top_k", 1.5), ("top_k", 2**63),
            ("presence_penalty", 1),
        ):  # fmt: skip
            answer = await send(client, {**ROLE, name: value})
            assert (answer.status, answer.body["error"]["param"]) == (400, name), answer.body
        await say(client, "Writer", temperature=1e-40)
    first, second, cold = engine.requests
    chosen = first.sampling
    assert (chosen.temperature, chosen.top_p, chosen.top_k, chosen.max_tokens, first.n) == (0.3, 0.9, 5, 7, 2)
    assert (second.sampling.temperature, second.seed) == (1.0, 3)
    assert cold.sampling.temperature == 0, "logits divided by it are not finite"


async def test_the_form_of_a_reply_is_for_engines_that_can_mask_tokens() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": "integer"}}},
            "response_format",
        ),
        ({"response_format": "json"}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ]
    async with serving(able=["Writer"]) as (client, engine, _):
        await say(client, "Writer", response_format=SCHEMA)
        await say(client, "Writer", tools=[TOOL], tool_choice="required")
        flat = {"type": "json_schema", **SCHEMA["json_schema"]}
        answer = await send(
            client, {"model": "Writer", "input": "a", "text": {"format": flat}}, path="/v1/responses"
        )
        assert answer.status == 200, answer.body
        for body, param in wrong:
            answer = await send(client, {**ROLE, **body})
            assert (answer.status, answer.body["error"]["param"]) == (400, param), answer.body
        answer = await send(client, {**ROLE, "model": "Editor", "response_format": SCHEMA})
        assert (
            answer.status == 400 and "pip install 'xgrammar>=0.2.8,<0.3'" in answer.body["error"]["message"]
        )
    forms = [json.loads(request.sampling.structure)["format"] for request in engine.requests]
    assert forms[0] == forms[2]
    assert (forms[0]["type"], forms[0]["json_schema"]) == ("json_schema", SCHEMA["json_schema"]["schema"])
    assert (forms[1]["begin"], forms[1]["end"]) == ("<tool_call>\n", "\n</tool_call>")
    assert forms[1]["content"]["json_schema"]["properties"]["name"] == {"const": "f"}


@pytest.mark.parametrize(
    ("template", "call", "answer"),
    [
        ("llama3", '{"name": "f", "parameters": {"x": 1}}', '{"name": "Bob"}'),
        (
            "qwen2.5",
            '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
            r"""{"name": "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"}""",
        ),
    ],
)
async def test_a_reply_beside_tools_and_a_schema_is_a_call_or_an_answer(
    template: str, call: str, answer: str
) -> None:
    def replies(prompt: str, request: Any) -> str:
        return call if "call" in prompt else answer

    beside = {"tools": [TOOL], "response_format": SCHEMA}
    async with serving(replies, template, able=["Writer"]) as (client, engine, _):
        told = await say(client, "Writer", [{"role": "user", "content": "tell"}], **beside)
        called = await say(client, "Writer", [{"role": "user", "content": "call"}], **beside)
        none = await say(
            client, "Writer", [{"role": "user", "content": "call"}], **beside, tool_choice="none"
        )
        assert (told.text, told.body["choices"][0]["finish_reason"]) == (answer, "stop")
        assert json.loads(called.message["tool_calls"][0]["function"]["arguments"]) == {"x": 1}
        assert none.text == call, "there are no tools"
    forms = [json.loads(request.sampling.structure)["format"] for request in engine.requests]
    assert forms[0] == forms[1] and [form["type"] for form in forms[1:]] == ["or", "json_schema"]


async def test_the_whole_team_answers_the_last_message_of_the_user() -> None:
    def replies(prompt: str, request: Any) -> str:
        return "4" if "Solve 2+2?" in prompt else "5"

    async with serving(replies) as (client, engine, _):
        answer = await say(client, "gateway", [{"role": "user", "content": "?"}, *USER], temperature=0.5, n=2)
        assert [choice["message"]["content"] for choice in answer.body["choices"]] == ["4", "4"]
        assert (
            answer.message["reasoning_content"] == "Writer: 4"
            and answer.body["usage"]["completion_tokens"] == 4
        )
        models = [model["id"] for model in (await _get(client, "/v1/models"))["data"]]
        assert models == ["Writer", "Editor", "gateway"]
        for body, param in (
            ({"tools": [TOOL]}, "tools"),
            ({"response_format": SCHEMA}, "response_format"),
            ({"messages": []}, "messages"),
        ):
            refused = await send(client, {**ROLE, "model": "gateway", **body})
            assert (refused.status, refused.body["error"]["param"]) == (400, param)
    assert len({request.seed for request in engine.requests}) == 2


async def test_errors_of_engines_and_episodes_are_answers_that_no_client_repeats() -> None:
    async def fail(request: Any) -> None:
        if request.sampling.max_tokens == 2:
            raise RolloutError("too slow") from TimeoutError()
        if request.sampling.max_tokens == 3:
            raise KeyError("a bug")
        if request.sampling.max_tokens == 4:
            raise ConnectionResetError("a judge's server")
        if request.sampling.structure:
            raise StructureError("objekt")
        raise RolloutError("no luck") if request.sampling.max_tokens > 1 else EngineGoneError("killed")

    async with serving(delay=fail, able=["Writer"], key="sk-1") as (client, _, team):
        cases: list[tuple[dict[str, Any], int, str]] = [
            ({}, 503, "no luck"),
            ({"model": "gateway"}, 503, "the episode failed: .*no luck"),
            ({"response_format": SCHEMA}, 400, "no reply can follow this form: objekt"),
            ({"response_format": SCHEMA, "max_tokens": 2}, 503, "too slow"),
            ({"max_tokens": 3}, 503, "the gateway failed: KeyError"),
            ({"max_tokens": 4}, 503, "the gateway failed: ConnectionResetError"),
            ({"model": "Wirter"}, 404, "did you mean 'Writer'"),
            ({"max_tokens": 1}, 503, "killed"),
        ]
        for body, status, said in cases:
            answer = await send(client, {**ROLE, **body})
            assert answer.status == status and answer.headers["x-should-retry"] == "false"
            with pytest.raises(AssertionError, match=said):
                raise AssertionError(answer.body["error"]["message"])
        with pytest.raises(EngineGoneError):
            team.gone.result()
        assert (await send(client, ROLE, key="sk-2")).status == 401
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(client.base_url).port)
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer \xff\r\n\r\n")
        assert b" 401 " in await reader.readline()
        writer.close()


async def test_a_client_that_leaves_ends_the_generation() -> None:
    ended = asyncio.Event()

    async def slow(request: Any) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with serving(delay=slow) as (client, engine, _):
        for model in ("Writer", "gateway"):
            for stream in (False, True):
                before = len(engine.requests)
                asked = asyncio.create_task(_read(client, {**ROLE, "model": model, "stream": stream}))
                await until(lambda before=before: len(engine.requests) > before)  # type: ignore[misc]
                asked.cancel()
                await asyncio.wait_for(ended.wait(), 60)
                ended.clear()


async def test_only_the_last_conversations_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_team, "KEPT_CONVERSATIONS", 2)
    monkeypatch.setattr(responses, "MOST_ANSWERS", 2)

    async with serving() as (client, _, team):
        for number in range(4):
            await say(client, "Writer", [{"role": "user", "content": str(number)}])
            answer = await send(client, {"model": "Writer", "input": str(number)}, path="/v1/responses")
        assert len(team.responses.conversations) == 2 and answer.body["id"] in team.responses.conversations
        assert len(team._conversations["Writer"]._prefixes._prefixes) == 2


async def test_what_goes_wrong_within_a_stream_is_its_last_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "KEEP_ALIVE_S", 0.02)
    commented = asyncio.Event()

    async def fail(request: Any) -> None:
        await commented.wait()
        raise KeyError("a bug")

    async with serving(delay=fail) as (client, _, _), posted(client, {**ROLE, "stream": True}) as answer:
        first = await answer.content.readline()
        commented.set()
        text = (first + await answer.read()).decode()
    assert (
        text.startswith(": ")
        and json.loads(text.rpartition("data: ")[2])["error"]["code"] == "gateway_failed"
    )


async def test_a_body_that_cannot_be_read_is_the_clients_mistake(caplog: pytest.LogCaptureFixture) -> None:
    deep = b'[{"a":' * 300 + b"1" + b"}]" * 300
    bodies = [
        (b"no gzip", {"Content-Encoding": "gzip"}, "cannot be read"),
        (b'{"model": "Writer", "messages": [{"role": "user", "content": "?"}], "tools": [{"type": "function", "function": {"name": "f", '
         b'"parameters": {"x": ' + deep + b"}}}]}", {}, "nested too deep"),
    ]  # fmt: skip
    async with serving() as (client, _, _):
        for body, headers, said in bodies:
            answer = await send(client, body, **headers)
            assert answer.status == 400 and said in answer.body["error"]["message"], answer.body
        answer = await send(client, ROLE, Expect="much")
        assert (answer.status, answer.headers["x-should-retry"]) == (
            417,
            "false",
        ) and "found 'much'" in answer.body["error"]["message"]
        assert (await send(client, ROLE, Expect="100-continue")).text == "4"
    assert "the gateway failed" not in caplog.text


async def test_a_web_page_needs_a_key_and_no_client_can_guess_anothers_conversation() -> None:
    body = {"model": "Writer", "input": "a"}
    async with serving() as (client, _, _):
        refused = await send(client, ROLE, Origin="http://page.example")
        assert (refused.status, refused.body["error"]["code"]) == (403, "no_api_key")
        ids = [(await send(client, body, path="/v1/responses")).body["id"] for _ in range(2)]
        assert len({name[:-8] for name in ids}) == 2, "not numbered"
        for more in ({"background": True}, {"conversation": "c"}, {"prompt": {"id": "p"}}):
            answer = await send(client, body | more, path="/v1/responses")
            assert (answer.status, answer.body["error"]["param"]) == (400, *more), answer.body
    async with serving(key="sk-1") as (client, _, _):
        assert (await send(client, ROLE, Origin="http://page.example")).status == 200


async def test_a_tool_call_that_no_client_can_read_stays_in_the_text() -> None:
    given = {
        "[1]": False, '"no json"': False, "1": False, '{"a": 1e999}': False, '{"a": "\\ud800"}': False,
        '{"a": 1}': True, "null": True, '"{}"': True,
    }  # fmt: skip
    for arguments, good in given.items():
        reply = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
        async with serving(lambda prompt, request, reply=reply: reply) as (client, _, _):
            message = (await say(client, "Writer", tools=[TOOL])).message
        calls = message.get("tool_calls", [])
        assert (len(calls) == 1, message["content"] is None) == (good, good), (arguments, message)
        assert all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls)


async def test_an_agent_behind_an_api_has_the_counts_of_its_server() -> None:
    """And no log-probabilities, which the server does not give."""
    upstream, role = ChatServer(), AgentRegistry.get("Writer", orchestra="gateway")("Writer")
    endpoint = Endpoint("Writer", ApiConfig(base_url=upstream.url, model="m"))
    binding = RemoteBinding("Writer", "api:m", endpoint, SamplingParams(8), SamplingParams(8))
    runtimes = {"Writer": AgentRuntime(role, binding, MessageBuilder(role))}
    async with listening(ServedTeam(runtimes, GatewayConfig(), SPEC, limit_s=10.0, team=None)) as client:
        answer = await say(client, "Writer")
        assert answer.body["usage"] == {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
        assert (await send(client, {**ROLE, "logprobs": True})).body["error"]["param"] == "logprobs"
        called = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        of_another = [
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "1", "content": "r"},
        ]
        await say(client, "Writer", [*USER, *of_another])
        assert [message["role"] for message in upstream.bodies[-1]["messages"]] == [
            "user",
            "assistant",
            "user",
        ]
    await endpoint.close()
    upstream.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_the_program_of_an_episode_runs_against_a_served_team(host: str) -> None:
    if ":" in host and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6")
    async with (
        serving(key="sk-1", host=host) as (client, engine, _),
        ServedSession(f"{client.base_url}/", "sk-1") as session,
    ):
        assert await program(TASK, session) == "4"
        assert "Solve 2+2?" in engine.tokenizer.decode(engine.requests[0].prompt_ids)
        openai = pytest.importorskip("openai")
        model = await session.openai().models.retrieve("Writer")
        assert model.id == "Writer"
        with pytest.raises(openai.NotFoundError):
            await session.openai().models.retrieve("Nobody")
        url = session.url_of("Editor").removesuffix("/v1")
        answer = await send(
            SimpleNamespace(base_url=f"{url}/v1", api_key="sk-1"), {**ROLE, "model": "gpt-4o"}
        )
        assert answer.body["model"] == "Editor"
        with pytest.raises(AgentSystemError, match="has no environment"):
            await session.step("4")
        with pytest.raises(AgentSystemError, match="has no environment"):
            _ = session.observation


async def _read(client: Any, body: Any) -> bytes:
    async with posted(client, body) as answer:
        return await answer.read()


async def _get(client: Any, path: str) -> Any:
    import aiohttp

    async with (
        aiohttp.ClientSession() as http,
        http.get(client.base_url.removesuffix("/v1") + path) as answer,
    ):
        return await answer.json()
