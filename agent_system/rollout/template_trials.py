"""Tools and calls that no one else writes, with which a chat template is tried."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_system.tools.formats import OfferedTools, Syntax, read_calls
from agent_system.tools.formats.named import NAMED
from agent_system.tools.formats.syntax import TrialCall


def _schema(name: str, properties: Mapping[str, str]) -> dict[str, Any]:
    fields = {key: {"type": kind, "description": key} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": fields, "required": list(fields)}
    return {
        "type": "function",
        "function": {"name": name, "description": f"Does {name}.", "parameters": parameters},
    }


FIRST = TrialCall("zq_tool_a", {"zq_a": "zq value a", "zq_b": 73194, "zq_c": "zq value c"}, "zqid00001")
SECOND = TrialCall("zq_tool_b", {"zq_d": "zq value d"}, "zqid00002")
_HARD_TYPES = {
    "zq_a": "string", "zq_b": "string", "zq_c": "string", "zq_d": "string", "zq_e": "integer",
    "zq_f": "number", "zq_g": "boolean",
    "zq_h": "object", "zq_i": "array", "zq_j": "integer",
}  # fmt: skip
HARD = TrialCall(
    "zq_tool_c",
    {
        "zq_a": "  red, \"ripe\" ('2') [3] {4}: a=b",
        "zq_b": "def f(x):\n    return x < 1 & x > 0\n",
        "zq_c": "crème 日本 \U0001f600",
        "zq_d": "C:\\new\\table 12",
        "zq_e": -7,
        "zq_f": 2.5,
        "zq_g": True,
        "zq_h": {"zq k": ["a, b", {"n": None}], "e": {}},
        "zq_i": [1, "two, (2)", False],
        "zq_j": None,
    },
    "zqid00003",
)
TOOLS = [
    _schema(FIRST.name, {"zq_a": "string", "zq_b": "integer", "zq_c": "string"}),
    _schema(SECOND.name, {"zq_d": "string"}),
    _schema(HARD.name, _HARD_TYPES),
]
OFFERED = OfferedTools.of(TOOLS)


@dataclass(frozen=True, slots=True)
class CallForm:
    """How calls are given to a template, and how its model writes them.

    Attributes:
        as_text: arguments as text of JSON, else as an object.
        empty: content of a message that only calls: `""` or None.
        syntax: how the model writes calls.
        most: the largest number of calls in one message that it shows: 1, or 2 for any number.
        is_exact: also texts with quotes, brackets and line ends come back as they were.
        numbered: ids are `functions.NAME:NUMBER`.
    """

    as_text: bool
    empty: str | None
    syntax: Syntax
    most: int = 2
    is_exact: bool = True
    numbered: bool = False


def in_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose text is a list of parts."""
    text = message.get("content")
    return {**message, "content": [{"type": "text", "text": text}] if isinstance(text, str) else text}


def numbered_call(call: TrialCall, place: int) -> TrialCall:
    """Return a call with the id that it has at a place of a conversation where ids hold names and
    numbers.
    """
    return replace(call, id=f"functions.{call.name}:{place}")


def with_arguments(call: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    """Return a call whose arguments are an object, or a text of JSON."""
    function = call["function"]
    arguments = function["arguments"]
    if as_text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def reads(syntax: Syntax, text: str, calls: Sequence[TrialCall]) -> bool:
    """Return whether a syntax reads these calls from a text, and nothing else."""
    requests = read_calls(text, [syntax], OFFERED)
    return [(r.name, r.arguments, r.error) for r in requests] == [
        (c.name, dict(c.arguments), "") for c in calls
    ]


def mentioned(source: str, prompt: str, tokens: Collection[str]) -> tuple[Syntax, ...]:
    """Return the syntaxes whose marks a template's prompt or the vocabulary names, and the form of
    JSON that its source names.
    """
    named = [syntax for syntax in NAMED.values() if syntax.trigger and syntax.trigger in prompt]
    named += [syntax for syntax in NAMED.values() if syntax.trigger in tokens and syntax not in named]
    if '"parameters"' in source:
        return (NAMED["llama3"], *named)
    return (NAMED["json"], *named) if named or '"arguments"' in source else ()


def mentioned_with_tools(prompt: str, without: str, first: Syntax) -> list[Syntax]:
    """Return the syntaxes, besides a template's first one, whose marks its prompt with tools has and
    the one without them has not: Phi-4-mini asks for `functools[...]` and shows earlier calls
    without it.
    """
    return [
        syntax
        for syntax in NAMED.values()
        if syntax.trigger not in ("", first.trigger)
        and syntax.trigger in prompt
        and syntax.trigger not in without
    ]
