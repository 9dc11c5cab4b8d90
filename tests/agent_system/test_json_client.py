"""The client of JSON servers: limits of time and size, redirects, and requests from another event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from agent_system.json_client import CONNECTION_ERRORS, JsonClient, NoAnswerError, TooLongError


async def answer(http: web.Request) -> web.StreamResponse:
    """What the body asks for."""
    body = await http.json()
    if body["kind"] == "slow":
        await asyncio.sleep(5)
    if body["kind"] == "moved":
        raise web.HTTPFound("/elsewhere")
    if body["kind"] == "long":
        return web.Response(body=b"x" * 1000, status=500)
    return web.json_response({"said": body, "key": http.headers.get("Authorization")})


@asynccontextmanager
async def listening() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/ask", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/ask"
    finally:
        await runner.cleanup()


def test_an_answer_within_the_limits_is_returned_in_any_event_loop_after_close() -> None:
    async def ask(client: JsonClient | None) -> JsonClient:
        async with listening() as url:
            client = client or JsonClient(url)
            client._url = url
            reply = await client.post(
                {"kind": "\ud800é"}, timeout_s=5, most_bytes=100, headers={"Authorization": "Bearer k"}
            )
            assert reply.status == 200 and reply.headers["content-type"].startswith("application/json")
            assert reply.ok_data() == reply.text.encode() and '"key": "Bearer k"' in reply.text
            await client.close()
            return client

    asyncio.run(ask(asyncio.run(ask(None))))


async def test_what_exceeds_a_limit_or_points_elsewhere_is_told_apart() -> None:
    async with listening() as url:
        client = JsonClient(url, keepalive_s=1.0)
        with pytest.raises(NoAnswerError, match=r"no answer within 0\.1 s"):
            await client.post({"kind": "slow"}, timeout_s=0.1, most_bytes=100)
        with pytest.raises(TooLongError) as error:
            await client.post({"kind": "long"}, timeout_s=5, most_bytes=100)
        assert error.value.answer.status == 500 and len(error.value.answer.data) > 100
        moved = await client.post({"kind": "moved"}, timeout_s=5, most_bytes=100)
        with pytest.raises(ValueError, match="HTTP status 302: b'302: Found'"):
            moved.ok_data()
        await client.close()
    with pytest.raises(CONNECTION_ERRORS):
        await client.post({"kind": "gone"}, timeout_s=5, most_bytes=100)
    await client.close()


async def test_a_limit_of_the_caller_is_the_callers() -> None:
    async with listening() as url:
        client = JsonClient(url)
        with pytest.raises(TimeoutError) as error:
            async with asyncio.timeout(0.1):
                await client.post({"kind": "slow"}, timeout_s=5, most_bytes=100)
        assert not isinstance(error.value, NoAnswerError)
        await client.close()
