"""The routes of the HTTP server: from a request to the answer, or to an error in OpenAI's format."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from aiohttp import HttpVersion11, web

from agent_system.gateway.chat_request import (
    ChatRequest,
    read_body,
    read_chat_request,
    read_completion_requests,
)
from agent_system.gateway.completion import Completion, event, joined
from agent_system.gateway.errors import HEADERS, Refusal
from agent_system.gateway.request_fields import RESPONSES, without_effect
from agent_system.gateway.responder import PendingRequest, Responder
from agent_system.gateway.responses import (
    chat_body,
    conversation_after,
    response_body,
    response_events,
    with_responses_names,
)

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 16 << 20
KEEP_ALIVE_S = 10.0
COMMENT = b": the reply is being generated\n\n"
ANSWERED = "POST /v1/completions, POST /v1/chat/completions, POST /v1/responses, GET /v1/models"
ROOTS = ("/v1", "/agents/{agent}/v1")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Routes:
    """Answers HTTP requests with the replies of an episode or a served team."""

    def __init__(self, find: Callable[[web.Request], Responder]) -> None:
        """Set what returns the episode or the team of a request, or raises Refusal."""
        self._find = find

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_as_openai_errors])
        posts = {
            "chat/completions": self._chat,
            "responses": self._responses,
            "completions": self._completions,
        }
        gets = {"models": self._models, "models/{model}": self._model}
        for root in ROOTS:
            for path, answer in posts.items():
                handler = self._reporting_errors(answer)
                app.router.add_post(f"{root}/{path}", handler, expect_handler=_answer_expect)
            for path, handler in gets.items():
                app.router.add_get(f"{root}/{path}", handler, expect_handler=_answer_expect)
        return app

    def _reporting_errors(
        self, answer: Callable[[web.Request, Responder], Awaitable[web.StreamResponse]]
    ) -> Handler:
        """Return a handler of requests to agents; the episode or the team learns which of them get
        an error.
        """

        async def handle(http: web.Request) -> web.StreamResponse:
            responder = self._find(http)
            try:
                return await answer(http, responder)
            except Exception as error:
                responder.refuse(error)
                raise

        return handle

    async def _models(self, http: web.Request) -> web.StreamResponse:
        models = [_model_object(name) for name in self._find(http).agents]
        return web.json_response({"object": "list", "data": models})

    async def _model(self, http: web.Request) -> web.StreamResponse:
        name = http.match_info.get("agent") or http.match_info["model"]
        return web.json_response(_model_object(self._find(http).agent(name)))

    async def _chat(self, http: web.Request, responder: Responder) -> web.StreamResponse:
        data = await http.read()
        request = read_chat_request(read_body(data), responder.structured)
        return await _answer(
            http,
            responder,
            [request],
            data,
            Completion.to_json,
            lambda completion: completion.to_events(request.usage),
        )

    async def _completions(self, http: web.Request, responder: Responder) -> web.StreamResponse:
        data = await http.read()
        requests = read_completion_requests(read_body(data), responder.structured)
        return await _answer(
            http,
            responder,
            requests,
            data,
            Completion.to_text_json,
            lambda completion: completion.to_text_events(requests[0].usage),
        )

    async def _responses(self, http: web.Request, responder: Responder) -> web.StreamResponse:
        data = await http.read()
        body = read_body(data)
        chat = chat_body(body, responder.responses)
        request = read_chat_request(chat, responder.structured, without_effect(body, RESPONSES))
        request = replace(request, api="responses")

        def store(completion: Completion) -> dict[str, Any]:
            answer = response_body(completion, body)
            responder.responses.add(answer, conversation_after(chat, body, completion))
            return answer

        return await _answer(
            http, responder, [request], data, store, lambda completion: response_events(store(completion))
        )


async def _answer(
    http: web.Request,
    responder: Responder,
    requests: Sequence[ChatRequest],
    data: bytes,
    as_object: Callable[[Completion], Mapping[str, Any]],
    as_events: Callable[[Completion], Iterator[bytes]],
) -> web.StreamResponse:
    """Return the answer to the requests of a body, as one object or, if it asks for that, as events."""
    # A long body is not hashed again for each of its prompts.
    name = data if len(requests) == 1 else blake2b(data).digest()
    with ExitStack() as stack:
        pendings = [
            stack.enter_context(_pending_request(http, responder, request, name + b"\0" * place))
            for place, request in enumerate(requests)
        ]
        if requests[0].stream:
            return await _stream(http, responder, pendings, as_events)
        completion = joined([await pending.answer() for pending in pendings])
        # what nobody hears is not trained
        if _is_connected(http):
            _each(responder.deliver, pendings)
        return web.json_response(as_object(completion))


def _each(note: Callable[[PendingRequest], None], pendings: Sequence[PendingRequest]) -> None:
    for pending in pendings:
        note(pending)


def _model_object(model: str) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": 0, "owned_by": "verl-mas"}


@contextmanager
def _pending_request(
    http: web.Request, responder: Responder, request: ChatRequest, data: bytes
) -> Iterator[PendingRequest]:
    """Begin to answer a request; the responder learns when nobody waits for the answer any more."""
    agent_id = responder.agent(http.match_info.get("agent") or request.model)
    retry_count = http.headers.get("x-stainless-retry-count", "0")
    retried = retry_count.isdecimal() and int(retry_count[:9]) > 0
    # what is kept for retries must not keep the body
    reference = weakref.ref(http)
    pending = responder.start(
        agent_id, request, http.path.encode() + data, retried, lambda: _is_connected(reference())
    )
    try:
        yield pending
    finally:
        responder.leave(pending)


async def _stream(
    http: web.Request,
    responder: Responder,
    pendings: Sequence[PendingRequest],
    as_events: Callable[[Completion], Iterator[bytes]],
) -> web.StreamResponse:
    """Answer with the events of the replies once they are whole, and with comments until then."""
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache", **HEADERS}
    )
    while not all(pending.task.done() for pending in pendings):
        await asyncio.wait([pending.task for pending in pendings], timeout=KEEP_ALIVE_S)
        if not all(pending.task.done() for pending in pendings):
            await _prepare(response, http)
            await response.write(COMMENT)
    # Only after a comment has the status been sent: until then an error has one of its own.
    if not response.prepared:
        completion = joined([await pending.answer() for pending in pendings])
        await _prepare(response, http)
    else:
        try:
            completion = joined([await pending.answer() for pending in pendings])
        except Exception as error:
            responder.refuse(error)
            await response.write(event(_refusal_of(error, http).body))
            return response
    # What nobody hears is not trained.
    if not _is_connected(http):
        return response
    _each(responder.deliver, pendings)
    wrote_any = False
    try:
        for chunk in as_events(completion):
            await response.write(chunk)
            wrote_any = True
    except ConnectionError:
        if not wrote_any:
            _each(responder.withdraw, pendings)
    return response


async def _answer_expect(http: web.Request) -> web.StreamResponse | None:
    """Answer the header Expect, before the body is read; None for a request that goes on."""
    if http.version < HttpVersion11:
        return None
    value = http.headers["Expect"]
    if value.lower() != "100-continue":
        return Refusal(f"the header Expect must be 100-continue, found {value!r:.80}", 417).response()
    await http.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    http.writer.output_size = 0  # the answer has not begun
    return None


async def _prepare(response: web.StreamResponse, http: web.Request) -> None:
    if not response.prepared:
        await response.prepare(http)


def _is_connected(http: web.Request | None) -> bool:
    return http is not None and http.transport is not None and not http.transport.is_closing()


@web.middleware
async def _as_openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Exception as error:
        # there is nobody to tell
        if isinstance(error, ConnectionError) and not _is_connected(request):
            raise
        return _refusal_of(error, request).response()


def _refusal_of(error: Exception, http: web.Request) -> Refusal:
    """Return what the client is told of an error."""
    match error:
        case Refusal():
            return with_responses_names(error) if http.path.endswith("/responses") else error
        case web.HTTPRequestEntityTooLarge():
            return Refusal(f"the body has more than {MAX_BODY_BYTES >> 20} MiB", 413, "request_too_large")
        case web.HTTPException():
            return Refusal(f"{http.method} {http.path}: {error.reason}; answered are: {ANSWERED}", 404)
        case web.RequestPayloadError():
            return Refusal(f"the body cannot be read: {error}")
        case RecursionError():
            return Refusal("the body is nested too deep")
    logger.error("the gateway failed to answer %r", http.path, exc_info=error)
    return Refusal(f"the gateway failed: {type(error).__name__}: {error}", 503, "gateway_failed")
