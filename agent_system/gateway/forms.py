"""The form of a reply that a request asks for, as engines get it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent_system.gateway.errors import Refusal
from agent_system.gateway.wire import Ask
from agent_system.tools.formats.syntax import ANYTHING, ID, NAME, NUMBER, Syntax
from verl.protocol.generate import StructureError

_DATA = ("const", "enum", "default", "examples")
_NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def structure_of(ask: Ask, syntax: Syntax | None) -> str:
    """Return the form of the reply that a request asks for, as `SamplingParams.structure`.

    Args:
        ask: the request.
        syntax: how the agent's model writes tool calls; None: it calls none.

    Raises Refusal for a reference that engines would take for one to anything, and for a call in a syntax that is no JSON.
    """
    calls = [_call(tool["function"], syntax) for tool in ask.tools if tool["function"]["name"] in ask.forced]
    if calls:
        form: Mapping[str, Any] = calls[0] if len(calls) == 1 else {"type": "or", "elements": calls}
    elif ask.schema is not None:
        form = {"type": "json_schema", "json_schema": _referring(ask.schema, "#", "response_format")}
    else:
        return ""
    return json.dumps({"type": "structural_tag", "format": form})


def impossible(ask: Ask, error: StructureError) -> Refusal:
    """Return the refusal of a form that the engine cannot compile."""
    return Refusal(f"no reply can follow this form: {error}", param=ask.form_field)


def _call(function: Mapping[str, Any], syntax: Syntax | None) -> Mapping[str, Any]:
    parameters = function.get("parameters") or {"type": "object"}
    if syntax is None or syntax.kind not in ("json", "object"):
        raise Refusal("the agent's model writes tool calls in a form that cannot be forced; use tool_choice=auto", param="tool_choice")
    begin = syntax.before + syntax.begin
    if syntax.kind == "json":
        name, arguments = syntax.keys.name or "name", syntax.keys.arguments
        fields = {name: {"const": function["name"]}, arguments: _referring(parameters, f"#/properties/{arguments}", "tools")}
        schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    else:
        holes = {NAME: function["name"], ID: "call00000", NUMBER: "0", ANYTHING: ""}
        begin += "".join(holes.get(part, part) for part in syntax.header)
        schema = _referring(parameters, "#", "tools")
    form = {"type": "json_schema", "json_schema": schema}
    end = syntax.end + syntax.after
    return {"type": "tag", "begin": begin, "content": form, "end": end} if begin else form


def _referring(schema: Any, root: str, field: str) -> Any:
    """Return a schema whose references begin at `root`, where it is put. Raise Refusal for references by an anchor or an address."""
    if isinstance(schema, list):
        return [_referring(item, root, field) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _REFERENCES and isinstance(value, str):
            if name != "$ref" or not (value == "#" or value.startswith("#/")):
                raise Refusal(f'a schema has the reference {name}={value!r:.80}; expected $ref="#" or "#/..."', param=field)
            moved[name] = root + value[1:]
        elif name in _NAMED and isinstance(value, dict):
            moved[name] = {key: _referring(inner, root, field) for key, inner in value.items()}
        else:
            moved[name] = value if name in _DATA else _referring(value, root, field)
    return moved
