"""Requests to `/v1/completions`: a prompt without a chat template. Bodies are untrusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agent_system.gateway.errors import Refusal
from agent_system.gateway.sampling import COMPLETIONS, MASKING, SAMPLING, UNSUPPORTED, without_effect
from agent_system.gateway.wire import Ask, read_fields

_FIELDS = (COMPLETIONS | {*SAMPLING, *MASKING, *UNSUPPORTED}) - {"prompt", "logprobs", "add_special_tokens"}


def completion_ask(body: Mapping[str, Any], forms: str) -> Ask:
    """Return the request in a body; arguments and errors are those of `wire.read_ask`."""
    if body.get("suffix"):
        raise Refusal("suffix is not supported; the reply follows the prompt", param="suffix")
    if body.get("add_special_tokens") is False:
        raise Refusal(
            "add_special_tokens=false is not supported; send the prompt as token ids",
            param="add_special_tokens",
        )
    fields = {name: body[name] for name in _FIELDS if name in body}
    if fields.get("best_of") == fields.get("n"):
        fields.pop("best_of", None)
    ask = read_fields(fields, forms, without_effect(body, COMPLETIONS))
    return replace(ask, prompt=_prompt(body.get("prompt")), logprobs=_logprobs(body.get("logprobs")))


def _prompt(prompt: Any) -> str | tuple[int, ...]:
    """Return the text or the token ids of a prompt, which may be in a list with no other one."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        if len(prompt) > 1:
            raise Refusal(
                f"prompt has {len(prompt)} entries; one is answered, so send a request for each",
                param="prompt",
            )
        prompt = prompt[0]
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
        f"logprobs must be 0 or 1, found {json.dumps(value)[:80]}: the engine reports the log-probability of "
        "the sampled token alone",
        param="logprobs",
    )
