"""Conversations as a chat template shows them, and what a template does not show."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import takewhile
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from verl.utils.chat_template import template_cause
from verl.utils.data_file import DatasetError
from verl.utils.dataset.messages import ChatMessage

_MARK = "MARK7c1f"  # stands for a text that is looked for in a rendering
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Look it up.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_QUESTION: ChatMessage = {"role": "user", "content": "?"}
Tools = Sequence[Mapping[str, Any]] | None


class Rendering:
    """A chat template with its arguments.

    Attributes:
        tokenizer: the tokenizer.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Set the tokenizer and the arguments of its template. Raise DatasetError if there is no
        template.
        """
        self.tokenizer = tokenizer
        # One time for all: renderings are compared, and some templates show the seconds.
        self._kwargs = {"strftime_now": datetime.now().strftime, **(template_kwargs or {})}
        template = self._kwargs.get("chat_template") or tokenizer.chat_template
        if not template:
            raise DatasetError(
                "the tokenizer of model.path has no chat template; use an instruction-tuned model, "
                "or set data.apply_chat_template_kwargs.chat_template"
            )

    def text(self, messages: Sequence[ChatMessage], tools: Tools = None, *, prompt: bool = False) -> str:
        """Return a conversation as text; with `prompt` the beginning of a reply follows.

        Raises:
            DatasetError: the template cannot show it.
        """
        return self._text(self._in_form(messages), tools, prompt)

    def marked(self, messages: Sequence[ChatMessage], tools: Tools = None) -> list[tuple[int, int]] | None:
        """Return the places that the template marks as generated, from character to character; None
        for one without marks.
        """
        template = self._kwargs.get("chat_template") or self.tokenizer.get_chat_template(
            None, None if tools is None else [dict(tool) for tool in tools]
        )
        if not _GENERATION.search(template):
            return None
        arguments = {**self.tokenizer.special_tokens_map, **self._kwargs, "chat_template": template}
        render_output: Any = render_jinja_template(
            [self._in_form(messages)],
            tools=None if tools is None else [dict(tool) for tool in tools],
            return_assistant_tokens_mask=True,
            **arguments,
        )
        return [(begin, end) for begin, end in render_output[1][0]]

    @cached_property
    def closing(self) -> str:
        """The text after the end of a reply that only the end of a conversation has, or that
        separates messages.

        Raises:
            DatasetError: it is the beginning of another message, which the template shows without
                being asked.
        """
        reply = {"role": "assistant", "content": _MARK}
        try:
            last = self.text([_QUESTION, reply]).rpartition(_MARK)[2]
            followed = self.text([_QUESTION, reply, _QUESTION]).rpartition(_MARK)[2]
        except DatasetError:
            # a template that wants other conversations than these ends its replies itself
            return ""
        common = common_length(last, followed)
        ends = [match.end() for match in self._special.finditer(last) if match.end() <= common]
        closing = last[ends[-1] :] if ends else ""
        if self._special.sub("", closing).strip():
            raise DatasetError(
                f"the chat template shows {last!r:.80} behind a reply, although no other message follows"
            )
        return closing

    def ends(self, text: str) -> bool:
        """Return whether a text ends with a special token."""
        return any(match.end() == len(text) for match in self._special.finditer(text))

    def first_token(self, text: str) -> str:
        """Return the special token with which a text begins, after white space; empty where there
        is none.
        """
        match = self._special.match(text, len(text) - len(text.lstrip()))
        return text[: match.end()] if match else ""

    def shows_texts(self) -> bool:
        """Return whether a message's text is shown, as text or as a list with one part."""
        try:
            return _MARK in self.text([{"role": "user", "content": _MARK}], prompt=True)
        except DatasetError:
            return True

    @cached_property
    def _wants_parts(self) -> bool:
        """Whether a text is shown only as a list of parts, as templates of models with images may
        want it.
        """
        for content in (_MARK, [{"type": "text", "text": _MARK}]):
            try:
                if _MARK in self._text([{"role": "user", "content": content}], None, prompt=True):
                    return content is not _MARK
            except DatasetError:
                continue
        return False

    @cached_property
    def _special(self) -> re.Pattern[str]:
        """The special tokens, and the end-of-text token where the tokenizer does not count it as
        one.
        """
        added = [token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special]
        tokens = {*added, *self.tokenizer.all_special_tokens, self.tokenizer.eos_token or ""} - {""}
        return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")

    def _text(self, messages: Sequence[ChatMessage], tools: Tools, prompt: bool = False) -> str:
        try:
            rendered_text = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=None if tools is None else [dict(tool) for tool in tools],
                tokenize=False,
                add_generation_prompt=prompt,
                **self._kwargs,
            )
        except Exception as error:
            # a template raises what it likes; what others raise goes on
            cause = template_cause(error)
            if cause is None:
                raise
            roles = ", ".join(str(message["role"]) for message in messages) or "no message"
            raise DatasetError(f"the chat template cannot show a conversation of {roles}: {cause}") from error
        return str(rendered_text)

    def _in_form(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        template_messages = [
            _call_message(each, *self._form) if each.get("tool_calls") else each for each in messages
        ]
        return [_in_parts(each) for each in template_messages] if self._wants_parts else template_messages

    @cached_property
    def _form(self) -> tuple[bool, bool]:
        """How this template wants calls: whether their arguments are JSON text, and whether an
        empty content is None.

        It is found by showing a call in each form: some templates put the arguments behind a text,
        others encode them.
        """
        call = {
            "id": "call00000",
            "type": "function",
            "function": {"name": "probe", "arguments": {"city": _MARK}},
        }
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        question = _in_parts(_QUESTION) if self._wants_parts else _QUESTION
        for no_content in (False, True):
            for as_text in (False, True):
                reply = _call_message(message, as_text, no_content)
                conversation = [question, _in_parts(reply) if self._wants_parts else reply]
                if self._shows_call(conversation, [_TOOL]) or self._shows_call(conversation, None):
                    return as_text, no_content
        return False, False

    def _shows_call(self, messages: Sequence[ChatMessage], tools: Tools) -> bool:
        try:
            text = self._text(messages, tools)
        except DatasetError:
            return False
        # JSON within JSON, or Python's form of an object
        encoded_twice = r"\"city\"" in text or "'city'" in text
        return _MARK in text and not encoded_twice


def common_length(first: str, second: str) -> int:
    """Return the number of characters with which two texts begin alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _in_parts(message: ChatMessage) -> ChatMessage:
    """Return a message whose text is a list of parts."""
    text = message["content"]
    return {**message, "content": [{"type": "text", "text": text}] if isinstance(text, str) else text}


def _call_message(message: ChatMessage, as_text: bool, no_content: bool) -> ChatMessage:
    """Return a message with tool calls in the form of a template."""
    content = None if no_content and not message["content"] else message["content"]
    calls = [_call(call, as_text) for call in message["tool_calls"]]
    return {**message, "content": content, "tool_calls": calls}


def _call(call: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    if isinstance(function := call.get("function"), dict):
        return {**call, "function": _call(function, as_text)}
    arguments = call.get("arguments")
    text = json.dumps(arguments, ensure_ascii=False) if as_text and isinstance(arguments, dict) else arguments
    return {**call, "arguments": text}
