"""Requests and answers of `/v1/responses`, translated to and from those of `/v1/chat/completions`.
Bodies are untrusted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from agent_system.gateway.completion import Completion, event
from agent_system.gateway.errors import Refusal
from agent_system.gateway.request_fields import (
    MASKING,
    OTHER_ROUTE,
    SAMPLING,
    UNSUPPORTED,
    refuse_other_routes,
)

Messages = list[Any]
MOST_ANSWERS = 1024
MOST_ITEMS = 8192
RESPONSE = "resp_"  # an answer has this before the id of its chat completion
_SAME = (
    "model",
    "tool_choice",
    "parallel_tool_calls",
    "seed",
    "stop",
    "stream",
    "stream_options",
    *SAMPLING,
    *MASKING,
    *UNSUPPORTED,
)
# of fields of chat completions
_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
}
_TEXTS = ("input_text", "output_text", "text", "refusal")
_REFERENCE = "item_reference"
_LOGPROBS = "message.output_text.logprobs"  # an entry of `include`


class ResponseStore:
    """The last answers of an episode, or of a served team, that later requests name by an id.

    Attributes:
        conversations: messages by the ids of answers, for `previous_response_id`.
        items: items of answers by their ids, for `item_reference`.
    """

    def __init__(self) -> None:
        self.conversations: dict[str, Messages] = _Recent(MOST_ANSWERS)
        self.items: dict[str, Mapping[str, Any]] = _Recent(MOST_ITEMS)

    def add(self, answer: Mapping[str, Any], messages: Sequence[Any]) -> None:
        """Keep an answer, the object `response`, with the messages of its request and itself."""
        self.conversations[answer["id"]] = list(messages)
        for item in answer["output"]:
            self.items[item["id"]] = item


class _Recent(OrderedDict[str, Any]):
    """Forgets the oldest entries."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if len(self) > self._most:
            self.popitem(last=False)


def chat_body(body: Mapping[str, Any], store: ResponseStore) -> dict[str, Any]:
    """Return the body of a request to chat completions.

    Args:
        body: of a request to `/v1/responses`.
        store: earlier answers, which `previous_response_id` continues and items of the type
            `item_reference` name.

    Raises Refusal for items that are not supported.
    """
    refuse_other_routes(body, "/v1/responses")
    if body.get("n") not in (None, 1):
        raise Refusal("n must be 1: a response is one reply", param="n")
    shape = body.get("text")
    if not isinstance(shape, dict | None):
        raise Refusal(f'text must be an object such as {{"format": ...}}, found {shape!r:.80}', param="text")
    chat = {name: body[name] for name in _SAME if body.get(name) is not None}
    if shape and shape.get("format") is not None:
        chat["response_format"] = _nested(shape["format"], "json_schema")
    if isinstance(body.get("include"), list) and _LOGPROBS in body["include"]:
        chat["logprobs"] = True
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise Refusal("tools must be a list", param="tools")
    if "tool_choice" in chat:
        chat["tool_choice"] = _choice(chat["tool_choice"])
    return chat | {
        "messages": [*_instructions(body), *_earlier(body, store), *_messages(body.get("input"), store)],
        "max_tokens": body.get("max_output_tokens"),
        "tools": [_tool(tool) for tool in tools],
    }


def response_body(completion: Completion, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object `response` for a request's body."""
    (choice,) = completion.choices
    cut = choice.finish == "length"
    status = "incomplete" if cut else "completed"
    output: list[dict[str, Any]] = []
    # An answer has an item even if the reply is empty.
    if choice.content or not choice.calls:
        details = choice.token_details
        text = {
            "type": "output_text",
            "text": choice.content,
            "annotations": [],
            **({"logprobs": details["content"]} if details else {}),
        }
        output.append(
            {
                "type": "message",
                "id": f"msg_{completion.id}",
                "status": status,
                "role": "assistant",
                "content": [text],
            }
        )
    for call_id, name, arguments in choice.calls:
        item = {
            "type": "function_call",
            "id": f"fc_{call_id}",
            "call_id": call_id,
            "name": name,
            "arguments": arguments,
            "status": status,
        }
        output.append(item)
    usage = completion.usage
    return {
        "id": f"{RESPONSE}{completion.id}",
        "object": "response",
        "created_at": completion.created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "model": completion.model,
        "output": output,
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": body.get("previous_response_id"),
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }


def response_events(answer: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the events of a stream of `/v1/responses` for the object `response`."""
    number = count()

    def typed_event(kind: str, **fields: Any) -> bytes:
        content = {"type": kind, "sequence_number": next(number), **fields}
        return f"event: {kind}\n".encode() + event(content)

    begun = {**answer, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield typed_event("response.created", response=begun)
    yield typed_event("response.in_progress", response=begun)
    for index, item in enumerate(answer["output"]):
        position = {"output_index": index, "item_id": item["id"]}
        empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        begun_item = {**item, "status": "in_progress", **empty}
        yield typed_event("response.output_item.added", output_index=index, item=begun_item)
        for content_index, content in enumerate(item.get("content", ())):
            here = {**position, "content_index": content_index}
            text = content["text"]
            yield typed_event("response.content_part.added", **here, part={**content, "text": ""})
            logprobs = content.get("logprobs", [])
            yield typed_event("response.output_text.delta", **here, delta=text, logprobs=logprobs)
            yield typed_event("response.output_text.done", **here, text=text, logprobs=logprobs)
            yield typed_event("response.content_part.done", **here, part=content)
        if item["type"] == "function_call":
            name = item["name"]
            arguments = item["arguments"]
            yield typed_event("response.function_call_arguments.delta", **position, delta=arguments)
            yield typed_event(
                "response.function_call_arguments.done", **position, name=name, arguments=arguments
            )
        yield typed_event("response.output_item.done", output_index=index, item=item)
    yield typed_event(f"response.{answer['status']}", response=answer)


def with_responses_names(error: Refusal) -> Refusal:
    """Return the refusal of a request to chat completions with the names of the fields in
    `/v1/responses`.
    """
    if error.code == OTHER_ROUTE:
        return error
    param = str(error.param)
    # items and messages are not counted alike
    if param.startswith("messages["):
        return Refusal(f"input, with the messages that it makes: {error}", error.status, error.code, "input")
    field = _NAMES.get(param)
    if field is None:
        return error
    return Refusal(str(error).replace(str(error.param), field, 1), error.status, error.code, field)


def conversation_after(chat: Mapping[str, Any], body: Mapping[str, Any], completion: Completion) -> Messages:
    """Return the messages of a request and its answer, for `previous_response_id`: without
    instructions, which every request gives anew.
    """
    return [*chat["messages"][len(_instructions(body)) :], completion.choices[0].message]


def _nested(value: Any, kind: str) -> Any:
    """Return an object of a type in the form of chat completions, where its fields are one level
    deeper.
    """
    return {"type": kind, kind: value} if isinstance(value, dict) and value.get("type") == kind else value


def _choice(value: Any) -> Any:
    """Return a choice of tools in the form of chat completions."""
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        tools = value.get("tools")
        listed = [_nested(tool, "function") for tool in tools] if isinstance(tools, list) else tools
        return {"type": "allowed_tools", "allowed_tools": {"mode": value.get("mode"), "tools": listed}}
    return _nested(value, "function")


def _instructions(body: Mapping[str, Any]) -> Messages:
    return [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []


def _earlier(body: Mapping[str, Any], store: ResponseStore) -> Messages:
    """Return the conversation that the request continues."""
    name = body.get("previous_response_id")
    if name is None:
        return []
    if not isinstance(name, str) or name not in store.conversations:
        raise Refusal(
            f"previous_response_id={name!r:.100} is no answer that is known",
            404,
            param="previous_response_id",
        )
    return store.conversations[name]


def _messages(value: Any, store: ResponseStore) -> Messages:
    """Return the messages of the items `input`; an assistant's text and the tool calls after it are
    one message.
    """
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(items, list):
        raise Refusal("input must be a text or a list of items", param="input")
    messages: Messages = []
    for index, entry in enumerate(items):
        item = _referenced_item(entry, index, store)
        kind = (item.get("type") or "message") if isinstance(item, Mapping) else None
        if kind == "message":
            messages.append({"role": item.get("role"), "content": _content(item.get("content"))})
        elif kind == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            messages.append(
                {"role": "tool", "tool_call_id": item.get("call_id"), "content": _content(item.get("output"))}
            )
        elif kind != "reasoning":  # the engine's tokens have the thinking
            raise Refusal(
                f"input[{index}] has the type {kind!r:.80}; expected message, function_call, "
                f"function_call_output or {_REFERENCE}",
                param="input",
            )
    return messages


def _referenced_item(item: Any, index: int, store: ResponseStore) -> Any:
    """Return the item that an `item_reference` names, whose type may be left out; other items as
    they are.
    """
    kind = item.get("type") if isinstance(item, dict) else ""
    if kind != _REFERENCE and not (kind is None and set(item) <= {"id", "type"} and item):
        return item
    name = item.get("id")
    stored_item = store.items.get(name) if isinstance(name, str) else None
    if stored_item is None:
        raise Refusal(
            f"input[{index}] refers to the item {name!r:.100}, which no answer to this key has "
            "given, or too many have since; send the item itself",
            param="input",
        )
    return stored_item


def _content(content: Any) -> Any:
    """Return the content of an item in the form of chat completions."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "text", "text": entry.get("refusal") if entry["type"] == "refusal" else entry.get("text")}
        if isinstance(entry, dict) and entry.get("type") in _TEXTS
        else entry
        for entry in content
    ]


def _tool(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    function = {
        name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None
    }
    return {"type": "function", "function": function}
