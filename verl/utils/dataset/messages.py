"""Chat messages of a row in the forms in which people store them, as the one form that chat
templates read.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from verl.utils.data_file import DatasetError

ChatMessage = dict[str, Any]
EXPECTED = 'expected chat messages [{"role": "user", "content": "..."}], or their JSON text'
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
# Lists of objects as JSON, Python and numpy print them.
_SEEMS_STORED = re.compile(r"""[\s"]*(?:array\()?\[?\s*\{\s*\\?["']""")
# What verl and others write where a picture, a video or a sound of the row's column belongs.
_MEDIA_MARK = re.compile(r"<(image|video|audio)(?: ?\d+)?>")


def parse_stored(value: Any) -> Any:
    """Return the object or list of a cell that holds it as JSON text, as JSON text of such text, or
    as Python prints it; any other value as it is.
    """
    if not isinstance(value, str):
        return value
    parsed = value
    if value.lstrip()[:1] == '"':
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            return value
    if isinstance(parsed, str) and parsed.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            parsed = json.loads(parsed)
    if isinstance(parsed, str) and parsed.lstrip()[:1] in ("{", "["):
        # Python prints single quotes and None, which are no JSON.
        try:
            parsed = ast.literal_eval(parsed.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return value
    return parsed if isinstance(parsed, (dict, list)) else value


def read_prompt(value: Any, where: str) -> list[ChatMessage]:
    """Return the messages of a prompt; a text that holds no messages is a question of the user.

    Raises:
        DatasetError: as `read_messages`, and a text that seems to hold messages and cannot be read.
    """
    stored = parse_stored(value)
    if isinstance(value, str) and value.strip() and not _holds_objects(stored):
        # As a question it would be trained on unnoticed.
        if _SEEMS_STORED.match(value) and all(map(value.__contains__, ("role", "content"))):
            raise DatasetError(f"{where}: {EXPECTED}; found text that is neither: {value!r:.120}")
        stored = [{"role": "user", "content": value}]
    return read_messages(stored, where)


def _holds_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def read_messages(value: Any, where: str) -> list[ChatMessage]:
    """Return the messages of a cell: null fields left out, contents as text, arguments of tool
    calls as objects.

    Raises:
        DatasetError: no messages, or one that no template can show; it begins with `where`.
    """
    messages = parse_stored(value)
    if not isinstance(messages, list) or not messages:
        raise DatasetError(f"{where}: {EXPECTED}; found {value!r:.120}")
    return [
        _message(parse_stored(message), f"{where}, message {number}")
        for number, message in enumerate(messages)
    ]


def check_media(row: Mapping[str, Any], messages: list[ChatMessage], where: str) -> None:
    """Raise DatasetError for messages with a mark that stands for what another column of their row
    has.
    """
    for message in messages:
        for mark in _MEDIA_MARK.finditer(message["content"]):
            if column := next((name for name in (f"{mark[1]}s", mark[1]) if row.get(name)), None):
                raise DatasetError(
                    f"{where}: {mark[0]} stands for what column {column!r} has, and models here read "
                    "text; leave such rows out, or take the column and the marks away"
                )


def read_object(value: Any, where: str) -> Any:
    """Return the object of a cell, which may be its JSON text, or None. Raise DatasetError for
    anything else.
    """
    parsed = parse_stored(value)
    if parsed is not None and not isinstance(parsed, dict):
        raise DatasetError(f"{where}: expected an object or its JSON text, found {value!r:.120}")
    return parsed


def read_tools(value: Any, where: str) -> list[dict[str, Any]] | None:
    """Return the schemas of a cell: a list of objects, its JSON text, or nothing. Raise
    DatasetError for anything else.
    """
    if not value:
        return None
    tools = parse_stored(value)
    if isinstance(tools, list):
        tools = [parse_stored(tool) for tool in tools]
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise DatasetError(
            f"{where}: expected a list of JSON schemas of tools, or its JSON text; found {value!r:.80}"
        )
    return tools or None


def check_text(value: Any, where: str) -> None:
    """Raise DatasetError if a value holds half of a surrogate pair, which no tokenizer encodes."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            excerpt = value[max(0, error.start - 20) : error.end + 20]
            raise DatasetError(
                f"{where}: {excerpt!a} holds half of a surrogate pair, which is no character; "
                "write both halves, or leave it out"
            ) from error
    elif isinstance(value, Mapping):
        for name, item in value.items():
            check_text(name, where)
            check_text(item, where)
    elif isinstance(value, list):
        for item in value:
            check_text(item, where)


def _message(message: Any, where: str) -> ChatMessage:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str) or not message["role"]:
        raise DatasetError(f"{where}: {EXPECTED}; found {message!r:.120}")
    check_text(message, where)
    chat_message = {name: value for name, value in message.items() if value is not None}
    # Templates leave out or invent messages of a role that they do not know, such as `User`.
    if (role := chat_message["role"].strip().lower()) in ROLES:
        chat_message["role"] = role
    # OpenAI's name of the role before there were tools.
    if chat_message["role"] == "function":
        chat_message["role"] = "tool"
    # OpenAI's form before tools
    if isinstance(parse_stored(chat_message.get("function_call")), dict):
        chat_message.setdefault(
            "tool_calls", [{"type": "function", "function": parse_stored(chat_message.pop("function_call"))}]
        )
    stored = chat_message.pop("tool_calls", None)
    if calls := parse_stored(stored):
        calls = [parse_stored(call) for call in calls] if isinstance(calls, list) else calls
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise DatasetError(f"{where}: expected tool_calls as a list of objects, found {stored!r:.120}")
        chat_message["tool_calls"] = [_call(call) for call in calls]
    chat_message["content"] = _content(chat_message, where)
    return chat_message


def _content(message: ChatMessage, where: str) -> str:
    """Return the content as one text; a message of tool calls or of thinking alone may have none."""
    content = message.get("content")
    if content is None and message["role"] == "assistant" and message.keys() - {"role", "content"}:
        return ""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else None
        if not isinstance(text, str):
            raise DatasetError(f"{where}: content must be text or parts of text, found {part!r:.80}")
        texts.append(text)
    return "".join(texts)


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a tool call whose arguments are an object, where they are the JSON text of one (the
    form of OpenAI's API).
    """
    call_fields = {name: value for name, value in call.items() if value is not None}
    if isinstance(function := call_fields.get("function"), dict):
        return {**call_fields, "function": _call(function)}
    arguments = {} if call_fields.get("arguments") == "" else parse_stored(call_fields.get("arguments"))
    if isinstance(arguments, dict):
        call_fields["arguments"] = arguments
    return call_fields
