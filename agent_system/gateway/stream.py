"""Server-sent events made from a whole reply: engines answer whole, so a stream tells a client nothing earlier."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agent_system.gateway.reply import Completion

KEEP_ALIVE_S = 10.0
COMMENT = b": the reply is being generated\n\n"


def event(content: Mapping[str, Any]) -> bytes:
    """Return one event."""
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def events(completion: Completion, usage: bool) -> Iterator[bytes]:
    """Yield the events of a `chat.completion.chunk` stream; with `usage` the counts of tokens come before its end."""
    head = {"id": completion.id, "object": "chat.completion.chunk", "created": completion.created, "model": completion.model}

    def chunk(index: int, delta: Mapping[str, Any], finish: str | None = None, details: Any = None) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": details}
        return event({**head, "choices": [choice], **({"usage": None} if usage else {})})

    for index, choice in enumerate(completion.choices):
        calls = [{"index": number, **call} for number, call in enumerate(choice.message.get("tool_calls", ()))]
        delta = {**choice.message, **({"tool_calls": calls} if calls else {})}
        yield chunk(index, delta, details=choice.token_details)
        yield chunk(index, {}, choice.finish)
    if usage:
        yield event({**head, "choices": [], "usage": completion.usage})
    yield b"data: [DONE]\n\n"
