"""The conversations of one agent in one episode: from a request to its prompt, from sampled replies to the
answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent_system.gateway.bridge import Bridge
from agent_system.gateway.built import Built
from agent_system.gateway.errors import Refusal
from agent_system.gateway.forms import structure_of
from agent_system.gateway.history import History, Node
from agent_system.gateway.reply import Choice, Completion
from agent_system.gateway.template import too_long
from agent_system.gateway.wire import Ask
from agent_system.projection import closed_thinking, strip_thinking, thoughts, without_thinking
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.call import Call, Reply
from agent_system.tools.formats import OfferedTools, split_calls
from verl.protocol.generate import Generation, SamplingParams


class Chat:
    """The conversations of an agent."""

    def __init__(self, bridge: Bridge, most: int | None = None) -> None:
        """Start without any; the last `most` are kept, or all."""
        self._template, self._bridge, self._history = bridge.template, bridge, History(most)

    def read(self, ask: Ask) -> Built:
        """Return the prompt of a request. Raise Refusal when it cannot be built or is too long."""
        viewer, binding = self._template.viewer, self._template.binding
        if ask.logprobs and not isinstance(binding, AgentBinding):
            raise Refusal(
                f"{binding.agent_id!r} is behind an API, which gives no log-probabilities", param="logprobs"
            )
        if ask.prompt is not None:
            built = self._template.continued(ask.prompt)
        else:
            tools = viewer.clean_json(list(ask.tools))
            built = self._bridge.build(viewer.views(ask.messages), tools, self._history)
        if isinstance(binding, AgentBinding) and len(built.prompt.ids) > binding.max_prompt_length:
            raise too_long(binding, f"{len(built.prompt.ids)} tokens")
        return built

    def sampling(self, ask: Ask, own: SamplingParams) -> tuple[SamplingParams, tuple[str, ...]]:
        """Return the parameters of a request, from those of the run, and the client's that do not apply."""
        held = {
            "chat_template_kwargs": getattr(self._template.binding, "template_kwargs", {}),
            "stop_token_ids": list(own.stop_token_ids),
        }
        other = tuple(
            name for name, value in ask.sampling.items() if held.get(name, getattr(own, name, None)) != value
        )
        longest = own.max_tokens if ask.max_tokens is None else min(ask.max_tokens, own.max_tokens)
        return replace(own, max_tokens=longest, stop=(*own.stop, *ask.stop)), other

    def structure(self, ask: Ask, fix: str) -> str:
        """Return the form of the reply that a request asks for, as `SamplingParams.structure`.

        Raises Refusal, with the `fix`, if the agent's engine cannot make a reply follow one.
        """
        binding, structure = (
            self._template.binding,
            structure_of(ask, self._template.syntaxes[0] if self._template.syntaxes else None),
        )
        if structure and not binding.structured:
            here = f"has an engine that cannot make a reply follow a schema; {fix}, or"
            why = (
                here
                if isinstance(binding, AgentBinding)
                else "is behind an API, through which the form of a reply is not passed on;"
            )
            raise Refusal(f"{binding.agent_id!r} {why} describe the form in a message", param=ask.form_field)
        return structure

    def answer(self, ask: Ask, built: Built, replies: Sequence[tuple[Call, Reply]], name: str) -> Completion:
        """Return the answer made of sampled replies, and remember them as conversations that may go on.

        Args:
            ask: the request.
            built: its prompt.
            replies: of `EpisodeRunner.reply_to`.
            name: id of the answer.
        """
        return Completion(
            id=name,
            model=self._template.binding.agent_id,
            created=int(time.time()),
            # as a server has counted them
            prompt_tokens=getattr(replies[0][1].generation, "prompt_tokens", len(built.prompt.ids)),
            choices=[self._choice(ask, built, call, reply) for call, reply in replies],
        )

    def _choice(self, ask: Ask, built: Built, call: Call, reply: Reply) -> Choice:
        generation, text = reply.generation, reply.text
        if ends := [place for stop in ask.stop if (place := text.find(stop)) >= 0]:
            text = text[: min(ends)]
        finish = "length" if generation.stop_reason == "length" else "stop"
        tokens = getattr(generation, "reply_tokens", len(generation.token_ids))
        scored = self._scored(generation) if ask.logprobs else None
        if ask.prompt is not None:
            return Choice(text, (), "", finish, tokens, scored)
        tools = OfferedTools.of(ask.tools)
        may_call = ask.tools and not self._answers(ask, text)
        content, requests = (
            split_calls(text, self._template.syntaxes, tools) if may_call else (without_thinking(text), [])
        )
        found = thoughts(text)
        shown = requests[: self._template.most_calls]
        calls: list[dict[str, Any]] = [
            {"name": r.name, "arguments": r.arguments or {}, "id": r.id} for r in shown
        ]
        whole = self._template.said_with_calls(text, content) if calls else closed_thinking(text)
        before = sum(view.calls for view in built.views)
        viewer = self._template.viewer
        view, message = viewer.reply(content, whole, calls, before, closed_thinking(text))
        shown_tools = viewer.clean_json(list(ask.tools))
        self._history.add(
            built.views,
            view,
            shown_tools,
            Node(built.prompt, generation, [*built.messages, message], shown_tools),
        )
        named = [
            (f"call_{call.turn}_{call.number}_{i}", c["name"], json.dumps(c["arguments"]))
            for i, c in enumerate(calls)
        ]
        return Choice(content, named, "\n\n".join(found), "tool_calls" if calls else finish, tokens, scored)

    def _answers(self, ask: Ask, text: str) -> bool:
        """Return whether a reply to a request with tools is an answer in its schema: JSON, where a call
        begins with a mark.
        """
        if ask.schema is None or ask.forced or not all(syntax.trigger for syntax in self._template.syntaxes):
            return False
        try:
            json.loads(strip_thinking(text))
        except (ValueError, RecursionError):
            return False
        return True

    def _scored(self, generation: Generation) -> list[tuple[str, float]]:
        """Return text and log-probability of every token."""
        return list(zip(self._template.texts_of(generation.token_ids), generation.log_probs, strict=True))
