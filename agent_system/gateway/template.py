"""What the gateway knows of a policy's chat template: rendering, the token that ends a message, and how tool calls are written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from agent_system.gateway.errors import Refusal
from agent_system.gateway.view import Viewer
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.prompt import SpecialTokens
from agent_system.rollout.remote import RemoteBinding
from agent_system.rollout.tokens import Encoder, decode, special_tokens
from agent_system.tools.formats import FORMATS

_REPLY = "REPLY7c1f"  # stands for a reply when the text after it is looked up
_MESSAGES = re.compile(r"\bfor\s+(\w+)\s+in\s+\w*messages\b")


class Template:
    """The chat template of an agent's policy.

    Attributes:
        binding: the policy.
        viewer: reads messages for this template.
        tool_format: how its model writes tool calls.
    """

    def __init__(self, binding: AgentBinding) -> None:
        source = str(binding.template_kwargs.get("chat_template") or binding.tokenizer.chat_template)
        self.binding = binding
        self.tool_format = detect_format(source)
        self._encoder = Encoder(binding.tokenizer)
        self.viewer = Viewer(SpecialTokens(binding.tokenizer).cleaned, _reads_name(source), "tool_calls" in source)
        self._knows_tools = "tools" in source

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], prompt: bool = True) -> str:
        """Return the text of a conversation; with `prompt` the beginning of a reply follows. Raise Refusal if it cannot be shown."""
        if tools and not self._knows_tools:
            raise Refusal(f"the chat template of {self.binding.agent_id!r} shows no tools; describe them in a message", param="tools")
        try:
            return str(
                self.binding.tokenizer.apply_chat_template(
                    [dict(message) for message in messages], tools=list(tools) or None, tokenize=False, add_generation_prompt=prompt,
                    **self.binding.template_kwargs,
                )
            )  # fmt: skip
        except Exception as error:  # whatever a template raises for an order of roles that it does not know
            raise Refusal(
                f"the chat template of {self.binding.agent_id!r} cannot show these messages: {error}", param="messages"
            ) from error

    @cached_property
    def end(self) -> tuple[str, int] | None:
        """The special token that ends a message of the assistant, as text and as id; None if none is found."""
        try:
            text = self.render([{"role": "user", "content": "?"}, {"role": "assistant", "content": _REPLY}], (), prompt=False)
        except Refusal:
            return None
        after = text.rpartition(_REPLY)[2].lstrip()
        found = next((token for token in special_tokens(self.binding.tokenizer) if after.startswith(token)), "")
        ids = self.encode(found)
        return (found, ids[0]) if len(ids) == 1 else None

    @cached_property
    def longest_prompt(self) -> int:
        """Number of characters that no prompt of `max_prompt_length` tokens exceeds."""
        return self.binding.max_prompt_length * max(map(len, self.binding.tokenizer.get_vocab()))

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text. Raise Refusal for one that is too long whatever its tokens: tokenizing it would take seconds."""
        if len(text) > self.longest_prompt:
            raise too_long(self.binding, f"{len(text)} characters")
        return self._encoder.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special ones included."""
        return decode(self.binding.tokenizer, tokens, special=True)

    def ends(self, token: int) -> bool:
        """Return whether a sampled token ends a message."""
        return token in self.binding.sampling.stop_token_ids or (self.end is not None and token == self.end[1])


def _reads_name(source: str) -> bool:
    """Return whether a template reads `name` of a message, whatever it calls the message."""
    messages = "|".join({"message", *_MESSAGES.findall(source)})
    return re.search(rf"""\b(?:{messages})(?:\.name\b|\[['"]name['"]\]|\.get\(['"]name['"])""", source) is not None


def too_long(binding: AgentBinding, found: str) -> Refusal:
    """Return the error for a prompt of this size."""
    return Refusal(
        f"the prompt of {binding.agent_id!r} has {found}, more than {binding.prompt_length_key}={binding.max_prompt_length} tokens; send "
        f"less, or raise it. In words that clients look for: this model's maximum context length is {binding.max_prompt_length}",
        code="context_length_exceeded",
        param="messages",
    )


class NoTemplate:
    """As `Template`, for an agent behind an API, whose server gets the messages themselves."""

    end: tuple[str, int] | None = None
    tool_format = "hermes"

    def __init__(self, binding: RemoteBinding) -> None:
        self.binding = binding
        self.viewer = Viewer(lambda text: text, False, False)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], prompt: bool = True) -> str:
        """Return the messages as text, for trajectories. Raise Refusal for tools."""
        if tools:
            raise Refusal(f"{self.binding.agent_id!r} is behind an API, through which tools are not passed on", param="tools")
        return "\n\n".join(f"{m['role']}: {m['content']}" for m in messages)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return no tokens."""
        return ()

    def decode(self, tokens: Sequence[int]) -> str:
        """Return no text."""
        return ""

    def ends(self, token: int) -> bool:
        """Return whether a sampled token ends a message."""
        return False
