"""Tool calls in the text of a reply, in the formats that model families write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.projection import fenced_blocks, strip_thinking
from agent_system.sandbox.result import parse_json

FORMATS = ("hermes", "llama3", "json")

_HERMES, _HERMES_END = re.compile(r"<tool_call>\s*"), re.compile(r"</tool_call>|(?=<tool_call>)|\Z")
_CLOSED_IN_LINE = re.compile(r"([}\]])[ \t]*```[ \t\r]*$", re.MULTILINE)  # the end of a fence on the last line of its JSON
_FENCE = re.compile(r"^[ \t]*```(?:json)?[ \t]*\n.*?^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_SEPARATORS = " \t\r\n;,"


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """One tool call of a reply.

    Attributes:
        name: name of the tool; empty when it could not be parsed.
        arguments: its arguments, unchecked JSON.
        error: why it could not be parsed, for the model; empty otherwise.
    """

    name: str = ""
    arguments: Any = None
    error: str = ""


def detect_format(chat_template: str) -> str:
    """Return the format that a chat template asks for: `hermes` (Qwen, Hermes), `llama3`, else `json`.

    A template without tools gets `hermes`, the format of the text that then describes the tools.
    """
    if "<tool_call>" in chat_template or "tools" not in chat_template:
        return "hermes"
    return "llama3" if '"parameters"' in chat_template or "ipython" in chat_template else "json"


def check_format(tool_format: str) -> None:
    """Raise AgentSystemError for an unknown format."""
    if tool_format not in ("auto", *FORMATS):
        raise AgentSystemError(f"tool_format must be auto, {', '.join(FORMATS)}, found {tool_format!r}")


def read_calls(text: str, tool_format: str) -> list[ToolRequest]:
    """Return the tool calls of a reply in their order, malformed ones included; calls inside its thinking are ignored.

    Args:
        text: the reply.
        tool_format: `hermes`: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`; `llama3`: the reply is one or more objects
            `{"name": ..., "parameters": {...}}`; `json`: such objects, or a list of them, also in a fence. Both names of the arguments
            are accepted in all formats.
    """
    visible = strip_thinking(text)
    if tool_format == "hermes":
        return [request for _, _, request in _tagged(visible)]
    fenced = [block.code for block in fenced_blocks(_close_fences(visible)) if block.language in ("", "json")]
    if tool_format == "json" and fenced:
        return [request for found in fenced for request in _objects(found)]
    return _objects(visible.removeprefix("<|python_tag|>").strip())


def split_calls(text: str, tool_format: str) -> tuple[str, list[ToolRequest]]:
    """Return a reply without its thinking and its tool calls, and these calls. Malformed calls stay in the text.

    So do calls that client libraries cannot read: their arguments are no object, or have numbers or characters that JSON has not.
    Arguments are those of `read_calls`.
    """
    visible = strip_thinking(text)
    if tool_format == "hermes":
        kept, calls, end = [], [], 0
        for start, after, request in _tagged(visible):
            good = _readable(request)
            kept.append(visible[end : start if good else after])
            calls, end = [*calls, request] if good else calls, after
        return "".join([*kept, visible[end:]]).strip(), calls
    requests = read_calls(text, tool_format)
    if not requests or not all(map(_readable, requests)):
        return visible, []
    return (
        _FENCE.sub("", _close_fences(visible)).strip() if tool_format == "json" and not visible.startswith(("{", "[")) else ""
    ), requests


def with_calls(content: str, calls: Sequence[Mapping[str, Any]]) -> str:
    """Return the content of a chat message with its `tool_calls` as text."""
    texts = [f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>" for call in calls]
    return "\n".join([*([content] if content else []), *texts])


def _tagged(text: str) -> Iterator[tuple[int, int, ToolRequest]]:
    """Yield the beginning and the end of every call in tags, and the call; a tag in its JSON is a part of an argument."""
    after = 0
    while begin := _HERMES.search(text, after):
        try:
            _, place = json.JSONDecoder().raw_decode(text, begin.end())
        except (ValueError, RecursionError):
            place = begin.end()
        end = _HERMES_END.search(text, place)
        assert end is not None, "the end of the text is one"
        after = end.end()
        yield begin.start(), after, _request(text[begin.end() : end.start()])


def _readable(request: ToolRequest) -> bool:
    try:
        json.dumps([request.name, request.arguments], ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return not request.error and isinstance(request.arguments, dict | None)


def _close_fences(text: str) -> str:
    """Return a text in which a fence that ends on the last line of its JSON ends on a line of its own."""
    return _CLOSED_IN_LINE.sub(r"\1\n```", text)


def _objects(text: str) -> list[ToolRequest]:
    """Return the calls of a text that consists of JSON; text that is no call, such as a JSON answer without a name, gives none."""
    if not text.lstrip().startswith(("{", "[")):
        return []
    decoder, place, found = json.JSONDecoder(), 0, []
    while (place := _skip(text, place)) < len(text) and text[place] in "{[":
        try:
            _, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return [*found, _request(text[place:])] if '"name"' in text[place:] else found
        value = text[place:end]
        if '"name"' in value:
            found += _several(value) if value.startswith("[") else [_request(value)]
        place = end
    return found


def _several(text: str) -> list[ToolRequest]:
    try:
        return [_checked(value) for value in parse_json(text)]
    except ValueError as error:
        return [ToolRequest(error=f"the tool call is not valid JSON: {error}")]


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place] in _SEPARATORS:
        place += 1
    return place


def _request(text: str) -> ToolRequest:
    try:
        return _checked(parse_json(text.strip()))
    except ValueError as error:
        return ToolRequest(error=f"the tool call is not valid JSON: {error}")


def _checked(value: Any) -> ToolRequest:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return ToolRequest(error='a tool call is an object with "name" and "arguments"')
    arguments = value["arguments"] if "arguments" in value else value.get("parameters", {})
    if isinstance(arguments, str):  # some models write the arguments as a text of JSON
        try:
            arguments = parse_json(arguments)
        except ValueError as error:
            return ToolRequest(error=f"the arguments are not valid JSON: {error}")
    return ToolRequest(value["name"], arguments)
