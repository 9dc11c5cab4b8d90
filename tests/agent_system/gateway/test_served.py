"""A saved team for any number of clients: the prompts of training, the client's sampling, forms of replies, the team as a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from agent_system import Task
from agent_system.conversation import Conversation
from agent_system.gateway import served
from agent_system.gateway.served import ServedServer, ServedTeam, TeamModel
from agent_system.rollout.call import EpisodeSpec
from verl.protocol.generate import EngineGoneError, RolloutError, StructureError
from verl.trainer.config import GatewayConfig

from .conftest import TASK, USER, Graded, Recorder, build, posted, say, send
from .templates import tokenizer_of

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
ROLE = {"model": "Writer", "messages": USER}


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
    replies: Any = lambda prompt, request: "4", chat: str = "qwen2.5", key: str = "", **options: Any
) -> AsyncIterator[tuple[Any, Recorder, ServedTeam]]:
    """A served team, its engine, and a client's address."""
    keys = GatewayConfig(history=options.pop("history", "rendered"))
    collector, engine = build(tokenizer_of(chat), program, replies, env=Asked, max_failure_rate=1.0, **options)
    async with collector.playing(1):
        spec = EpisodeSpec(TASK, "served", 0, 0, validate=True)
        team = TeamModel("gateway", Conversation(collector, Asked).ask)
        answering = ServedTeam(collector.runtimes, keys, spec, limit_s=10.0, team=team)
        server = ServedServer(answering, "127.0.0.1", 0, key)
        url = await server.start()
        try:
            yield SimpleNamespace(base_url=f"{url}/v1", key=key or "any"), engine, answering
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
        for name, value in (("temperature", -1), ("temperature", "hot"), ("top_p", 0), ("top_k", 1.5), ("presence_penalty", 1)):
            answer = await send(client, {**ROLE, name: value})
            assert (answer.status, answer.body["error"]["param"]) == (400, name), answer.body
    first, second = engine.requests
    chosen = first.sampling
    assert (chosen.temperature, chosen.top_p, chosen.top_k, chosen.max_tokens, first.n) == (0.3, 0.9, 5, 7, 2)
    assert (second.sampling.temperature, second.seed) == (1.0, 3)


async def test_the_form_of_a_reply_is_for_engines_that_can_mask_tokens() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": "integer"}}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ]
    async with serving(able=["Writer"]) as (client, engine, _):
        await say(client, "Writer", response_format=SCHEMA)
        await say(client, "Writer", tools=[TOOL], tool_choice="required")
        flat = {"type": "json_schema", **SCHEMA["json_schema"]}
        answer = await send(client, {"model": "Writer", "input": "a", "text": {"format": flat}}, path="/v1/responses")
        assert answer.status == 200, answer.body
        for body, param in wrong:
            answer = await send(client, {**ROLE, **body})
            assert (answer.status, answer.body["error"]["param"]) == (400, param), answer.body
        answer = await send(client, {**ROLE, "model": "Editor", "response_format": SCHEMA})
        assert answer.status == 400 and "--engine vllm" in answer.body["error"]["message"]
    forms = [json.loads(request.sampling.structure)["format"] for request in engine.requests]
    assert forms[0] == forms[2] == {"type": "json_schema", "json_schema": SCHEMA["json_schema"]["schema"]}
    assert (forms[1]["begin"], forms[1]["end"]) == ("<tool_call>\n", "\n</tool_call>")
    assert forms[1]["content"]["json_schema"]["properties"]["name"] == {"const": "f"}


async def test_the_whole_team_answers_the_last_message_of_the_user() -> None:
    def replies(prompt: str, request: Any) -> str:
        return "4" if "Solve 2+2?" in prompt else "5"

    async with serving(replies) as (client, engine, _):
        answer = await say(client, "gateway", [{"role": "user", "content": "?"}, *USER], temperature=0.5, n=2)
        assert [choice["message"]["content"] for choice in answer.body["choices"]] == ["4", "4"]
        assert answer.message["reasoning_content"] == "Writer: 4" and answer.body["usage"]["completion_tokens"] == 4
        models = [model["id"] for model in (await _get(client, "/v1/models"))["data"]]
        assert models == ["Writer", "Editor", "gateway"]
        for body, param in (({"tools": [TOOL]}, "tools"), ({"response_format": SCHEMA}, "response_format"), ({"messages": []}, "messages")):
            refused = await send(client, {**ROLE, "model": "gateway", **body})
            assert (refused.status, refused.body["error"]["param"]) == (400, param)
    assert len({request.seed for request in engine.requests}) == 2


async def test_errors_of_engines_and_episodes_are_answers_that_no_client_repeats() -> None:
    async def fail(request: Any) -> None:
        if request.sampling.structure:
            raise StructureError("objekt")
        raise RolloutError("no luck") if request.sampling.max_tokens > 1 else EngineGoneError("killed")

    async with serving(delay=fail, able=["Writer"], key="sk-1") as (client, _, team):
        cases: list[tuple[dict[str, Any], int, str]] = [
            ({}, 503, "no luck"),
            ({"model": "gateway"}, 503, "the episode failed: .*no luck"),
            ({"response_format": SCHEMA}, 400, "no reply can follow this form: objekt"),
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
                asked, before = asyncio.create_task(_read(client, {**ROLE, "model": model, "stream": stream})), len(engine.requests)
                while len(engine.requests) == before:
                    await asyncio.sleep(0.01)
                asked.cancel()
                await asyncio.wait_for(ended.wait(), 5)
                ended.clear()


async def test_only_the_last_conversations_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "KEPT_CONVERSATIONS", 2)

    async with serving() as (client, _, team):
        for number in range(4):
            await say(client, "Writer", [{"role": "user", "content": str(number)}])
            answer = await send(client, {"model": "Writer", "input": str(number)}, path="/v1/responses")
        assert len(team.conversations) == 2 and answer.body["id"] in team.conversations
        assert len(team._chats["Writer"]._history._nodes) == 2


async def _read(client: Any, body: Any) -> bytes:
    async with posted(client, body) as answer:
        return await answer.read()


async def _get(client: Any, path: str) -> Any:
    import aiohttp

    async with aiohttp.ClientSession() as http, http.get(client.base_url.removesuffix("/v1") + path) as answer:
        return await answer.json()
