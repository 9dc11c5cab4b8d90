"""The prompt of a request: the tokens of an answered conversation and those of the messages after
it, or the whole conversation rendered anew.

A continued prompt is the last prompt, the reply as it was sampled, and the tokens of what the
template puts after it. It is used only where the template shows the prompt and the reply as they
were sent; a sample is right in either case, because it holds what the engine got.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from agent_system.agent import Message
from agent_system.gateway.errors import Refusal
from agent_system.gateway.messages import NormalizedMessage
from agent_system.gateway.template import NoTemplate, Template
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.prompt import Prompt
from agent_system.rollout.remote import RemoteBinding
from verl.protocol.generate import Generation
from verl.trainer.config.gateway import GatewayConfig

MOST_TOOLS = 4


@dataclass(frozen=True, slots=True)
class BuiltPrompt:
    """The prompt of a request.

    Attributes:
        prompt: what the engine gets.
        messages: the messages of the request; none for a text completion.
        template_messages: the same for the chat template: with the thinking of replies that were
            sampled here.
        rewritten: why sampled tokens were rendered anew: `client`, `template` or `tools`; empty
            where none were.
        difference: what the template shows in another way, in words; empty for other reasons.
        parent: turn and number of the call whose conversation the request goes on with; None for a
            new conversation.
        shared: number of tokens of that call's prompt and reply that the prompt begins with.
    """

    prompt: Prompt
    messages: Sequence[NormalizedMessage]
    template_messages: Sequence[Mapping[str, Any]]
    rewritten: str = ""
    difference: str = ""
    parent: tuple[int, int] | None = None
    shared: int = 0


@dataclass(frozen=True, slots=True)
class AnsweredPrefix:
    """A request and one of its replies: the beginning of a conversation that later requests may
    continue.

    Attributes:
        prompt: what the engine got.
        generation: what it sampled.
        template_messages: the conversation with the reply, for the chat template, with the thinking
            of its replies.
        tools: its tools, in the order of their fields in which the prompt shows them.
        call: turn and number of its call in the episode.
    """

    prompt: Prompt
    generation: Generation
    template_messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    call: tuple[int, int] | None = None


class PrefixStore:
    """The answered conversations of one agent in one episode, told apart by the keys of their
    messages.
    """

    def __init__(self, most: int | None = None) -> None:
        """Start without any.

        Args:
            most: number of conversations that are kept, those answered last, each with its last
                `MOST_TOOLS` lists of tools; None: all.
        """
        self._most = most
        # by the hash and the tools
        self._prefixes: dict[bytes, dict[str, AnsweredPrefix]] = {}
        self._asked_hashes: set[bytes] = set()
        self._reply_keys: set[bytes] = set()

    def add(
        self,
        messages: Sequence[NormalizedMessage],
        reply: NormalizedMessage,
        tools: Sequence[Mapping[str, Any]],
        prefix: AnsweredPrefix,
    ) -> None:
        """Keep an answered request."""
        *_, asked_hash, answered_hash = _prefix_hashes([*messages, reply])
        by_tools = self._prefixes.get(answered_hash, {})
        _put(by_tools, _tools_key(tools), prefix, None if self._most is None else MOST_TOOLS)
        _put(self._prefixes, answered_hash, by_tools, self._most)
        # These only serve to tell what a client changed, and grow with every request: a store that
        # forgets conversations does without them.
        if self._most is None:
            self._asked_hashes.add(asked_hash)
            self._reply_keys.add(reply.key)

    def find(
        self, messages: Sequence[NormalizedMessage], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[AnsweredPrefix | None, int, str, AnsweredPrefix | None]:
        """Return the longest conversation that a request continues, the number of its messages, why
        there is none, and the conversation that it goes on with in the sense of its client.

        The last one is also there where its tokens cannot be continued. The reason is `tools` (the
        request has other tools), `client` (a reply was edited, invented or moved), or empty for a
        request that continues nothing.
        """
        hashes = _prefix_hashes(messages)
        key = _tools_key(tools)
        for length in range(len(messages), 0, -1):
            by_tools = self._prefixes.get(hashes[length])
            if by_tools is None:
                continue
            # the client has put a reply of its own after the one that was sampled here
            if any(message.role == "assistant" for message in messages[length:]):
                return None, 0, "client", _last(by_tools)
            if key not in by_tools:
                return None, 0, "tools", _last(by_tools)
            return by_tools[key], length, "", by_tools[key]
        replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
        changed = any(
            hashes[index] in self._asked_hashes or messages[index].key in self._reply_keys
            for index in replies
        )
        return None, 0, "client" if changed else "", None


class PromptContinuation:
    """Builds the prompts of an agent in all episodes.

    Attributes:
        template: the chat template of its policy.
    """

    def __init__(self, template: Template | NoTemplate, keep_thinking: bool) -> None:
        """Set the template; `keep_thinking` continues tokens with thinking that the template would
        leave out.
        """
        self.template = template
        self._keep_thinking = keep_thinking

    def build(
        self, messages: Sequence[NormalizedMessage], tools: Sequence[Mapping[str, Any]], store: PrefixStore
    ) -> BuiltPrompt:
        """Return the prompt of a request. Raise Refusal when the template cannot show its messages.

        Args:
            messages: of the request.
            tools: its tools, without special tokens.
            store: the answered conversations, one of which the request may continue.
        """
        prefix, length, reason, parent = store.find(messages, tools)
        plain_messages = [message.fields for message in messages]
        if prefix is None:
            text = self.template.render(plain_messages, tools)
            prompt = Prompt(text, self.template.encode(text), messages=_chat(plain_messages))
            return _following(BuiltPrompt(prompt, messages, plain_messages, reason), parent)
        template_messages = [
            *prefix.template_messages,
            *self.template.with_sampled_ids(prefix.template_messages, plain_messages[length:]),
        ]
        try:
            text = self.template.render(template_messages, prefix.tools)
        except Refusal:
            # it may still be shown as the program sent it, without thinking
            template_messages = plain_messages
            text = self.template.render(template_messages, prefix.tools)
        following = self.template.after(prefix.prompt, prefix.generation, text, self._keep_thinking)
        if following is None:  # behind an API, which makes the tokens itself
            prompt = Prompt(text, self.template.encode(text), messages=_chat(plain_messages))
            return _following(BuiltPrompt(prompt, messages, template_messages), parent)
        # equal to the first ones of this request; prompts share them, so that their texts are kept
        # once
        earlier = prefix.prompt.messages
        chat = (*earlier, *_chat(plain_messages[len(earlier) :]))
        built = BuiltPrompt(
            Prompt(following.text, following.ids, messages=chat),
            messages,
            template_messages,
            "template" if following.rewritten else "",
            following.rewritten,
        )
        return _following(built, parent)


def _following(built: BuiltPrompt, parent: AnsweredPrefix | None) -> BuiltPrompt:
    """Return a prompt with the call that it goes on with."""
    if parent is None:
        return built
    ids = built.prompt.ids
    earlier = (*parent.prompt.ids, *parent.generation.token_ids)
    shared = len(earlier)
    if ids[:shared] != earlier:
        pairs = enumerate(zip(ids, earlier, strict=False))
        shared = next((index for index, (one, other) in pairs if one != other), min(len(ids), shared))
    return replace(built, parent=parent.call, shared=shared)


def continuation_of(binding: AgentBinding | RemoteBinding, keys: GatewayConfig) -> PromptContinuation:
    """Return what builds the prompts of an agent with the keys under `gateway`."""
    template = NoTemplate(binding) if isinstance(binding, RemoteBinding) else Template(binding)
    return PromptContinuation(template, keep_thinking=keys.history == "sampled")


def _chat(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Return role, content and tool calls, for reward models and reward functions."""
    names = ("role", "content", "tool_calls")
    return tuple({name: message[name] for name in names if name in message} for message in messages)


def _last(prefixes: Mapping[str, AnsweredPrefix]) -> AnsweredPrefix | None:
    return next(reversed(list(prefixes.values())), None)


def _put(entries: dict[Any, Any], key: object, value: object, most: int | None) -> None:
    """Set the last entry, and forget the first one if there are more than `most`."""
    entries.pop(key, None)
    entries[key] = value
    if most is not None and len(entries) > most:
        del entries[next(iter(entries))]


def _prefix_hashes(messages: Sequence[NormalizedMessage]) -> list[bytes]:
    """Return a hash of every beginning of a conversation, from the empty one on."""
    hashes = [b""]
    for message in messages:
        hashes.append(blake2b(hashes[-1] + message.key, digest_size=16).digest())
    return hashes


def _tools_key(tools: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(list(tools), sort_keys=True)
