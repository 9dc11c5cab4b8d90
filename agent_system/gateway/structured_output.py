"""The form of a reply that a request asks for, as engines get it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent_system.gateway.chat_request import ChatRequest
from agent_system.gateway.errors import Refusal
from agent_system.tools.formats.syntax import ANYTHING, ID, NAME, NUMBER, Syntax
from verl.protocol.generate import StructureError

_DATA_KEYWORDS = ("const", "enum", "default", "examples")
_SCHEMA_MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
MOST_BLANKS = 1
_REFERENCE_KEYWORDS = ("$ref", "$dynamicRef", "$recursiveRef")


def structure_of(request: ChatRequest, syntax: Syntax | None) -> str:
    """Return the form of the reply that a request asks for, as `SamplingParams.structure`.

    A forced reply is a call of one of the tools; with a schema and tools it is an answer in the
    schema or one call.

    Args:
        request: the request.
        syntax: how the agent's model writes tool calls; None: it calls none.

    Raises Refusal for a reference that engines would take for one to anything, and for a call in a
    syntax that cannot be forced.
    """
    if request.forced:
        forms = [
            _call(tool["function"], syntax)
            for tool in request.tools
            if tool["function"]["name"] in request.forced
        ]
    elif request.schema is not None:
        answer = _json_form(_rebased(request.schema, "#", "response_format"))
        forms = [answer, *(_call_or_text(tool["function"], syntax) for tool in request.tools)]
    else:
        return ""
    form = forms[0] if len(forms) == 1 else {"type": "or", "elements": forms}
    return json.dumps({"type": "structural_tag", "format": form})


def structure_refusal(request: ChatRequest, error: StructureError) -> Refusal:
    """Return the refusal of a form that the engine cannot compile."""
    return Refusal(f"no reply can follow this form: {error}", param=request.form_field)


def _json_form(schema: Any) -> Mapping[str, Any]:
    """Return the form of JSON in a schema, with few blanks in a row: a model without training may
    write no end of them.
    """
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MOST_BLANKS}


def _begin(function: Mapping[str, Any], syntax: Syntax) -> str:
    """Return the text of a call of a function up to its arguments."""
    values = {NAME: function["name"], ID: "call00000", NUMBER: "0", ANYTHING: ""}
    return syntax.before + syntax.begin + "".join(values.get(text, text) for text in syntax.header)


def _call_or_text(function: Mapping[str, Any], syntax: Syntax | None) -> Mapping[str, Any]:
    """Return the form of a call that a reply may be instead of an answer; arguments that are no
    JSON are any text.
    """
    if syntax is None or syntax.kind in ("json", "object"):
        return _call(function, syntax)
    close = syntax.close if syntax.kind == "literal" else ""
    end = close + syntax.end + syntax.after
    return {"type": "tag", "begin": _begin(function, syntax), "content": {"type": "any_text"}, "end": end}


def _call(function: Mapping[str, Any], syntax: Syntax | None) -> Mapping[str, Any]:
    parameters = function.get("parameters") or {"type": "object"}
    if syntax is None or syntax.kind not in ("json", "object"):
        raise Refusal(
            "the agent's model writes tool calls in a form that cannot be forced; use tool_choice=auto",
            param="tool_choice",
        )
    begin = syntax.before + syntax.begin
    if syntax.kind == "json":
        name = syntax.keys.name or "name"
        arguments = syntax.keys.arguments
        fields = {
            name: {"const": function["name"]},
            arguments: _rebased(parameters, f"#/properties/{arguments}", "tools"),
        }
        schema = {
            "type": "object",
            "properties": fields,
            "required": list(fields),
            "additionalProperties": False,
        }
    else:
        begin = _begin(function, syntax)
        schema = _rebased(parameters, "#", "tools")
    form = _json_form(schema)
    end = syntax.end + syntax.after
    return {"type": "tag", "begin": begin, "content": form, "end": end} if begin else form


def _rebased(schema: Any, root: str, field: str) -> Any:
    """Return a schema whose references begin at `root`, where it is put. Raise Refusal for
    references by an anchor or an address.
    """
    if isinstance(schema, list):
        return [_rebased(item, root, field) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _REFERENCE_KEYWORDS and isinstance(value, str):
            if name != "$ref" or not (value == "#" or value.startswith("#/")):
                raise Refusal(
                    f'a schema has the reference {name}={value!r:.80}; expected $ref="#" or "#/..."',
                    param=field,
                )
            moved[name] = root + value[1:]
        elif name in _SCHEMA_MAPS and isinstance(value, dict):
            moved[name] = {key: _rebased(inner, root, field) for key, inner in value.items()}
        else:
            moved[name] = value if name in _DATA_KEYWORDS else _rebased(value, root, field)
    return moved
