"""How a served agent samples: as the client asks, and in the form that it asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agent_system.gateway.errors import Refusal
from agent_system.gateway.wire import Ask
from verl.protocol.generate import SamplingParams, StructureError

HONOURED = ("temperature", "top_p", "top_k")
LARGEST_TOP_K = 2**31 - 1
COLDEST = 1e-6  # logits divided by less are not finite; a reply under a lower temperature is greedy


def client_sampling(ask: Ask, own: SamplingParams) -> SamplingParams:
    """Return the parameters of an agent, with those of `HONOURED` in a request. Raise Refusal for a value out of range."""
    chosen = {name: value for name, value in ask.sampling.items() if name in HONOURED}
    for name, value in chosen.items():
        number = type(value) is int or (type(value) is float and name != "top_k")
        wanted = {
            "temperature": number and 0 <= value <= 100,
            "top_p": number and 0 < value <= 1,
            "top_k": number and (1 <= value <= LARGEST_TOP_K or value == -1),
        }
        if not wanted[name]:
            expected = {
                "temperature": "a number from 0 to 100",
                "top_p": "a number above 0, at most 1",
                "top_k": f"an integer from 1 to {LARGEST_TOP_K}, or -1",
            }
            raise Refusal(f"{name} must be {expected[name]}, found {json.dumps(value)[:80]}", param=name)
    changed = replace(own, **chosen)
    return changed if changed.temperature >= COLDEST else replace(changed, temperature=0.0)


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
