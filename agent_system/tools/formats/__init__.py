"""Tool calls in the text of a reply, in the syntaxes that model families write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.projection import strip_thinking, without_thinking
from agent_system.tools.formats.named import NAMED
from agent_system.tools.formats.request import OfferedTools, ToolRequest
from agent_system.tools.formats.syntax import CallSpan, Syntax

FORMATS = tuple(NAMED)
ANY_TOOL = OfferedTools()


def check_format(tool_format: str) -> None:
    """Raise AgentSystemError for an unknown format."""
    if tool_format not in ("auto", *FORMATS):
        raise AgentSystemError(f"tool_format must be auto, {', '.join(FORMATS)}, found {tool_format!r}")


def syntaxes_of(tool_format: str) -> tuple[Syntax, ...]:
    """Return the syntax with a name, alone."""
    return (NAMED[tool_format],)


def read_calls(text: str, syntaxes: Sequence[Syntax], tools: OfferedTools = ANY_TOOL) -> list[ToolRequest]:
    """Return the tool calls of a reply in their order, malformed ones included; calls inside its
    thinking are ignored.

    Args:
        text: the reply.
        syntaxes: how its calls may be written, in the order in which they are tried; the first one
            that is found is taken.
        tools: the tools that it may call.
    """
    return [request for span in _spans(strip_thinking(text), syntaxes, tools)[1] for request in span.requests]


def split_calls(
    text: str, syntaxes: Sequence[Syntax], tools: OfferedTools = ANY_TOOL
) -> tuple[str, list[ToolRequest]]:
    """Return a reply without its thinking and its tool calls, and these calls. Malformed calls stay
    in the text, which else is as it was.

    So do calls that client libraries cannot read: their arguments are no object, or have numbers or
    characters that JSON has not. Arguments are those of `read_calls`.
    """
    visible = strip_thinking(text)
    syntax, spans = _spans(visible, syntaxes, tools)
    if syntax is None:
        return without_thinking(text), []
    if not syntax.trigger:
        requests = spans[0].requests
        return (
            (syntax.rest_of(visible), requests)
            if all(r.is_readable for r in requests)
            else (without_thinking(text), [])
        )
    text_pieces: list[str] = []
    calls: list[ToolRequest] = []
    end = 0
    for span in spans:
        is_good = all(request.is_readable for request in span.requests)
        text_pieces.append(visible[end : span.begin if is_good else span.end])
        calls += span.requests if is_good else []
        end = span.end
    return ("".join([*text_pieces, visible[end:]]).strip(), calls) if calls else (without_thinking(text), [])


def with_calls(content: str, calls: Sequence[Mapping[str, Any]]) -> str:
    """Return the content of a chat message with its `tool_calls` as text."""
    texts = [
        f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>" for call in calls
    ]
    return "\n".join([*([content] if content else []), *texts])


def _spans(
    visible: str, syntaxes: Sequence[Syntax], tools: OfferedTools
) -> tuple[Syntax | None, list[CallSpan]]:
    """Return the calls in the first syntax in which all are right and name tools; else what the
    first syntax makes of them.
    """
    first: tuple[Syntax | None, list[CallSpan]] = (None, [])
    for number, syntax in enumerate(syntaxes):
        spans = list(syntax.spans(visible, tools))
        requests = [request for span in spans for request in span.requests]
        if requests and all(request.error == "" and tools.allow(request.name) for request in requests):
            return syntax, spans
        if number == 0 and requests:
            first = (syntax, spans)
    return first
