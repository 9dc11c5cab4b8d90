"""From an agent's messages to token ids within the length limit: the oldest context is dropped
first, the question never.
"""

from __future__ import annotations

import copy
import logging
import marshal
import re
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_system.agent import BaseAgent, Entry, Message
from agent_system.errors import AgentSystemError, PromptTooLongError
from agent_system.memory import Memory
from agent_system.rollout.tokens import Encoder, encode_all, special_tokens

logger = logging.getLogger(__name__)
CACHED_PROMPTS = 4096
# version of `marshal` that writes equal values as equal bytes: later ones write which objects are
# the same
VALUES_ONLY = 2


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt for the engine or a server.

    Attributes:
        text: text after the chat template.
        ids: its token ids.
        dropped: number of entries of team context or memory left out, or cut.
        messages: chat messages, sent to an API server instead of ids, and read by a reward model.
    """

    text: str
    ids: tuple[int, ...]
    dropped: int = 0
    messages: tuple[Message, ...] = ()


class SpecialTokens:
    """The special tokens of a tokenizer, and other tokens around messages, as text."""

    def __init__(self, tokenizer: Any, others: Collection[str] = (), allowed: Collection[str] = ()) -> None:
        """Set the tokens: those of the vocabulary and `others`, without those that are `allowed` in
        a text.
        """
        special = sorted({*special_tokens(tokenizer), *others} - {*allowed}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, special))) if special else None

    def removed(self, messages: list[Message]) -> list[Message]:
        """Return the messages without special tokens in their texts: a reply with "<|im_end|>" must
        not end another's message.
        """
        if self._pattern is None:
            return messages
        return [{name: self._cleaned(value) for name, value in message.items()} for message in messages]

    def _cleaned(self, value: Any) -> Any:
        """Return a field of a message without special tokens in any of its texts, names of
        arguments included.
        """
        if isinstance(value, str):
            return self.cleaned(value)
        if isinstance(value, dict):
            return {self._cleaned(name): self._cleaned(item) for name, item in value.items()}
        return [self._cleaned(item) for item in value] if isinstance(value, list) else value

    def cleaned(self, text: str) -> str:
        """Return a text without special tokens. A token that forms where another one was taken out
        is replaced by a blank.
        """
        if self._pattern is None or self._pattern.search(text) is None:
            return text
        return self._pattern.sub(" ", self._pattern.sub("", text))


class _BlankWhenMissing(dict[str, Any]):
    """Variables of a call before the orchestra's are known: missing ones are empty text."""

    def __missing__(self, name: str) -> _Blank:
        return _Blank()


class _Blank(str):
    """Empty text under any format specification, attribute or item."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return ""

    def __getattr__(self, name: str) -> _Blank:
        return self

    def __getitem__(self, item: Any) -> _Blank:
        return self


class PromptBuilder:
    """Builds the prompts of one agent; equal prompts (such as the first ones of a group) are
    tokenized once.
    """

    def __init__(
        self,
        agent: BaseAgent,
        tokenizer: Any,
        max_prompt_length: int,
        template_kwargs: Mapping[str, Any] | None = None,
        encoder: Encoder | None = None,
        length_key: str = "data.max_prompt_length",
    ) -> None:
        """Set the agent and its policy's tokenizer; agents that share an `encoder` share its cache,
        `length_key` is named in errors.

        Raises:
            AgentSystemError: the tokenizer has no chat template.
        """
        from agent_system.rollout.chat_template import ChatTemplate  # of agents with a policy here

        self.chat = ChatTemplate(tokenizer, template_kwargs)
        if not self.chat.source:
            raise AgentSystemError(
                f"the tokenizer of {agent.agent_id!r} "
                f"({tokenizer.name_or_path or type(tokenizer).__name__}) has no chat template; use "
                "an instruction-tuned model, or set data.apply_chat_template_kwargs.chat_template"
            )
        # one that raises may show the messages of this agent, which have other fields
        if self.chat.hides_texts:
            raise AgentSystemError(
                f"the chat template of {agent.agent_id!r} {self.chat.problem}; set "
                "data.apply_chat_template_kwargs.chat_template to another"
            )
        self.agent = agent
        self.tokenizer = tokenizer
        self.max_prompt_length = max_prompt_length
        self._length_key = length_key
        self.template_kwargs = dict(template_kwargs or {})
        self._special = SpecialTokens(tokenizer, self.chat.structure)
        self._encoder = encoder or Encoder(tokenizer)
        self._cache: OrderedDict[bytes, Prompt] = OrderedDict()

    def of(self, agent: BaseAgent) -> PromptBuilder:
        """Return the builder of another state of the agent; both have one cache."""
        builder = copy.copy(self)
        builder.agent = agent
        return builder

    def build(self, variables: Mapping[str, Any], entries: Sequence[Entry], memory: Memory) -> Prompt:
        """Return the prompt of one call, shortened to `max_prompt_length` tokens if necessary.

        Dropped in this order: entries of the team context from the oldest on, remembered turns from
        the oldest on, the beginning of the newest entry. The system message, the question and the
        template are always kept.

        Args:
            variables: variables of the templates, without `team_context` and `memory`.
            entries: the turn so far, oldest first.
            memory: earlier turns.

        Raises:
            PromptTooLongError: the prompt is too long without any context.
        """
        shortest = 0
        for recent_entries, forgotten in _shrinking(entries, memory.parts):
            prompt = self._attempt(variables, recent_entries, memory, forgotten)
            if len(prompt.ids) <= self.max_prompt_length:
                dropped = len(entries) - len(recent_entries) + forgotten
                return replace(prompt, dropped=dropped) if dropped else prompt
            shortest = len(prompt.ids)
        if entries:
            cut, shortest = self._cut(variables, entries[-1], memory)
            if cut is not None:
                return replace(cut, dropped=len(entries) + memory.parts)
        raise PromptTooLongError(
            f"the prompt of {self.agent.agent_id!r} has {shortest} tokens without any context, "
            f"more than {self._length_key}={self.max_prompt_length}; raise it or shorten the "
            "template"
        )

    def first_lengths(self, variables: Sequence[Mapping[str, Any]], memory: Memory) -> list[int]:
        """Return the lengths in tokens of first prompts, without context and without shortening;
        missing variables count as empty.

        Return 0 for all if the agent's templates cannot be filled without them.

        Args:
            variables: one mapping per task, as for `build`.
            memory: an empty memory.
        """
        try:
            nothing = {"team_context": self.agent.team_context([]), "memory": memory.text()}
            messages = [self.agent.messages(_BlankWhenMissing(v, **nothing)) for v in variables]
        except (
            AgentSystemError,
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:
            # Templates may need values that only the orchestra or environment has; their length is
            # then checked when they are used.
            logger.warning(
                "prompts of %r cannot be measured before they are used: %r", self.agent.agent_id, error
            )
            return [0] * len(variables)
        texts = [self._template(self._special.removed(m)) for m in messages]
        return [len(ids) for ids in encode_all(self.tokenizer, texts)]

    def _cut(self, variables: Mapping[str, Any], entry: Entry, memory: Memory) -> tuple[Prompt | None, int]:
        """Return the prompt with the longest fitting end of the newest entry (a solution ends with
        its answer), and the shortest length.

        The prompt is None if even the shortest end does not fit.
        """
        low = 0
        high = len(entry.text) - 1
        best: Prompt | None = None
        shortest = 0
        while low <= high:
            middle = (low + high) // 2
            cut = replace(entry, text="..." + entry.text[len(entry.text) - middle :])
            prompt = self._attempt(variables, [cut], memory, memory.parts)
            if len(prompt.ids) <= self.max_prompt_length:
                best = prompt
                low = middle + 1
            else:
                shortest = len(prompt.ids)
                high = middle - 1
        return best, shortest

    def _attempt(
        self, variables: Mapping[str, Any], entries: Sequence[Entry], memory: Memory, forgotten: int
    ) -> Prompt:
        filled = {
            **variables,
            "team_context": self.agent.team_context(entries),
            "memory": memory.text(forgotten),
        }
        return self._tokenize(self.agent.messages(filled))

    def _tokenize(self, messages: list[Message]) -> Prompt:
        key = self._key(messages)
        prompt = None if key is None else self._cache.get(key)
        if prompt is None:
            messages = self._special.removed(messages)
            text = self._template(messages)
            prompt = Prompt(text, self._encoder.encode(text), messages=tuple(messages))
            if key is not None:
                self._cache[key] = prompt
            if len(self._cache) > CACHED_PROMPTS:
                self._cache.popitem(last=False)
        return prompt

    def _key(self, messages: list[Message]) -> bytes | None:
        """Return what a prompt depends on: all that the template can see; None for values that only
        their own class can compare.
        """
        try:
            return marshal.dumps(messages, VALUES_ONLY)
        except ValueError:
            return None

    def _template(self, messages: list[Message]) -> str:
        return self.chat.render(messages)


def _shrinking(entries: Sequence[Entry], remembered: int) -> Iterator[tuple[Sequence[Entry], int]]:
    """Yield (entries kept, turns forgotten), from everything down to the newest entry alone."""
    for first in range(max(len(entries), 1)):
        yield entries[first:], 0
    for forgotten in range(1, remembered + 1):
        yield entries[-1:], forgotten
