"""The form of a reply that a request asks for, as engines get it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent_system.gateway.errors import Refusal
from agent_system.gateway.wire import Ask
from verl.protocol.generate import StructureError


def structure_of(ask: Ask, tool_format: str) -> str:
    """Return the form of the reply that a request asks for, as `SamplingParams.structure`.

    Args:
        ask: the request.
        tool_format: how the agent's model writes tool calls, see `agent_system.tools.formats`.
    """
    calls = [_call(tool["function"], tool_format) for tool in ask.tools if tool["function"]["name"] in ask.forced]
    if calls:
        form: Mapping[str, Any] = calls[0] if len(calls) == 1 else {"type": "or", "elements": calls}
    elif ask.schema is not None:
        form = {"type": "json_schema", "json_schema": ask.schema}
    else:
        return ""
    return json.dumps({"type": "structural_tag", "format": form})


def impossible(ask: Ask, error: StructureError) -> Refusal:
    """Return the refusal of a form that the engine cannot compile."""
    return Refusal(f"no reply can follow this form: {error}", param=ask.form_field)


def _call(function: Mapping[str, Any], tool_format: str) -> Mapping[str, Any]:
    arguments = "parameters" if tool_format == "llama3" else "arguments"
    parameters = function.get("parameters") or {"type": "object"}
    shared = {}
    if isinstance(parameters, dict):  # references to "#/$defs/..." begin at the root
        shared = {name: parameters[name] for name in ("$defs", "definitions") if name in parameters}
        parameters = {name: value for name, value in parameters.items() if name not in shared}
    fields = {"name": {"const": function["name"]}, arguments: parameters}
    schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False, **shared}
    form = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": "<tool_call>\n", "content": form, "end": "\n</tool_call>"} if tool_format == "hermes" else form
