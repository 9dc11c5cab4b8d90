"""What one program does wrong costs nobody else: large bodies, many connections, cut requests."""

from __future__ import annotations

import asyncio
import itertools
import re
import resource
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from agent_system import Task
from agent_system.gateway import server
from agent_system.gateway.session import Session

from .conftest import USER, posted, say, send
from .test_served import serving

ROLE = {"model": "Writer", "messages": USER}
CONNECTIONS = 1000


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for the sockets of both ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"the limit of open files is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def beside(make_team: Any, bad: Any) -> tuple[Any, Any]:
    """Play an episode whose program is `bad` beside one that makes ten calls in turn; returns both."""

    async def team(task: Task, session: Session) -> str:
        if task.task_id == "bad":
            return str(await bad(session))
        answers = [(await say(session, "Writer")).text for _ in range(10)]
        return answers[-1]

    collector, _ = make_team(team, max_failure_rate=1.0)
    tasks = [Task(name, "2+2?", "sums", "4") for name in ("bad", "good")]
    result = await asyncio.wait_for(collector.collect(tasks, 1, step=1), 60)
    bad_episode, good = result.episodes
    assert (good.failure, good.answer, len(good.samples)) == (None, "4", 10)
    return bad_episode, good


async def test_a_body_of_100_mb_is_refused_while_it_arrives(make_team: Any) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * (1 << 20)

    async def bad(session: Session) -> str:
        for body in (b" " * (100 << 20), chunks()):
            async with (
                posted(session, body) if isinstance(body, bytes) else _posted_chunks(session, body) as answer
            ):
                found = await answer.json()
            assert answer.status == 413 and found["error"]["code"] == "request_too_large", found
            assert answer.headers["x-should-retry"] == "false"
        long = await send(session, {**ROLE, "messages": [{"role": "user", "content": "x " * (7 << 20)}]})
        assert (
            long.status == 400
            and "characters, more than data.max_prompt_length=4000 tokens" in long.body["error"]["message"]
        )
        unknown = await send(session, {**ROLE, "model": "W" * (7 << 20)})
        assert unknown.status == 404 and len(unknown.body["error"]["message"]) < 300
        return (await say(session, "Writer")).text

    episode, _ = await beside(make_team, bad)
    assert (episode.failure, len(episode.samples)) == (None, 1)


def _posted_chunks(session: Session, chunks: AsyncIterator[bytes]) -> Any:
    """A body without a length."""
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def post() -> AsyncIterator[Any]:
        headers = {"Authorization": f"Bearer {session.api_key}"}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(f"{session.base_url}/chat/completions", data=chunks) as answer,
        ):
            yield answer

    return post()


async def test_a_thousand_connections_and_cut_requests_leave_the_server_as_it_is(
    make_team: Any, many_files: None
) -> None:
    starts = (
        b"",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 99\r\n\r\n{",
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01" * 50,
    )

    async def bad(session: Session) -> str:
        address = urlsplit(session.base_url)
        opened = await asyncio.gather(
            *(asyncio.open_connection(address.hostname, address.port) for _ in range(CONNECTIONS))
        )
        for number, (_, writer) in enumerate(opened):
            writer.write(starts[number % len(starts)])
        text = (await say(session, "Writer")).text
        for number, (_, writer) in enumerate(opened):
            writer.transport.abort() if number % 2 else writer.close()
        return text + (await say(session, "Writer")).text

    episode, _ = await beside(make_team, bad)
    assert (episode.failure, episode.answer, len(episode.samples)) == (None, "44", 2)


async def test_each_of_a_thousand_requests_at_once_gets_its_own_reply(play: Any, many_files: None) -> None:
    """The engine gives no reply before it has all requests."""
    came, all_came = itertools.count(1), asyncio.Event()

    async def wait(request: Any) -> None:
        if next(came) == CONNECTIONS:
            all_came.set()
        await all_came.wait()

    async def team(task: Task, session: Session) -> str:
        async def ask(number: int) -> None:
            body = {"model": "Writer", "messages": [{"role": "user", "content": str(number)}]}
            async with http.post(f"{session.base_url}/chat/completions", json=body) as answer:
                assert (await answer.json())["choices"][0]["message"]["content"] == str(number)

        headers = {"Authorization": f"Bearer {session.api_key}"}
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as http:
            await asyncio.gather(*map(ask, range(CONNECTIONS)))
        return "4"

    episode, _, engine = await play(
        team, lambda prompt, _: re.findall(r"\d+", prompt)[-1], delay=wait, max_open_calls=CONNECTIONS
    )
    assert (episode.failure, len(episode.samples), engine.most_open) == (None, CONNECTIONS, CONNECTIONS)
    assert sorted((s.request.prompt_ids, s.generation.token_ids) for s in episode.samples) == sorted(
        engine.sampled
    )


async def test_the_server_asks_for_the_sockets_of_a_thousand_episodes(make_team: Any) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1000), hard))
    try:
        await beside(make_team, lambda session: asyncio.sleep(0, "4"))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, server.SOCKETS), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_the_word_before_the_key_may_be_in_any_case(play: Any) -> None:
    async def team(task: Task, session: Session) -> str:
        for word in ("bearer", "BEARER"):
            answer = await send(session, ROLE, Authorization=f"{word} {session.api_key}")
            assert answer.status == 200, answer.body
        return "4"

    assert (await play(team))[0].failure is None
    async with serving(key="sk-1") as (client, _, _):
        for given, status in (("bearer sk-1", 200), ("bearer sk-2", 401)):
            assert (await send(client, ROLE, Authorization=given)).status == status


async def test_no_refusal_makes_the_openai_library_repeat_a_request(make_team: Any) -> None:
    openai = pytest.importorskip("openai")
    wrong: list[tuple[dict[str, Any], Any]] = [
        ({"model": "Nobody"}, openai.NotFoundError),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, openai.BadRequestError),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "objekt"}},
                }
            },
            openai.BadRequestError,
        ),
        ({"messages": [{"role": "user", "content": "x" * (17 << 20)}]}, openai.APIStatusError),
    ]

    async def bad(session: Session) -> str:
        import httpx

        sent: list[str] = []

        async def count(request: httpx.Request) -> None:
            sent.append(request.headers.get("x-stainless-retry-count", ""))

        async with (
            httpx.AsyncClient(event_hooks={"request": [count]}) as http,
            openai.AsyncOpenAI(
                base_url=session.base_url, api_key=session.api_key, max_retries=2, http_client=http
            ) as client,
        ):
            for more, error in wrong:
                with pytest.raises(error):
                    await client.chat.completions.create(**{**ROLE, **more})
            assert sent == ["0"] * len(wrong)
        return (await say(session, "Writer")).text

    episode, _ = await beside(make_team, bad)
    assert episode.failure is None, episode.failure
