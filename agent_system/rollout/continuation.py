"""The prompt after a reply: the tokens that were sent and sampled, where the chat template goes on
from them, else its own rendering.

What the template makes of the whole conversation decides. If it begins with the prompt and the
reply, as text or as tokens, the tokens that were sampled stand and those of the rest follow: of
several tokenizations of a text the sampled one is to be trained.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from agent_system.rollout.chat_template import ChatTemplate
from agent_system.rollout.prompt import Prompt
from agent_system.rollout.tokens import decode, text_after
from verl.protocol.generate import Generation

THINKING = "the template leaves out thinking of earlier turns"
EARLIER = "the template shows earlier messages in another way"
REPLY = "the template shows the reply in another way"
END = "the template ends the reply with other tokens"
# tokens by which another tokenization of the same text may be longer or shorter
_SEAM = 16


@dataclass(frozen=True, slots=True)
class NextPrompt:
    """The prompt after a reply.

    Attributes:
        text: its text.
        ids: its tokens.
        rewritten: why it does not begin with all tokens of the last prompt and reply; empty if it
            does.
    """

    text: str
    ids: tuple[int, ...]
    rewritten: str = ""


class Continuation:
    """Makes the next prompts of conversations in one chat template."""

    def __init__(
        self, chat: ChatTemplate, encode: Callable[[str], tuple[int, ...]], keep_thinking: bool = False
    ) -> None:
        """Set the template and the encoder of its texts; `keep_thinking` goes on from thinking that
        the template would leave out.
        """
        self._chat = chat
        self._tokenizer = chat.tokenizer
        self._encode = encode
        self._keep_thinking = keep_thinking

    def after(self, prompt: Prompt, reply: Generation, whole: str) -> NextPrompt:
        """Return the next prompt.

        Args:
            prompt: the last prompt.
            reply: what was sampled for it.
            whole: what the template shows of the conversation with the reply and the messages after
                it.
        """
        sampled = tuple(reply.token_ids)
        reply_text = text_after(self._tokenizer, prompt.ids, sampled)
        following = self._exact(prompt, sampled, reply_text, whole)
        if following is not None:
            return following
        place = self._aligned(prompt.text + reply_text, whole)
        if place is not None and self._keep_thinking:
            rest = whole[place:]
            return NextPrompt(prompt.text + reply_text + rest, (*prompt.ids, *sampled, *self._encode(rest)))
        # A model may end a turn with another token than the template does.
        if reply.stop_reason == "stop" and sampled and self._chat.ends_turn(sampled[-1]):
            body = sampled[:-1]
            text = text_after(self._tokenizer, prompt.ids, body)
            ended = self._exact(prompt, body, text, whole)
            if ended is not None:
                return NextPrompt(ended.text, ended.ids, END)
            place = place if place is not None else self._aligned(prompt.text + text, whole)
        mismatch_reason = REPLY if whole.startswith(prompt.text) else EARLIER
        why = mismatch_reason if place is None else THINKING
        return NextPrompt(whole, self._encode(whole), why)

    def _exact(
        self, prompt: Prompt, sampled: tuple[int, ...], reply_text: str, whole: str
    ) -> NextPrompt | None:
        """Return the next prompt if the conversation begins with the last prompt and the reply."""
        if self._chat.keeps_text:
            return self._by_text(prompt, sampled, reply_text, whole)
        return self._by_tokens(prompt, sampled, whole)

    def _by_text(
        self, prompt: Prompt, sampled: tuple[int, ...], reply_text: str, whole: str
    ) -> NextPrompt | None:
        """Return the next prompt if the conversation begins with the text of the last prompt and of
        the reply.
        """
        if not whole.startswith(prompt.text) or not whole.startswith(reply_text, len(prompt.text)):
            return None
        rest = whole[len(prompt.text) + len(reply_text) :]
        return NextPrompt(whole, (*prompt.ids, *sampled, *self._encode(rest)))

    def _by_tokens(self, prompt: Prompt, sampled: tuple[int, ...], whole: str) -> NextPrompt | None:
        """Return the next prompt if the tokens of the conversation begin with those that were sent,
        or with others of the same text.

        For vocabularies that add or take away blanks, so that texts alone cannot be compared.
        """
        ids = self._encode(whole)
        prefix_ids = (*prompt.ids, *sampled)
        if ids[: len(prefix_ids)] == prefix_ids:
            return NextPrompt(whole, ids)
        text = decode(self._tokenizer, prefix_ids, special=True)
        for place in sorted(
            range(max(0, len(prefix_ids) - _SEAM), min(len(ids), len(prefix_ids) + _SEAM) + 1),
            key=lambda n: abs(n - len(prefix_ids)),
        ):
            if decode(self._tokenizer, ids[:place], special=True) == text:
                return NextPrompt(whole, (*prefix_ids, *ids[place:]))
        whole_text = decode(self._tokenizer, ids, special=True)
        return (
            NextPrompt(whole, (*prefix_ids, *self._encode(whole_text[len(text) :])))
            if whole_text.startswith(text)
            else None
        )

    def _aligned(self, prefix_text: str, whole: str) -> int | None:
        """Return where a conversation goes on after what was sent, thinking in both left aside;
        None if something else differs.
        """
        left = self._thinking.sub("", prefix_text)
        place = count = 0
        for match in self._thinking.finditer(whole):
            part = whole[place : match.start()]
            if count + len(part) >= len(left):
                break
            if not left.startswith(part, count):
                return None
            count += len(part)
            place = match.end()
        end = place + len(left) - count
        return end if whole[place:end] == left[count:] else None

    @cached_property
    def _thinking(self) -> re.Pattern[str]:
        marks = {("<think>", "</think>"), (self._chat.marks.begin, self._chat.marks.end)}
        blocks = [
            rf"{re.escape(begin)}(?:(?!{re.escape(begin)}).)*?{re.escape(end)}\s*"
            for begin, end in sorted(marks)
            if begin and end
        ]
        return re.compile("|".join(blocks), re.DOTALL)


def texts_of_tokens(chat: ChatTemplate, ids: Sequence[int]) -> list[str]:
    """Return the text of every token as it stands inside a text: alone, some vocabularies take a
    blank from its beginning.
    """
    return [text_after(chat.tokenizer, chat.anchor, [token]) for token in ids]
