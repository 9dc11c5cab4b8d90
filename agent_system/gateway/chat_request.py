"""Requests to `/v1/chat/completions` and `/v1/completions`: JSON to `ChatRequest`. Bodies are
untrusted.

Requests to `/v1/responses` are translated to chat completions before, see `responses.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent_system.gateway.errors import Refusal
from agent_system.gateway.request_fields import (
    CHAT,
    COMPLETIONS,
    MASKING,
    NUMBERS,
    SAMPLING,
    UNSUPPORTED,
    refuse_other_routes,
    without_effect,
)

MOST_REPLIES = 128
MOST_STOPS = 16
_MASKS = (
    "masks tokens, so that what is sampled is not what is trained; set gateway.structured=free, "
    "which samples the reply without a mask, so that the client checks it, or "
    "gateway.structured=mask, or describe the form in a message"
)
# Fields of `/v1/completions` that are read as those of a chat.
_COMPLETION_FIELDS = (COMPLETIONS | {*SAMPLING, *MASKING, *UNSUPPORTED}) - {
    "prompt",
    "logprobs",
    "add_special_tokens",
}
# What becomes of a form that a request asks for, beside masking.
REFUSED = "refuse"
FREE = "free"


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for replies of an agent, whatever route it came by.

    Attributes:
        model: name of the agent.
        messages: of the chat, unchecked; empty for a completion.
        tools: as the chat template gets them; empty for none.
        n: number of replies.
        max_tokens: longest reply, in tokens; None: that of the run.
        stop: a reply ends before one of these texts.
        seed: the client's seed, or None.
        logprobs: report the log-probability of every token.
        stream: answer with server-sent events; `usage`: with counts of tokens at their end.
        sampling: fields of `SAMPLING` with a value.
        ignored: names of other fields that have no effect.
        schema: JSON schema that the reply must satisfy, or None.
        forced: names of tools, one of which the reply must call; empty for any reply.
        parallel: the reply may have several calls; only the first counts otherwise.
        prompt: of a completion: a text or token ids, which the reply continues; None for a chat.
        api: the route by which it came: `chat`, `completions` or `responses`.
    """

    model: str
    messages: Sequence[Any] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    logprobs: bool = False
    stream: bool = False
    usage: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    forced: tuple[str, ...] = ()
    parallel: bool = True
    prompt: str | tuple[int, ...] | None = None
    api: str = "chat"

    @property
    def form_field(self) -> str:
        """The field that asks for a certain form of the reply."""
        return "tool_choice" if self.forced else "response_format"


def read_body(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a body. Raise Refusal if there is none."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"the body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refusal("the body must be a JSON object")
    return body


def read_chat_request(
    body: Mapping[str, Any], structured: str = REFUSED, ignored: tuple[str, ...] | None = None
) -> ChatRequest:
    """Return the request in a body.

    Args:
        body: of a request to `/v1/chat/completions`.
        structured: what becomes of a form that it asks for, see `Responder.structured`.
        ignored: fields without effect, where the body was made from another one; None: those of
            this body.

    Raises Refusal naming the field that is wrong or not supported.
    """
    if ignored is None:
        refuse_other_routes(body, "/v1/chat/completions")
    messages = _field(body, "messages", list, None)
    if not messages:
        raise Refusal("messages must be a list with at least one message", param="messages")
    return replace(
        _read_fields(body, structured, without_effect(body, CHAT) if ignored is None else ignored),
        messages=messages,
    )


def _read_fields(body: Mapping[str, Any], structured: str, ignored: tuple[str, ...]) -> ChatRequest:
    """Return the request in a body without its messages; arguments and errors are those of
    `read_chat_request`.
    """
    _refuse_unsupported(body, structured)
    schema = _schema(body, structured)
    tools, forced = _offered_tools(body, _tools(body), structured)
    # OpenAI's older and newer name of one field.
    limits = [
        value
        for name in ("max_tokens", "max_completion_tokens")
        if (value := _field(body, name, int, None, least=1)) is not None
    ]
    return ChatRequest(
        model=_field(body, "model", str, ""),
        tools=tools,
        n=_field(body, "n", int, 1, least=1, most=MOST_REPLIES),
        max_tokens=min(limits, default=None),
        stop=_stop(body),
        seed=_field(body, "seed", int, None),
        logprobs=_field(body, "logprobs", bool, False),
        stream=_field(body, "stream", bool, False),
        usage=_field(_field(body, "stream_options", dict, None) or {}, "include_usage", bool, False),
        sampling=_sampling(body),
        ignored=ignored,
        schema=schema,
        forced=forced,
        parallel=_field(body, "parallel_tool_calls", bool, True),
    )


def _sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `SAMPLING` that ask for a change. Raise Refusal for a value that has no
    meaning, though the run's values may replace it.
    """
    for name, (least, most) in NUMBERS.items():
        value = body.get(name)
        if value is not None and (type(value) not in (int, float) or not least <= value <= most):
            bounds = f"from {least}" + f" to {most}" * (most < math.inf)
            raise Refusal(f"{name} must be a number {bounds}, found {json.dumps(value)[:80]}", param=name)
    biases = _field(body, "logit_bias", dict, {})
    if not all(type(bias) in (int, float) for bias in biases.values()):
        raise Refusal("logit_bias must be an object whose values are numbers", param="logit_bias")
    return {
        name: body[name]
        for name, same in SAMPLING.items()
        if body.get(name) is not None and body[name] != same
    }


def read_completion_requests(body: Mapping[str, Any], structured: str) -> list[ChatRequest]:
    """Return a request for each prompt of a body; arguments and errors are those of
    `read_chat_request`.
    """
    refuse_other_routes(body, "/v1/completions")
    if body.get("suffix"):
        raise Refusal("suffix is not supported; the reply follows the prompt", param="suffix")
    if body.get("add_special_tokens") is False:
        raise Refusal(
            "add_special_tokens=false is not supported; send the prompt as token ids",
            param="add_special_tokens",
        )
    fields = {name: body[name] for name in _COMPLETION_FIELDS if name in body}
    # As many replies as are returned: none is chosen among others.
    if fields.get("best_of") == fields.get("n"):
        fields.pop("best_of", None)
    request = _read_fields(fields, structured, without_effect(body, COMPLETIONS))
    request = replace(request, logprobs=_logprobs(body.get("logprobs")), api="completions")
    prompts = body.get("prompt")
    if not (isinstance(prompts, list) and prompts and isinstance(prompts[0], (str, list))):
        prompts = [prompts]
    if len(prompts) * request.n > MOST_REPLIES:
        raise Refusal(
            f"prompt has {len(prompts)} entries, {len(prompts) * request.n} replies with n={request.n}; "
            f"at most {MOST_REPLIES} are made for a request, so send several",
            param="prompt",
        )
    return [replace(request, prompt=_prompt(prompt)) for prompt in prompts]


def _prompt(prompt: Any) -> str | tuple[int, ...]:
    """Return a prompt: a text or token ids. Raise Refusal for anything else."""
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int and token >= 0 for token in prompt):
        return tuple(prompt)
    raise Refusal(
        f"prompt must be a text or a list of token ids, which are not empty, found {json.dumps(prompt)[:80]}",
        param="prompt",
    )


def _logprobs(value: Any) -> bool:
    """Return whether the log-probability of every token is asked for."""
    if value is None or value is False:
        return False
    if value is True or (type(value) is int and value in (0, 1)):
        return True
    raise Refusal(
        f"logprobs must be 0 or 1, found {json.dumps(value)[:80]}: the engine reports the "
        "log-probability of the sampled token alone",
        param="logprobs",
    )


def _refuse_unsupported(body: Mapping[str, Any], structured: str) -> None:
    if name := next((name for name in MASKING if body.get(name)), None):
        form = "response_format (text.format in /v1/responses) for a form of the reply"
        why = f"{_MASKS}, and use {form}" if structured == REFUSED else f"is not supported; use {form}"
        raise Refusal(f"{name} {why}", param=name)
    for name, (same, why) in UNSUPPORTED.items():
        value = body.get(name)
        if value is not None and value is not False and value != same:
            raise Refusal(f"{name} is not supported{why}", param=name)


def _schema(body: Mapping[str, Any], structured: str) -> Mapping[str, Any] | None:
    shape = body.get("response_format")
    kind = shape.get("type") if isinstance(shape, dict) else None
    if shape is None or kind == "text":
        return None
    if structured == REFUSED and kind is not None:
        raise Refusal(f"response_format {kind!r} {_MASKS}", param="response_format")
    if kind == "json_object":
        return {"type": "object"}
    wrapper = shape.get("json_schema") if isinstance(shape, dict) and kind == "json_schema" else None
    schema = wrapper.get("schema") if isinstance(wrapper, dict) else None
    if not isinstance(schema, dict):
        raise Refusal(
            'response_format must be {"type": "text"}, {"type": "json_object"}, or {"type": "json_schema", '
            '"json_schema": {"schema": ...}} '
            f"with an object as the schema, found {json.dumps(shape)[:80]}",
            param="response_format",
        )
    return schema


def _offered_tools(
    body: Mapping[str, Any], tools: list[Mapping[str, Any]], structured: str
) -> tuple[list[Mapping[str, Any]], tuple[str, ...]]:
    """Return the tools that `tool_choice` leaves to the reply, and the names of those of which it
    must call one.
    """
    choice = body.get("tool_choice")
    if choice is None or choice in ("auto", "none"):
        return [] if choice == "none" else tools, ()
    names = [tool["function"]["name"] for tool in tools]
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        mode, names = _allowed(choice.get("allowed_tools"), names)
        tools = [tool for tool in tools if tool["function"]["name"] in names]
        if mode == "auto":
            return tools, ()
    elif choice != "required":
        function = choice.get("function") if isinstance(choice, dict) else None
        names = [name for name in names if isinstance(function, dict) and name == function.get("name")]
    if not names:
        raise _wrong_choice(choice, tools)
    if structured == REFUSED:
        value = json.dumps(choice)[:80]
        raise Refusal(f"tool_choice={value} {_MASKS}; expected auto or none", param="tool_choice")
    return tools, tuple(dict.fromkeys(names))


def _allowed(allowed: Any, names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the mode and the names of `allowed_tools`, a choice among the tools with these names."""
    mode = allowed.get("mode") if isinstance(allowed, dict) else None
    listed = allowed.get("tools") if isinstance(allowed, dict) else None
    functions = (
        [tool.get("function") if isinstance(tool, dict) else None for tool in listed or ()]
        if isinstance(listed, list)
        else []
    )
    chosen_names = [function.get("name") if isinstance(function, dict) else None for function in functions]
    if (
        mode not in ("auto", "required")
        or not chosen_names
        or not all(isinstance(name, str) and name in names for name in chosen_names)
    ):
        raise Refusal(
            "tool_choice of the type allowed_tools must have the mode auto or required and a list "
            f"of at least one of the tools ({', '.join(names)[:200] or 'there are none'}), found "
            f"{json.dumps(allowed)[:200]}",
            param="tool_choice",
        )
    return str(mode), [str(name) for name in chosen_names]


def _wrong_choice(choice: Any, tools: Sequence[Mapping[str, Any]]) -> Refusal:
    names = ", ".join(tool["function"]["name"] for tool in tools)[:200] or "there are none"
    return Refusal(
        "tool_choice must be auto, none, required, allowed_tools, or name one of the tools "
        f"({names}), found {json.dumps(choice)[:80]}",
        param="tool_choice",
    )


def _field(
    body: Mapping[str, Any],
    name: str,
    kind: type,
    default: Any,
    *,
    least: int | None = None,
    most: int | None = None,
) -> Any:
    value = body.get(name)
    if value is None:
        return default
    is_kind = type(value) is kind  # a bool is no int
    too_small = is_kind and least is not None and value < least
    too_large = is_kind and most is not None and value > most
    if not is_kind or too_small or too_large:
        bounds = f" from {least}" * (least is not None) + f" to {most}" * (most is not None)
        raise Refusal(f"{name} must be {kind.__name__}{bounds}, found {json.dumps(value)[:80]}", param=name)
    return value


def _stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    value = body.get("stop")
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if (
        not isinstance(texts, list)
        or len(texts) > MOST_STOPS
        or not all(isinstance(text, str) and text for text in texts)
    ):
        raise Refusal(
            f"stop must be a text or a list of at most {MOST_STOPS} texts that are not empty", param="stop"
        )
    # no reply has half a surrogate pair, and engines that get texts as UTF-8 fail
    if not all(text.isascii() or text == text.encode("utf-8", "replace").decode() for text in texts):
        raise Refusal("stop has half a surrogate pair, which no reply has", param="stop")
    return tuple(texts)


def _tools(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tools; fields of their functions that are null are left out."""
    tools = _field(body, "tools", list, [])
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Refusal(
                'every tool must be {"type": "function", "function": {"name": ..., "parameters": ...}}',
                param="tools",
            )
        if not function["name"] or not isinstance(function.get("parameters") or {}, dict):
            raise Refusal(
                "a tool must have a name and an object as its parameters, found "
                f"{json.dumps(function)[:200]}",
                param="tools",
            )
    return [{**tool, "function": _without_nulls(tool["function"])} for tool in tools]


def _without_nulls(function: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in function.items() if value is not None}
