"""Replies of an agent in the formats of `/v1/chat/completions` and `/v1/completions`, as one object
or as server-sent events.

Events are made from a whole reply: engines answer whole, so a stream tells a client nothing
earlier.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

CHAT = "chat"  # the id of a text completion lacks this at its beginning
END_OF_STREAM = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Choice:
    """A reply as the client gets it.

    Attributes:
        content: the text without thinking and tool calls.
        calls: tool calls: id, name, arguments as JSON text.
        thinking: the thinking, as `reasoning_content`; empty for none.
        finish: `stop`, `length` or `tool_calls`.
        tokens: number of sampled tokens.
        logprobs: (text, log-probability) of every token, or None.
    """

    content: str
    calls: Sequence[tuple[str, str, str]]
    thinking: str
    finish: str
    tokens: int
    logprobs: Sequence[tuple[str, float]] | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The assistant's message in OpenAI's format."""
        calls = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
            for call_id, name, text in self.calls
        ]
        return {
            "role": "assistant",
            "content": self.content if self.content or not calls else None,
            **({"reasoning_content": self.thinking} if self.thinking else {}),
            **({"tool_calls": calls} if calls else {}),
        }

    @property
    def text_details(self) -> dict[str, Any] | None:
        """The field `logprobs` of a completion."""
        if self.logprobs is None:
            return None
        texts = [text for text, _ in self.logprobs]
        offsets = [0, *accumulate(map(len, texts))][: len(texts)]
        values = [log_prob for _, log_prob in self.logprobs]
        return {"tokens": texts, "token_logprobs": values, "text_offset": offsets, "top_logprobs": None}

    @property
    def token_details(self) -> dict[str, Any] | None:
        """The field `logprobs`."""
        if self.logprobs is None:
            return None
        tokens = [
            {"token": text, "logprob": log_prob, "bytes": _bytes(text), "top_logprobs": []}
            for text, log_prob in self.logprobs
        ]
        return {"content": tokens, "refusal": None}


def _bytes(token: str) -> list[int] | None:
    """Return the bytes of a token; None for one that is a part of a character, whose text does not
    say which.
    """
    return None if "\ufffd" in token else list(token.encode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to a request, whatever route it came by.

    Attributes:
        id: of the answer: that of the first of its calls, see `completion_id`.
        model: the agent.
        created: seconds since 1970.
        prompt_tokens: length of the prompt.
        choices: its replies.
    """

    id: str
    model: str
    created: int
    prompt_tokens: int
    choices: Sequence[Choice]

    @property
    def usage(self) -> dict[str, int]:
        """Counts of tokens."""
        sampled = sum(choice.tokens for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": sampled,
            "total_tokens": self.prompt_tokens + sampled,
        }

    def to_text_json(self) -> dict[str, Any]:
        """Return the object `text_completion`."""
        choices = [
            {
                "index": i,
                "text": choice.content,
                "finish_reason": choice.finish,
                "logprobs": choice.text_details,
            }
            for i, choice in enumerate(self.choices)
        ]
        return {**self._text_head, "choices": choices, "usage": self.usage}

    def to_text_events(self, usage: bool) -> Iterator[bytes]:
        """Yield the events of a `text_completion` stream; with `usage` the counts of tokens come
        before its end.
        """
        empty_usage = {"usage": None} if usage else {}
        for index, choice in enumerate(self.choices):
            chunks = ((choice.content, None, choice.text_details), ("", choice.finish, None))
            for text, finish, details in chunks:
                entry = {"index": index, "text": text, "finish_reason": finish, "logprobs": details}
                yield event({**self._text_head, "choices": [entry], **empty_usage})
        if usage:
            yield event({**self._text_head, "choices": [], "usage": self.usage})
        yield END_OF_STREAM

    @property
    def _text_head(self) -> dict[str, Any]:
        """The fields of a `text_completion` that all parts of a stream have."""
        name = self.id.removeprefix(CHAT)
        return {"id": name, "object": "text_completion", "created": self.created, "model": self.model}

    def to_json(self) -> dict[str, Any]:
        """Return the object `chat.completion`."""
        choices = [
            {
                "index": i,
                "message": choice.message,
                "finish_reason": choice.finish,
                "logprobs": choice.token_details,
            }
            for i, choice in enumerate(self.choices)
        ]
        return {**self._chat_head("chat.completion"), "choices": choices, "usage": self.usage}

    def to_events(self, usage: bool) -> Iterator[bytes]:
        """Yield the events of a `chat.completion.chunk` stream; with `usage` the counts of tokens
        come before its end.
        """
        head = self._chat_head("chat.completion.chunk")
        empty_usage = {"usage": None} if usage else {}

        def chunk(
            index: int, delta: Mapping[str, Any], finish: str | None = None, details: Any = None
        ) -> bytes:
            choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": details}
            return event({**head, "choices": [choice], **empty_usage})

        for index, choice in enumerate(self.choices):
            # one call in each event: some clients read the first of an event alone
            first, *others = [
                {"tool_calls": [{"index": number, **call}]}
                for number, call in enumerate(choice.message.get("tool_calls", ()))
            ] or [{}]
            yield chunk(index, {**choice.message, **first}, details=choice.token_details)
            for delta in others:
                yield chunk(index, delta)
            yield chunk(index, {}, choice.finish)
        if usage:
            yield event({**head, "choices": [], "usage": self.usage})
        yield END_OF_STREAM

    def _chat_head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def joined(answers: Sequence[Completion]) -> Completion:
    """Return the answers to the prompts of one request as one, with the id of the first."""
    if len(answers) == 1:
        return answers[0]
    return replace(
        answers[0],
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        choices=[choice for answer in answers for choice in answer.choices],
    )


def event(content: Mapping[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(content).encode() + b"\n\n"
