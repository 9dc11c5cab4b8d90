"""What the gateway knows of a policy's chat template: rendering, how conversations go on, and how
tool calls are written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from agent_system.gateway.errors import TOO_LONG, Refusal
from agent_system.gateway.messages import MessageNormalizer
from agent_system.projection import with_visible
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.continuation import Continuation, NextPrompt, texts_of_tokens
from agent_system.rollout.prompt import Prompt, SpecialTokens
from agent_system.rollout.remote import RemoteBinding
from agent_system.rollout.tokens import Encoder, decode
from agent_system.tools.formats import Syntax, syntaxes_of
from verl.protocol.generate import Generation

_MESSAGES = re.compile(r"\bfor\s+(\w+)\s+in\s+\w*messages\b")


class Template:
    """The chat template of an agent's policy.

    Attributes:
        binding: the policy.
        chat: its chat template.
        normalizer: reads messages for this template.
    """

    def __init__(self, binding: AgentBinding) -> None:
        self.binding = binding
        self.chat = binding.chat
        self._encoder = Encoder(binding.tokenizer)
        clean = SpecialTokens(binding.tokenizer, self.chat.structure).cleaned
        clean_reply = SpecialTokens(
            binding.tokenizer, self.chat.structure, self.chat.marks_of_replies
        ).cleaned
        self.normalizer = MessageNormalizer(
            clean,
            _reads_name(self.chat.source),
            self.chat.calls is not None,
            self.chat.call_id,
            self.chat.call_ids,
            clean_reply,
        )

    @property
    def syntaxes(self) -> tuple[Syntax, ...]:
        """How its model writes tool calls."""
        return self.chat.syntaxes

    @property
    def most_calls(self) -> int | None:
        """The largest number of calls in one reply that the template can show; None for any number."""
        return 1 if self.chat.calls is not None and self.chat.calls.most == 1 else None

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], prompt: bool = True
    ) -> str:
        """Return the text of a conversation; with `prompt` the beginning of a reply follows. Raise
        Refusal if it cannot be shown.
        """
        if tools and not self.chat.shows_tools:
            raise Refusal(
                f"the chat template of {self.binding.agent_id!r} shows no tools; describe them in a message",
                param="tools",
            )
        if tools and not self.syntaxes:
            raise Refusal(
                f"the tool calls that the chat template of {self.binding.agent_id!r} shows cannot "
                "be read; set data.apply_chat_template_kwargs.chat_template to another one, or "
                "describe the tools in a message",
                param="tools",
            )
        try:
            return self.chat.render(messages, tools, prompt)
        except Exception as error:
            # whatever a template raises for an order of roles that it does not know
            # OpenAI's tools need no description and no parameters, which many templates read
            if (whole_tools := [_whole(tool) for tool in tools]) != list(tools):
                return self.render(messages, whole_tools, prompt)
            raise Refusal(
                f"the chat template of {self.binding.agent_id!r} cannot show these messages: {error}",
                param="messages",
            ) from error

    @property
    def longest_prompt(self) -> int:
        """Number of characters that no prompt of `max_prompt_length` tokens exceeds."""
        return self.binding.max_prompt_length * self._longest_token

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text. Raise Refusal for one that is too long whatever its
        tokens: tokenizing it would take seconds.
        """
        if len(text) > self.longest_prompt:
            raise too_long(self.binding, f"{len(text)} characters")
        return self._encoder.encode(text)

    def after(self, prompt: Prompt, reply: Generation, whole: str, keep_thinking: bool) -> NextPrompt | None:
        """Return the prompt after a reply, from what the template shows of the whole conversation;
        see `Continuation`.
        """
        return Continuation(self.chat, self.encode, keep_thinking).after(prompt, reply, whole)

    def said_with_calls(self, text: str, visible: str) -> str:
        """Return the content of a message with calls; see `ChatTemplate.said_with_calls`."""
        return self.chat.said_with_calls(text, visible)

    def texts_of(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of every token, special ones included."""
        return texts_of_tokens(self.chat, tokens)

    @cached_property
    def _first_tokens(self) -> tuple[int, ...]:
        """The tokens that the tokenizer puts before a text that has no chat template."""
        tokenizer = self.binding.tokenizer
        return tuple(token for token in tokenizer.encode("")[:1] if token == tokenizer.bos_token_id)

    @cached_property
    def _longest_token(self) -> int:
        """The number of characters of the longest token of the vocabulary."""
        return max(map(len, self.binding.tokenizer.get_vocab()))

    @cached_property
    def _largest_token(self) -> int:
        return max(self.binding.tokenizer.get_vocab().values())

    def completion_prompt(self, prompt: str | Sequence[int]) -> Prompt:
        """Return the prompt of a text completion, special tokens included. Raise Refusal for one
        that has no tokens, or unknown ones.
        """
        if isinstance(prompt, str):
            text = prompt.encode("utf-8", "replace").decode()
            ids = self.encode(text)
            first = self._first_tokens
            ids = ids if ids[: len(first)] == first else (*first, *ids)
        else:
            if (token := max(prompt)) > self._largest_token:
                raise Refusal(
                    f"prompt has the token {token}; the largest is {self._largest_token}", param="prompt"
                )
            ids = tuple(prompt)
            text = self.decode(ids)
        if not ids:
            raise Refusal("prompt has no tokens", param="prompt")
        return Prompt(text, ids, messages=({"role": "user", "content": text},))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special ones included."""
        return decode(self.binding.tokenizer, tokens, special=True)

    def with_sampled_ids(
        self, earlier: Sequence[Mapping[str, Any]], added: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        """Return new messages whose results name the calls by the ids that the model gave them."""
        calls = [call for message in earlier for call in message.get("tool_calls") or ()]
        ids = {
            self.chat.call_id(call["function"]["name"], index): call["id"] for index, call in enumerate(calls)
        }
        return [
            {**message, "tool_call_id": ids.get(message["tool_call_id"], message["tool_call_id"])}
            if message.get("tool_call_id")
            else message
            for message in added
        ]


def _whole(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool with a description and parameters, which are empty if it has none."""
    function = tool["function"]
    parameters = {"type": "object", "properties": {}} | (function.get("parameters") or {})
    return {**tool, "function": {"description": "", **function, "parameters": parameters}}


def _reads_name(source: str) -> bool:
    """Return whether a template reads `name` of a message, whatever it calls the message."""
    messages = "|".join({"message", *_MESSAGES.findall(source)})
    return (
        re.search(rf"""\b(?:{messages})(?:\.name\b|\[['"]name['"]\]|\.get\(['"]name['"])""", source)
        is not None
    )


def too_long(binding: AgentBinding, size: str) -> Refusal:
    """Return the error for a prompt of this size."""
    return Refusal(
        f"the prompt of {binding.agent_id!r} has {size}, more than "
        f"{binding.prompt_length_key}={binding.max_prompt_length} tokens; send less, or raise it. "
        "In words that clients look for: prompt is too long, this model's maximum context length "
        f"is {binding.max_prompt_length}",
        code=TOO_LONG,
        param="messages",
    )


class NoTemplate:
    """As `Template`, for an agent behind an API, whose server gets the messages themselves."""

    syntaxes = syntaxes_of("hermes")
    most_calls: int | None = None

    def __init__(self, binding: RemoteBinding) -> None:
        self.binding = binding
        self.normalizer = MessageNormalizer(lambda text: text, False, False)

    def with_sampled_ids(
        self, earlier: Sequence[Mapping[str, Any]], added: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        """Return new messages as they are."""
        return list(added)

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], prompt: bool = True
    ) -> str:
        """Return the messages as text, for trajectories. Raise Refusal for tools."""
        if tools:
            raise Refusal(
                f"{self.binding.agent_id!r} is behind an API, through which tools are not passed on",
                param="tools",
            )
        return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)

    def completion_prompt(self, prompt: str | Sequence[int]) -> Prompt:
        """Raise Refusal: servers get messages."""
        raise Refusal(
            f"{self.binding.agent_id!r} is behind an API, to which messages are passed on; use "
            "/v1/chat/completions",
            param="prompt",
        )

    def encode(self, text: str) -> tuple[int, ...]:
        """Return no tokens."""
        return ()

    def after(self, prompt: Prompt, reply: Generation, whole: str, keep_thinking: bool) -> NextPrompt | None:
        """Return nothing: the server makes the tokens."""
        return None

    def said_with_calls(self, text: str, visible: str) -> str:
        """Return the text of a reply without its calls, with its thinking."""
        return with_visible(text, visible)

    def texts_of(self, tokens: Sequence[int]) -> list[str]:
        """Return no text."""
        return ["" for _ in tokens]
