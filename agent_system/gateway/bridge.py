"""The next prompt of a conversation: the tokens so far and those of the new messages, or the whole conversation rendered anew.

A continued prompt is `P + R + tokens(tail)`: the last prompt, the reply as it was sampled, and the text that the template puts after the
reply. It is used only where the template shows everything before the tail as it is; a sample is right in either case, because it holds
what the engine got.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent_system.agent import Message
from agent_system.gateway.built import Built
from agent_system.gateway.errors import Refusal
from agent_system.gateway.history import History, Node
from agent_system.gateway.template import NoTemplate, Template
from agent_system.gateway.view import View
from agent_system.projection import thoughts
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.prompt import Prompt
from agent_system.rollout.remote import RemoteBinding
from verl.trainer.config.gateway import GatewayConfig

_THINKING = re.compile(r"<think>(?:(?!<think>).)*?</think>\s*", re.DOTALL)
_EMPTY_THINKING = re.compile(r"<think>\s*</think>\s*")


class Bridge:
    """Builds the prompts of an agent in all episodes.

    Attributes:
        template: the chat template of its policy.
    """

    def __init__(self, template: Template | NoTemplate, keep_thinking: bool) -> None:
        """Set the template; `keep_thinking` continues tokens with thinking that the template would leave out."""
        self.template, self._keep_thinking = template, keep_thinking

    def build(self, views: Sequence[View], tools: Sequence[Mapping[str, Any]], history: History) -> Built:
        """Return the prompt of a request. Raise Refusal when the template cannot show its messages."""
        node, length, reason = history.find(views, tools)
        shown = [view.message for view in views]
        if node is not None:
            added = self.template.with_sampled_ids(node.messages, shown[length:])
            tail = self._tail(node, added, tools)
            if tail is not None:
                return Built(self._continued(node, tail, shown), views, [*node.messages, *added], node.thoughts)
            reason = "template" if isinstance(self.template, Template) else ""
        text = self.template.render(shown, tools)
        return Built(Prompt(text, self.template.encode(text), messages=_plain(shown)), views, shown, (), reason)

    def _continued(self, node: Node, tail: str, shown: Sequence[Mapping[str, Any]]) -> Prompt:
        sampled, end = node.generation.token_ids, self.template.end
        assert end is not None
        closing = () if self.template.ends(sampled[-1]) else (end[1],)  # a reply that was cut has no end of its own
        between = (*sampled, *closing)
        text = node.prompt.text + self.template.decode(between) + tail
        earlier = node.prompt.messages  # equal to the first ones shown; prompts share them, so that their texts are kept once
        ids = (*node.prompt.ids, *between, *self.template.encode(tail))
        return Prompt(text, ids, messages=(*earlier, *_plain(shown[len(earlier) :])))

    def _tail(self, node: Node, added: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str | None:
        """Return the text that the template puts after a conversation; None if it shows the conversation in another way now.

        Messages hold no special tokens, so their ends can be counted. A template may show empty thinking in the last reply alone.
        """
        if self.template.end is None:
            return None
        mark = self.template.end[0]
        try:
            *before, _ = self.template.render(node.messages, tools, prompt=False).split(mark)
            *after, tail = self.template.render([*node.messages, *added], tools).split(mark, len(before))
        except Refusal:  # the whole conversation may still be shown as the program sent it
            return None
        head, shown = mark.join(after), mark.join(before)
        may_differ = _THINKING if self._keep_thinking else _EMPTY_THINKING
        if not before or (head != shown and may_differ.sub("", head) != may_differ.sub("", shown)):
            return None
        if self._keep_thinking or not node.thoughts:
            return tail
        blocks = thoughts(head)
        return tail if all(any(thought in block for block in blocks) for thought in node.thoughts) else None


def bridge_of(binding: AgentBinding | RemoteBinding, keys: GatewayConfig) -> Bridge:
    """Return the bridge of an agent with the keys under `gateway`."""
    template = NoTemplate(binding) if isinstance(binding, RemoteBinding) else Template(binding)
    return Bridge(template, keep_thinking=keys.history == "sampled")


def _plain(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Return role, content and tool calls, for reward models and reward functions."""
    read = ("role", "content", "tool_calls")
    return tuple({name: message[name] for name in read if name in message} for message in messages)
