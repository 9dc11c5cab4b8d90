"""The conversations of one agent in one episode: from a request to its prompt, from sampled replies
to the answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent_system.gateway.chat_request import ChatRequest
from agent_system.gateway.completion import Choice, Completion
from agent_system.gateway.errors import Refusal
from agent_system.gateway.prompt_continuation import (
    AnsweredPrefix,
    BuiltPrompt,
    PrefixStore,
    PromptContinuation,
)
from agent_system.gateway.structured_output import structure_of
from agent_system.gateway.template import too_long
from agent_system.projection import closed_thinking, strip_thinking, thoughts, without_thinking
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.call import Call, Reply
from agent_system.tools.formats import OfferedTools, split_calls
from verl.protocol.generate import Generation, SamplingParams


class AgentConversations:
    """The conversations of an agent."""

    def __init__(self, continuation: PromptContinuation, most: int | None = None) -> None:
        """Start without any; the last `most` are kept, or all."""
        self._template = continuation.template
        self._continuation = continuation
        self._prefixes = PrefixStore(most)

    def prompt_of(self, request: ChatRequest) -> BuiltPrompt:
        """Return the prompt of a request. Raise Refusal when it cannot be built or is too long."""
        binding = self._template.binding
        if request.logprobs and not isinstance(binding, AgentBinding):
            raise Refusal(
                f"{binding.agent_id!r} is behind an API, which gives no log-probabilities", param="logprobs"
            )
        if request.prompt is not None:
            prompt = self._template.completion_prompt(request.prompt)
            built = BuiltPrompt(prompt, (), prompt.messages)
        else:
            normalizer = self._template.normalizer
            tools = normalizer.clean_json(list(request.tools))
            messages = normalizer.normalize(request.messages)
            built = self._continuation.build(messages, tools, self._prefixes)
        if isinstance(binding, AgentBinding) and len(built.prompt.ids) > binding.max_prompt_length:
            raise too_long(binding, f"{len(built.prompt.ids)} tokens")
        return built

    def sampling(
        self, request: ChatRequest, defaults: SamplingParams
    ) -> tuple[SamplingParams, tuple[str, ...]]:
        """Return the parameters of a request, from those of the run, and the client's that do not
        apply.
        """
        values_of_the_run = {
            "chat_template_kwargs": getattr(self._template.binding, "template_kwargs", {}),
            "stop_token_ids": list(defaults.stop_token_ids),
        }
        overridden = tuple(
            name
            for name, value in request.sampling.items()
            if values_of_the_run.get(name, getattr(defaults, name, None)) != value
        )
        longest = defaults.max_tokens
        if request.max_tokens is not None:
            longest = min(request.max_tokens, longest)
        return replace(defaults, max_tokens=longest, stop=(*defaults.stop, *request.stop)), overridden

    def structure(self, request: ChatRequest, fix: str) -> str:
        """Return the form of the reply that a request asks for, as `SamplingParams.structure`.

        Raises Refusal, with the `fix`, if the agent's engine cannot make a reply follow one.
        """
        binding = self._template.binding
        syntaxes = self._template.syntaxes
        structure = structure_of(request, syntaxes[0] if syntaxes else None)
        if structure and not binding.structured:
            why = (
                f"has an engine that cannot make a reply follow a schema; {fix}, or"
                if isinstance(binding, AgentBinding)
                else "is behind an API, through which the form of a reply is not passed on;"
            )
            raise Refusal(
                f"{binding.agent_id!r} {why} describe the form in a message", param=request.form_field
            )
        return structure

    def answer(
        self, request: ChatRequest, built: BuiltPrompt, replies: Sequence[tuple[Call, Reply]], name: str
    ) -> Completion:
        """Return the answer made of sampled replies, and remember them as conversations that may go
        on.

        Args:
            request: the request.
            built: its prompt.
            replies: of `ProgramCalls.reply_to`.
            name: id of the answer.
        """
        return Completion(
            id=name,
            model=self._template.binding.agent_id,
            created=int(time.time()),
            # as a server has counted them
            prompt_tokens=getattr(replies[0][1].generation, "prompt_tokens", len(built.prompt.ids)),
            choices=[self._choice(request, built, call, reply) for call, reply in replies],
        )

    def _choice(self, request: ChatRequest, built: BuiltPrompt, call: Call, reply: Reply) -> Choice:
        generation = reply.generation
        text = reply.text
        if ends := [index for stop in request.stop if (index := text.find(stop)) >= 0]:
            text = text[: min(ends)]
        finish = "length" if generation.stop_reason == "length" else "stop"
        tokens = getattr(generation, "reply_tokens", len(generation.token_ids))
        logprobs = self._logprobs(generation) if request.logprobs else None
        # the prompt of a text completion begins no conversation
        if request.prompt is not None:
            return Choice(text, (), "", finish, tokens, logprobs)
        if request.tools and not self._is_schema_answer(request, text):
            tools = OfferedTools.of(request.tools)
            content, parsed_calls = split_calls(text, self._template.syntaxes, tools)
        else:
            content = without_thinking(text)
            parsed_calls = []
        # a template that shows one call for each reply cannot continue a reply with more
        most_calls = self._template.most_calls if request.parallel else 1
        tool_calls: list[dict[str, Any]] = [
            {"name": parsed.name, "arguments": parsed.arguments or {}, "id": parsed.id}
            for parsed in parsed_calls[:most_calls]
        ]
        self._remember(request, built, call, generation, text, content, tool_calls)
        named_calls = [
            (f"call_{call.turn}_{call.number}_{index}", tool_call["name"], json.dumps(tool_call["arguments"]))
            for index, tool_call in enumerate(tool_calls)
        ]
        thinking = "\n\n".join(thoughts(text))
        return Choice(
            content, named_calls, thinking, "tool_calls" if tool_calls else finish, tokens, logprobs
        )

    def _remember(
        self,
        request: ChatRequest,
        built: BuiltPrompt,
        call: Call,
        generation: Generation,
        text: str,
        content: str,
        tool_calls: Sequence[dict[str, Any]],
    ) -> None:
        """Store a request with its reply as a conversation that may go on."""
        normalizer = self._template.normalizer
        with_thinking = closed_thinking(text)
        thought = self._template.said_with_calls(text, content) if tool_calls else with_thinking
        calls_before = sum(len(message.tool_calls) for message in built.messages)
        message, template_message = normalizer.normalize_reply(
            content, thought, tool_calls, calls_before, with_thinking
        )
        tools = normalizer.clean_json(list(request.tools))
        template_messages = [*built.template_messages, template_message]
        place = (call.turn, call.number)
        prefix = AnsweredPrefix(built.prompt, generation, template_messages, tools, place)
        self._prefixes.add(built.messages, message, tools, prefix)

    def _is_schema_answer(self, request: ChatRequest, text: str) -> bool:
        """Return whether a reply to a request with tools is an answer in its schema: JSON, where a
        call begins with a mark.
        """
        # a model whose calls have no mark writes them as JSON too
        marks_calls = all(syntax.trigger for syntax in self._template.syntaxes)
        if request.schema is None or request.forced or not marks_calls:
            return False
        try:
            json.loads(strip_thinking(text))
        except (ValueError, RecursionError):
            return False
        return True

    def _logprobs(self, generation: Generation) -> list[tuple[str, float]]:
        """Return text and log-probability of every token."""
        return list(zip(self._template.texts_of(generation.token_ids), generation.log_probs, strict=True))
