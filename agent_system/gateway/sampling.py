"""What becomes of each field of a request: it is honoured, told and counted, or refused. And how a served
agent samples.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_system.gateway.errors import Refusal
from verl.protocol.generate import SamplingParams

logger = logging.getLogger(__name__)
# Fields that are read, by `wire.read_ask`, `responses.chat_body` and `completions.completion_ask`.
CHAT = frozenset((
    "model", "messages", "tools", "tool_choice", "response_format", "n", "max_tokens",
    "max_completion_tokens", "stop", "seed", "logprobs",
    "stream", "stream_options",
))  # fmt: skip
RESPONSES = frozenset((
    "model", "input", "instructions", "previous_response_id", "tools", "tool_choice", "text", "n",
    "max_output_tokens", "stop", "seed",
    "stream", "stream_options",
))  # fmt: skip
COMPLETIONS = frozenset((
    "model", "prompt", "response_format", "n", "max_tokens", "stop", "seed", "logprobs", "stream",
    "stream_options", "suffix",
))  # fmt: skip
# Fields that change what is sampled, those of vLLM among them, and values that change nothing; None: the
# value of the run.
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
_OWN = ": the engine reports the log-probability of the sampled token alone"
# Fields without which the answer would not be what is asked for: the value that changes nothing, and what the
# error says.
UNSUPPORTED: Mapping[str, tuple[Any, str]] = {
    "functions": ([], "; use tools"), "function_call": ("", "; use tools"),
    "modalities": (["text"], "; replies are text"),
    "top_logprobs": (0, _OWN), "prompt_logprobs": (None, _OWN), "logprob_token_ids": ([], _OWN),
    "echo": (False, "; the answer is the reply alone"), "background": (False, ""), "conversation": (None, ""),
    "prompt": (None, ""),
    "previous_input_messages": ([], "; use input"),
}  # fmt: skip
# Fields for the records, the costs and the speed of a server, and those that client libraries set in every
# request.
HARMLESS = frozenset((
    "user", "store", "metadata", "safety_identifier", "service_tier", "prediction", "priority", "request_id",
    "session_id", "cache_salt",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "stream_interval", "include",
    "parallel_tool_calls",
))  # fmt: skip
# All others have no effect. Of these, those with a value besides null, false, 0 and what is empty that asks
# for nothing; None: any asks.
_SAME = {
    "skip_special_tokens": True, "spaces_between_special_tokens": True, "include_reasoning": True,
    "truncation": "disabled", "web_search_options": None,
}  # fmt: skip
# what is read, or harmless, of objects
_PARTS = {
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
_KNOWN = {*SAMPLING, *MASKING, *UNSUPPORTED, *HARMLESS}
MOST_TOLD = 1000
MOST_ERRORS, SHOWN_CHARS = 20, 800  # of programs

HONOURED = ("temperature", "top_p", "top_k")
LARGEST_TOP_K = 2**31 - 1
COLDEST = 1e-6  # logits divided by less are not finite; a reply under a lower temperature is greedy


def client_sampling(asked: Mapping[str, Any], own: SamplingParams) -> SamplingParams:
    """Return the parameters of an agent, with those of `HONOURED` in `Ask.sampling`. Raise Refusal for a
    value out of range.
    """
    chosen = {name: value for name, value in asked.items() if name in HONOURED}
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


def without_effect(body: Mapping[str, Any], read: frozenset[str]) -> tuple[str, ...]:
    """Return the names of the fields of a request that ask for something and are neither `read` nor
    refused.
    """
    found = [
        name for name, value in body.items() if name not in read and name not in _KNOWN and _asks(name, value)
    ]
    for name, known in _PARTS.items():
        part = body.get(name)
        found += (
            [f"{name}.{key}" for key in part if key not in known and part[key]]
            if name in read and isinstance(part, dict)
            else []
        )
    for name in ("messages", "input"):
        given = body.get(name)
        messages = (
            [message for message in given if isinstance(message, dict)] if isinstance(given, list) else []
        )
        parts = [
            part
            for message in messages
            if isinstance(message.get("content"), list)
            for part in message["content"]
        ]
        objects = [*messages, *(part for part in parts if isinstance(part, dict))]
        found += dict.fromkeys(
            f"{name}.{key}" for one in objects for key in one if key not in _IN_MESSAGES and one[key]
        )
    return tuple(found)


class Notices:
    """Warns of fields of requests that do not apply, once of each, and of the first errors of programs."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._errors: set[str] = set()

    def overridden(self, names: Sequence[str]) -> None:
        """Warn of fields of which the run's values hold."""
        self._tell(
            names, "the values of the run are used (gateway.client_sampling=override), for all requests"
        )

    def ignored(self, names: Sequence[str]) -> None:
        """Warn of fields that have no effect."""
        self._tell(names, "this has no effect, in all requests")

    def rewritten(self, agent_id: str, why: str) -> None:
        """Say why the chat template does not go on from the tokens of an agent's conversation."""
        if (said := f"{agent_id}: {why}") not in self._told:
            self._told.add(said)
            logger.info(
                "conversations of %r are rendered anew (gateway/rewritten/template): %s", agent_id, why
            )

    def failed(self, error: str) -> None:
        """Warn of the error of a program whose episode counts."""
        if error not in self._errors and len(self._errors) < MOST_ERRORS:
            self._errors.add(error)
            said = " ".join(error.split())[:SHOWN_CHARS]
            logger.warning(
                "a program raised %s; its episode counts with the reward gateway.program_error", said
            )

    def _tell(self, names: Sequence[str], what: str) -> None:
        if (new := [name for name in names if name not in self._told]) and len(self._told) < MOST_TOLD:
            # clients choose the names
            shown = ", ".join(name[:80].encode("unicode_escape").decode() for name in new[:20])
            logger.warning("a request sets %s; %s", shown, what)
            self._told.update(new)


def _asks(name: str, value: Any) -> bool:
    return value != _SAME[name] if name in _SAME and value is not None else bool(value)
