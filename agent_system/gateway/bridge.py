"""The next prompt of a conversation: the tokens so far and those of the new messages, or the whole
conversation rendered anew.

A continued prompt is the last prompt, the reply as it was sampled, and the tokens of what the template puts
after it. It is used only where the template shows the prompt and the reply as they were sent; a sample is
right in either case, because it holds what the engine got.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_system.agent import Message
from agent_system.gateway.built import Built
from agent_system.gateway.errors import Refusal
from agent_system.gateway.history import History
from agent_system.gateway.template import NoTemplate, Template
from agent_system.gateway.view import View
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.prompt import Prompt
from agent_system.rollout.remote import RemoteBinding
from verl.trainer.config.gateway import GatewayConfig


class Bridge:
    """Builds the prompts of an agent in all episodes.

    Attributes:
        template: the chat template of its policy.
    """

    def __init__(self, template: Template | NoTemplate, keep_thinking: bool) -> None:
        """Set the template; `keep_thinking` continues tokens with thinking that the template would
        leave out.
        """
        self.template, self._keep_thinking = template, keep_thinking

    def build(self, views: Sequence[View], tools: Sequence[Mapping[str, Any]], history: History) -> Built:
        """Return the prompt of a request. Raise Refusal when the template cannot show its messages."""
        node, length, reason = history.find(views, tools)
        shown = [view.message for view in views]
        if node is None:
            text = self.template.render(shown, tools)
            return Built(
                Prompt(text, self.template.encode(text), messages=_plain(shown)), views, shown, reason
            )
        messages = [*node.messages, *self.template.with_sampled_ids(node.messages, shown[length:])]
        try:
            text = self.template.render(messages, node.tools)
        except Refusal:  # it may still be shown as the program sent it, without thinking
            messages = shown
            text = self.template.render(messages, node.tools)
        following = self.template.after(node.prompt, node.generation, text, self._keep_thinking)
        if following is None:
            return Built(Prompt(text, self.template.encode(text), messages=_plain(shown)), views, messages)
        # equal to the first ones shown; prompts share them, so that their texts are kept once
        earlier = node.prompt.messages
        prompt = Prompt(following.text, following.ids, messages=(*earlier, *_plain(shown[len(earlier) :])))
        return Built(prompt, views, messages, "template" if following.rewritten else "", following.rewritten)


def bridge_of(binding: AgentBinding | RemoteBinding, keys: GatewayConfig) -> Bridge:
    """Return the bridge of an agent with the keys under `gateway`."""
    template = NoTemplate(binding) if isinstance(binding, RemoteBinding) else Template(binding)
    return Bridge(template, keep_thinking=keys.history == "sampled")


def _plain(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Return role, content and tool calls, for reward models and reward functions."""
    read = ("role", "content", "tool_calls")
    return tuple({name: message[name] for name in read if name in message} for message in messages)
