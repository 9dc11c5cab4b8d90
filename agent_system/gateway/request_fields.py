"""What becomes of each field of a request: it is honoured, reported and counted, or refused."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from agent_system.gateway.errors import Refusal

OTHER_ROUTE = "unsupported_parameter"  # code of the error of a field
logger = logging.getLogger(__name__)
# Fields that are read, by `read_chat_request`, `responses.chat_body` and `read_completion_request`.
CHAT = frozenset((
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "n", "max_tokens",
    "max_completion_tokens", "stop", "seed", "logprobs",
    "stream", "stream_options",
))  # fmt: skip
RESPONSES = frozenset((
    "model", "input", "instructions", "previous_response_id", "tools", "tool_choice", "parallel_tool_calls",
    "text", "n", "max_output_tokens", "stop", "seed",
    "stream", "stream_options",
))  # fmt: skip
COMPLETIONS = frozenset((
    "model", "prompt", "response_format", "n", "max_tokens", "stop", "seed", "logprobs", "stream",
    "stream_options", "suffix",
))  # fmt: skip
# Names that fields have in another route, which would have no effect, and the name in this one.
OF_OTHER_ROUTES: Mapping[str, Mapping[str, str]] = {
    "/v1/chat/completions": {
        "input": "messages", "instructions": "a system message", "max_output_tokens": "max_completion_tokens",
        "previous_response_id": "messages", "text": "response_format",
    },
    "/v1/responses": {
        "messages": "input", "max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens",
        "response_format": "text.format", "logprobs": 'include=["message.output_text.logprobs"]',
    },
    "/v1/completions": {
        "messages": "prompt", "input": "prompt", "tools": "/v1/chat/completions",
        "max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens",
    },
}  # fmt: skip
# Numbers of `SAMPLING` that the run's values may replace: the least and the largest.
NUMBERS: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 100), "top_p": (0, 1), "min_p": (0, 1), "typical_p": (0, 1),
    "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2), "repetition_penalty": (0, math.inf),
    "top_k": (-1, math.inf), "min_tokens": (0, math.inf), "best_of": (1, math.inf),
}  # fmt: skip
# Fields that change what is sampled, those of vLLM among them, and values that change nothing;
# None: the value of the run.
SAMPLING: Mapping[str, Any] = {
    "temperature": None, "top_p": None, "top_k": None, "min_p": 0, "typical_p": 1, "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1, "repetition_detection": None, "length_penalty": 1, "logit_bias": {},
    "min_tokens": 0, "ignore_eos": False,
    "stop_token_ids": [], "use_beam_search": False, "best_of": 1, "thinking_token_budget": None,
    "chat_template": None,
    "chat_template_kwargs": {}, "documents": [], "add_generation_prompt": True,
    "continue_final_message": False,
    "add_special_tokens": False, "truncate_prompt_tokens": None, "truncation_side": None,
    "watermarking": False, "vllm_xargs": {},
}  # fmt: skip
# Fields of engines that mask tokens; requests ask for a form by `response_format`.
MASKING = (
    "guided_json", "guided_choice", "guided_regex", "guided_grammar", "structured_outputs", "structural_tag",
    "regex", "ebnf", "grammar",
    "json_schema", "allowed_token_ids", "bad_words", "logits_processors",
)  # fmt: skip
_SAMPLED_TOKEN_ONLY = ": the engine reports the log-probability of the sampled token alone"
# Fields without which the answer would not be what is asked for: the value that changes nothing,
# and what the error says.
UNSUPPORTED: Mapping[str, tuple[Any, str]] = {
    "functions": ([], "; use tools"), "function_call": ("", "; use tools"),
    "modalities": (["text"], "; replies are text"),
    "top_logprobs": (0, _SAMPLED_TOKEN_ONLY), "prompt_logprobs": (None, _SAMPLED_TOKEN_ONLY),
    "logprob_token_ids": ([], _SAMPLED_TOKEN_ONLY),
    "echo": (False, "; the answer is the reply alone"), "background": (False, ""), "conversation": (None, ""),
    "prompt": (None, ""),
    "previous_input_messages": ([], "; use input"),
}  # fmt: skip
# Fields for the records, the costs and the speed of a server, and those that client libraries set
# in every request.
HARMLESS = frozenset((
    "user", "store", "metadata", "safety_identifier", "service_tier", "prediction", "priority", "request_id",
    "session_id", "cache_salt",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "stream_interval", "include",
))  # fmt: skip
# All others have no effect. Of these, those with a value besides null, false, 0 and what is empty
# that asks for nothing; None: any asks.
_SAME = {
    "skip_special_tokens": True, "spaces_between_special_tokens": True, "include_reasoning": True,
    "truncation": "disabled", "web_search_options": None,
}  # fmt: skip
# Keys of objects that are read, or harmless.
_READ_KEYS = {
    "text": ("format",),
    "stream_options": ("include_usage", "include_obfuscation"),
}
# Fields of messages, items and their parts that are read, or harmless.
_IN_MESSAGES = frozenset((
    "role", "content", "type", "text", "name", "tool_calls", "tool_call_id", "id", "call_id", "arguments",
    "output", "status", "summary",
    "encrypted_content", "refusal", "annotations", "logprobs", "reasoning_content", "reasoning",
    "cache_control",
))  # fmt: skip
_HANDLED_FIELDS = {*SAMPLING, *MASKING, *UNSUPPORTED, *HARMLESS}
MOST_REPORTED = 1000
# Errors of programs that are reported, and characters of each.
MOST_ERRORS = 20
SHOWN_CHARS = 800


def without_effect(body: Mapping[str, Any], read: frozenset[str]) -> tuple[str, ...]:
    """Return the names of the fields of a request that ask for something and are neither `read` nor
    refused.
    """
    names = [
        name
        for name, value in body.items()
        if name not in read and name not in _HANDLED_FIELDS and _asks(name, value)
    ]
    for name, keys in _READ_KEYS.items():
        value = body.get(name)
        if name in read and isinstance(value, dict):
            names += [f"{name}.{key}" for key in value if key not in keys and value[key]]
    for name in ("messages", "input"):
        entries = body.get(name) if isinstance(body.get(name), list) else []
        messages = [message for message in entries if isinstance(message, dict)]
        contents = [message["content"] for message in messages if isinstance(message.get("content"), list)]
        content_parts = [entry for content in contents for entry in content if isinstance(entry, dict)]
        # a dictionary keeps the order, and each name once
        names += dict.fromkeys(
            f"{name}.{key}"
            for entry in (*messages, *content_parts)
            for key in entry
            if key not in _IN_MESSAGES and entry[key]
        )
    return tuple(names)


def refuse_other_routes(body: Mapping[str, Any], route: str) -> None:
    """Raise Refusal for a field that has another name in this route, `/v1/responses` for example."""
    for name, here in OF_OTHER_ROUTES[route].items():
        if body.get(name):
            raise Refusal(f"{name} is no field of {route}; use {here}", code=OTHER_ROUTE, param=name)


class Notices:
    """Warns of fields of requests that do not apply, once of each, and of the first errors of
    programs.
    """

    def __init__(self) -> None:
        self._reported: set[str] = set()
        self._errors: set[str] = set()

    def overridden(self, names: Sequence[str]) -> None:
        """Warn of fields of which the run's values hold."""
        self._report(
            names, "the values of the run are used (gateway.client_sampling=override), for all requests"
        )

    def ignored(self, names: Sequence[str]) -> None:
        """Warn of fields that have no effect."""
        self._report(names, "this has no effect, in all requests")

    def rewritten(self, agent_id: str, difference: str) -> None:
        """Say why the chat template does not go on from the tokens of an agent's conversation."""
        notice = f"{agent_id}: {difference}"
        if notice not in self._reported:
            self._reported.add(notice)
            logger.info(
                "conversations of %r are rendered anew (gateway/rewritten/template): %s", agent_id, difference
            )

    def failed(self, error: str) -> None:
        """Warn of the error of a program whose episode counts."""
        if error not in self._errors and len(self._errors) < MOST_ERRORS:
            self._errors.add(error)
            line = " ".join(error.split())[:SHOWN_CHARS]
            logger.warning(
                "a program raised %s; its episode counts with the reward gateway.program_error", line
            )

    def _report(self, names: Sequence[str], consequence: str) -> None:
        new = [name for name in names if name not in self._reported]
        if new and len(self._reported) < MOST_REPORTED:
            # clients choose the names: they are cut, and cannot break a line of the log
            printable = ", ".join(name[:80].encode("unicode_escape").decode() for name in new[:20])
            logger.warning("a request sets %s; %s", printable, consequence)
            self._reported.update(new)


def _asks(name: str, value: Any) -> bool:
    return value != _SAME[name] if name in _SAME and value is not None else bool(value)
