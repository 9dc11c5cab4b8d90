"""The rounds of a `ToolAgent`'s call: generation, tool calls, and the next prompt that continues the tokens exactly."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from agent_system.agent import BaseAgent, Message
from agent_system.errors import AgentSystemError
from agent_system.rollout.call import Call, Reply
from agent_system.rollout.prompt import Prompt, PromptBuilder
from agent_system.rollout.remote import RemoteBinding
from agent_system.rollout.seeds import stable_seed
from agent_system.rollout.tokens import decode
from agent_system.tools.agent import ToolAgent, ToolUse
from agent_system.tools.formats import OfferedTools, ToolRequest, read_calls, split_calls
from agent_system.tools.formats.named import NAMED

_REPLY = "REPLY7c1f"  # stands for the reply when the text around it is looked up


class ToolPromptBuilder(PromptBuilder):
    """Builds the prompts of a `ToolAgent`.

    Attributes:
        tool_format: the agent's, or the one that the chat template asks for.
    """

    agent: ToolAgent

    def __init__(self, agent: ToolAgent, tokenizer: Any, *args: Any) -> None:
        super().__init__(agent, tokenizer, *args)
        template = str(tokenizer.chat_template)
        self._native = "tools" in template
        self.tool_format = detect_format(template) if agent.tool_format == "auto" else agent.tool_format
        if not self._native and self.tool_format != "hermes":
            raise AgentSystemError(
                f"the chat template of {agent.agent_id!r} has no `tools`, so describe_tools() asks for <tool_call>; "
                f"use tool_format=hermes (or auto), found {self.tool_format!r}"
            )

    def of(self, agent: BaseAgent) -> PromptBuilder:
        """Return the builder of another state of the agent, without tools for a summary."""
        if isinstance(agent, ToolAgent):
            return super().of(agent)
        return PromptBuilder(agent, self.tokenizer, self.max_prompt_length, self.template_kwargs, self._encoder, self._length_key)

    @property
    def shown_tools(self) -> str:
        """What prompts show of the tools of an agent with state, which may change them; empty for one without."""
        if not self.agent.stateful:
            return ""
        return json.dumps(self.agent.schemas) if self._native else self.agent.describe_tools()

    def following(self, prompt: Prompt, reply: Reply, results: Sequence[Message], same_tools: bool = True) -> tuple[Prompt | None, bool]:
        """Return the prompt after a reply and its tool results, and whether it was rendered anew.

        The prompt is the last prompt's ids, the sampled ids, and the ids of the text that the template puts after a reply. If the template
        would show the reply without a part of it (such as its thinking), or the agent has changed its tools, the whole conversation is
        rendered anew. It is None when it is longer than `max_prompt_length`.
        """
        messages = self._special.removed([*prompt.messages, {"role": "assistant", "content": reply.text}, *results])
        whole = self._template(messages)
        at = len(prompt.messages)
        around = self._template([*messages[:at], {"role": "assistant", "content": _REPLY}, *messages[at + 1 :]])
        exact = same_tools and "".join(reply.text.split()) in "".join(whole.split()) and around.count(_REPLY) == 1
        if exact:
            sampled = reply.generation.token_ids
            rest = self._encoder.encode(around.partition(_REPLY)[2])
            if self._is_special(sampled[-1]) and self._is_special(rest[0]):  # the reply's own end of message stands for the template's
                rest = rest[1:]
            text = prompt.text + decode(self.tokenizer, (*sampled, *rest), special=True)
            following = Prompt(text, (*prompt.ids, *sampled, *rest), prompt.dropped, tuple(messages))
        else:
            following = Prompt(whole, self._encoder.encode(whole), prompt.dropped, tuple(messages))
        return (following if len(following.ids) <= self.max_prompt_length else None), not exact

    def _key(self, messages: list[Message]) -> tuple[Any, ...]:
        return (self.shown_tools, *super()._key(messages))

    def _is_special(self, token_id: int) -> bool:
        return not decode(self.tokenizer, [token_id])

    def _template(self, messages: list[Message]) -> str:
        if not self._native:
            messages = self._described(messages)
            return super()._template(messages)
        tools = json.loads(self._special.cleaned(json.dumps(self.agent.schemas, ensure_ascii=False)))  # a server of others may write them
        return str(
            self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True, **self.template_kwargs)
        )

    def _described(self, messages: list[Message]) -> list[Message]:
        """Return the messages for a template that knows no tools: their description in the system message, results in a user message."""
        text, rest = self._special.cleaned(self.agent.describe_tools()), messages
        if messages and messages[0]["role"] == "system":
            text, rest = f"{text}\n\n{messages[0]['content']}", messages[1:]
        shown: list[Message] = [{"role": "system", "content": text}]
        for role, group in groupby(rest, key=lambda m: m["role"]):
            if role == "tool":  # one message for all results of a reply: some templates want user and assistant in turn
                results = "\n".join(f"<tool_response>\n{m['content']}\n</tool_response>" for m in group)
                shown.append({"role": "user", "content": results})
            else:
                shown += group
        return shown


async def play_rounds(
    call: Call,
    reply_to: Callable[[Call], Awaitable[tuple[Reply, int]]],
    keep: Callable[[Call, Reply, int, ToolUse], None],
    again: Callable[[Call, Prompt, int], Call],
) -> tuple[Call, Reply]:
    """Play the rounds of one call of a `ToolAgent`; return its last generation.

    Args:
        call: the first generation.
        reply_to: samples a reply; returns it with its place in the order of replies.
        keep: keeps a reply as a sample.
        again: returns the call of the next generation, from the last one, its prompt and its seed.
    """
    agent, prompts, seed = call.runtime.agent, call.runtime.prompts, call.seed
    assert isinstance(agent, ToolAgent) and isinstance(prompts, ToolPromptBuilder)
    restarted = False
    for number in range(agent.max_rounds):
        reply, order = await reply_to(call)
        requests = read_calls(reply.text, prompts.tool_format)
        if not requests or number + 1 == agent.max_rounds:
            keep(call, reply, order, ToolUse(number, len(requests), restarted=restarted, cut=bool(requests)))
            break
        assert isinstance(reply.agent, ToolAgent)
        results, use = await reply.agent.answer(requests, number)
        runtime, shown = call.runtime.of(reply.agent), prompts.shown_tools
        prompts = runtime.prompts
        assert isinstance(prompts, ToolPromptBuilder)
        following, anew = prompts.following(call.prompt, reply, results, prompts.shown_tools == shown)
        own = reply.projection
        action, valid = ("", True) if following else (own.action, own.valid)
        reply = replace(reply, projection=replace(own, action=action, valid=valid and not use.malformed))
        keep(call, reply, order, replace(use, restarted=restarted, cut=following is None))
        if following is None:
            break
        so_far = (*call.so_far, *(f"{r.name} {r.arguments!r}" for r in requests), *(str(m["content"]) for m in results))
        call, restarted = again(replace(call, runtime=runtime, so_far=so_far), following, stable_seed(seed, "round", number + 1)), anew
    return call, reply


def check_tool_agents(
    agents: Mapping[str, BaseAgent], bindings: Mapping[str, object], *, branches: bool, sequences: Collection[str] = ()
) -> None:
    """Raise AgentSystemError for a `ToolAgent` behind an API or with tree sampling (`branches`), and if `sequences` name none."""
    with_tools = [n for n, agent in agents.items() if isinstance(agent, ToolAgent)]
    if sequences and not set(sequences) & set(with_tools):
        raise AgentSystemError(
            f"actor_rollout_ref.rollout.tool_samples=sequence has no effect: none of {', '.join(sequences)} is a ToolAgent; use generation"
        )
    for name in with_tools:
        if branches:
            raise AgentSystemError(
                f"{name!r} is a ToolAgent, whose call has several generations; rollout.sampling=tree compares candidates of one "
                "generation: use rollout.sampling=parallel"
            )
        if isinstance(bindings[name], RemoteBinding):
            raise AgentSystemError(
                f"{name!r} is a ToolAgent, whose tool calls are read from the tokens of a local policy; an agent behind an API "
                "(agent.api) cannot have tools: use a policy of the run, or a BaseAgent"
            )
