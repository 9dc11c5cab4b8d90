"""The routes of the HTTP server: from a request to the answer, or to an error in OpenAI's format."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from aiohttp import HttpVersion11, web

from agent_system.gateway.completions import completion_ask
from agent_system.gateway.errors import HEADERS, Refusal
from agent_system.gateway.reply import Completion
from agent_system.gateway.request import Answering, Request
from agent_system.gateway.responses import chat_body, conversation, response_body, with_own_names
from agent_system.gateway.sampling import RESPONSES, without_effect
from agent_system.gateway.stream import COMMENT, KEEP_ALIVE_S, event, events, response_events, text_events
from agent_system.gateway.wire import Ask, read_ask, read_body

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 16 << 20
KNOWN = "POST /v1/completions, POST /v1/chat/completions, POST /v1/responses, GET /v1/models"
ROUTES = ("/v1", "/agents/{agent}/v1")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Routes:
    """Answers HTTP requests with the replies of an episode or a served team."""

    def __init__(self, find: Callable[[web.Request], Answering]) -> None:
        """Set what returns the episode or the team of a request, or raises Refusal."""
        self._find = find

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_as_openai_errors])
        for root in ROUTES:
            app.router.add_post(f"{root}/chat/completions", self._told(self._chat), expect_handler=_expected)
            app.router.add_post(f"{root}/responses", self._told(self._responses), expect_handler=_expected)
            app.router.add_post(
                f"{root}/completions", self._told(self._completions), expect_handler=_expected
            )
            app.router.add_get(f"{root}/models", self._models, expect_handler=_expected)
            app.router.add_get(f"{root}/models/{{model}}", self._model, expect_handler=_expected)
        return app

    def _told(self, answered: Callable[[web.Request, Answering], Awaitable[web.StreamResponse]]) -> Handler:
        """Return a handler of requests to agents; the episode or the team learns which of them get an
        error.
        """

        async def handle(http: web.Request) -> web.StreamResponse:
            calls = self._find(http)
            try:
                return await answered(http, calls)
            except Exception as error:
                calls.refuse(error)
                raise

        return handle

    async def _models(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(
            {"object": "list", "data": [_described(name) for name in self._find(request).agents]}
        )

    async def _model(self, request: web.Request) -> web.StreamResponse:
        named = request.match_info
        return web.json_response(_described(self._find(request).agent(named.get("agent") or named["model"])))

    async def _chat(self, http: web.Request, calls: Answering) -> web.StreamResponse:
        data = await http.read()
        ask = read_ask(read_body(data), calls.forms)
        return await _answered(
            http, calls, ask, data, Completion.to_json, lambda completion: events(completion, ask.usage)
        )

    async def _completions(self, http: web.Request, calls: Answering) -> web.StreamResponse:
        data = await http.read()
        ask = completion_ask(read_body(data), calls.forms)
        return await _answered(
            http,
            calls,
            ask,
            data,
            Completion.to_text_json,
            lambda completion: text_events(completion, ask.usage),
        )

    async def _responses(self, http: web.Request, calls: Answering) -> web.StreamResponse:
        data = await http.read()
        body = read_body(data)
        chat = chat_body(body, calls.stored)
        ask = read_ask(chat, calls.forms, without_effect(body, RESPONSES))

        def stored(completion: Completion) -> dict[str, Any]:
            answer = response_body(completion, body)
            calls.stored.add(answer, conversation(chat, body, completion))
            return answer

        return await _answered(
            http, calls, ask, data, stored, lambda completion: response_events(stored(completion))
        )


async def _answered(
    http: web.Request,
    calls: Answering,
    ask: Ask,
    data: bytes,
    whole: Callable[[Completion], Mapping[str, Any]],
    streamed: Callable[[Completion], Iterator[bytes]],
) -> web.StreamResponse:
    """Return the answer to a request, as one object or, if it asks for that, as events."""
    with _started(http, calls, ask, data) as request:
        if ask.stream:
            return await _streamed(http, calls, request, streamed)
        completion = await request.answer()
        if _connected(http):
            calls.deliver(request)
        return web.json_response(whole(completion))


def _described(model: str) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": 0, "owned_by": "verl-mas"}


@contextmanager
def _started(http: web.Request, calls: Answering, ask: Ask, data: bytes) -> Iterator[Request]:
    agent_id = calls.agent(http.match_info.get("agent") or ask.model)
    count = http.headers.get("x-stainless-retry-count", "0")
    retried = count.isdecimal() and int(count[:9]) > 0
    waiting = weakref.ref(http)  # what is kept for retries must not keep the body
    request = calls.start(agent_id, ask, http.path.encode() + data, retried, lambda: _connected(waiting()))
    try:
        yield request
    finally:
        calls.leave(request)


async def _streamed(
    http: web.Request, calls: Answering, request: Request, made: Callable[[Completion], Iterator[bytes]]
) -> web.StreamResponse:
    """Answer with the events `made` of the reply once it is whole, and with comments until then."""
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache", **HEADERS}
    )
    while not request.task.done():
        await asyncio.wait([request.task], timeout=KEEP_ALIVE_S)
        if not request.task.done():
            await _prepared(response, http)
            await response.write(COMMENT)
    if not response.prepared:
        completion = await request.answer()
        await _prepared(response, http)
    else:
        try:
            completion = await request.answer()
        except Exception as error:  # the status has been sent
            calls.refuse(error)
            await response.write(event(_refusal(error, http).body))
            return response
    if not _connected(http):
        return response
    calls.deliver(request)
    sent = False
    try:
        for chunk in made(completion):
            await response.write(chunk)
            sent = True
    except ConnectionError:
        if not sent:
            calls.withdraw(request)
    return response


async def _expected(http: web.Request) -> web.StreamResponse | None:
    """Answer the header Expect, before the body is read; None for a request that goes on."""
    if http.version < HttpVersion11:
        return None
    if (found := http.headers["Expect"]).lower() != "100-continue":
        return Refusal(f"the header Expect must be 100-continue, found {found!r:.80}", 417).response()
    await http.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    http.writer.output_size = 0  # the answer has not begun
    return None


async def _prepared(response: web.StreamResponse, http: web.Request) -> None:
    if not response.prepared:
        await response.prepare(http)


def _connected(http: web.Request | None) -> bool:
    return http is not None and http.transport is not None and not http.transport.is_closing()


@web.middleware
async def _as_openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Exception as error:
        if isinstance(error, ConnectionError) and not _connected(request):
            raise
        return _refusal(error, request).response()


def _refusal(error: Exception, request: web.Request) -> Refusal:
    """Return what the client is told of an error."""
    match error:
        case Refusal():
            return with_own_names(error) if request.path.endswith("/responses") else error
        case web.HTTPRequestEntityTooLarge():
            return Refusal(f"the body has more than {MAX_BODY_BYTES >> 20} MiB", 413, "request_too_large")
        case web.HTTPException():
            return Refusal(f"{request.method} {request.path}: {error.reason}; answered are: {KNOWN}", 404)
        case web.RequestPayloadError():
            return Refusal(f"the body cannot be read: {error}")
        case RecursionError():
            return Refusal("the body is nested too deep")
    logger.error("the gateway failed to answer %r", request.path, exc_info=error)
    return Refusal(f"the gateway failed: {type(error).__name__}: {error}", 503, "gateway_failed")
