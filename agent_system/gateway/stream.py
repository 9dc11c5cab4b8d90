"""Server-sent events made from a whole reply: engines answer whole, so a stream tells a client nothing
earlier.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from agent_system.gateway.reply import Completion

KEEP_ALIVE_S = 10.0
COMMENT = b": the reply is being generated\n\n"


def event(content: Mapping[str, Any]) -> bytes:
    """Return one event."""
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def events(completion: Completion, usage: bool) -> Iterator[bytes]:
    """Yield the events of a `chat.completion.chunk` stream; with `usage` the counts of tokens come before its
    end.
    """
    head = {
        "id": completion.id,
        "object": "chat.completion.chunk",
        "created": completion.created,
        "model": completion.model,
    }

    def chunk(index: int, delta: Mapping[str, Any], finish: str | None = None, details: Any = None) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": details}
        return event({**head, "choices": [choice], **({"usage": None} if usage else {})})

    for index, choice in enumerate(completion.choices):
        calls = [
            {"index": number, **call} for number, call in enumerate(choice.message.get("tool_calls", ()))
        ]
        delta = {**choice.message, **({"tool_calls": calls} if calls else {})}
        yield chunk(index, delta, details=choice.token_details)
        yield chunk(index, {}, choice.finish)
    if usage:
        yield event({**head, "choices": [], "usage": completion.usage})
    yield b"data: [DONE]\n\n"


def text_events(completion: Completion, usage: bool) -> Iterator[bytes]:
    """Yield the events of a `text_completion` stream; with `usage` the counts of tokens come before
    its end.
    """
    empty = {"usage": None} if usage else {}
    for index, choice in enumerate(completion.choices):
        parts = ((choice.content, None, choice.text_details), ("", choice.finish, None))
        for text, finish, details in parts:
            shown = {"index": index, "text": text, "finish_reason": finish, "logprobs": details}
            yield event({**completion.text_head, "choices": [shown], **empty})
    if usage:
        yield event({**completion.text_head, "choices": [], "usage": completion.usage})
    yield b"data: [DONE]\n\n"


def response_events(answer: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the events of a stream of `/v1/responses` for the object `response`."""
    number = count()

    def told(kind: str, **fields: Any) -> bytes:
        return f"event: {kind}\n".encode() + event({"type": kind, "sequence_number": next(number), **fields})

    begun = {**answer, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield told("response.created", response=begun)
    yield told("response.in_progress", response=begun)
    for index, item in enumerate(answer["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        yield told(
            "response.output_item.added", output_index=index, item={**item, "status": "in_progress", **empty}
        )
        for place, part in enumerate(item.get("content", ())):
            here, text = {**at, "content_index": place}, part["text"]
            yield told("response.content_part.added", **here, part={**part, "text": ""})
            yield told("response.output_text.delta", **here, delta=text, logprobs=[])
            yield told("response.output_text.done", **here, text=text, logprobs=[])
            yield told("response.content_part.done", **here, part=part)
        if item["type"] == "function_call":
            yield told("response.function_call_arguments.delta", **at, delta=item["arguments"])
            yield told(
                "response.function_call_arguments.done", **at, name=item["name"], arguments=item["arguments"]
            )
        yield told("response.output_item.done", output_index=index, item=item)
    yield told(f"response.{answer['status']}", response=answer)
