"""A policy's chat template: how it shows messages, and what its model writes, found by rendering
conversations that are known.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count, product
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.projection import thoughts, with_visible, without_thinking
from agent_system.rollout.template_marks import (
    MARK,
    ReplyMarks,
    after_prefix,
    last_marks,
    whole_marks,
    without_end,
)
from agent_system.rollout.template_trials import (
    FIRST,
    HARD,
    OFFERED,
    SECOND,
    TOOLS,
    CallForm,
    in_parts,
    mentioned,
    mentioned_with_tools,
    numbered_call,
    reads,
    with_arguments,
)
from agent_system.rollout.tokens import decode, encode_all, special_tokens, text_after
from agent_system.tools.formats import OfferedTools, Syntax, split_calls, with_calls
from agent_system.tools.formats.named import NAMED
from agent_system.tools.formats.syntax import NUMBER, TrialCall
from verl.protocol.template_time import template_clock
from verl.protocol.turns import shared_start, turn_end_ids

logger = logging.getLogger(__name__)

RENDER_S = 20  # seconds in which a template shows one question
_QUESTION = "zq question"
_ANSWER = "zq answer"
_SYSTEM = "zq system"
_THOUGHT = "zq thought"
_RESULT = "zq result"
_TAG_NAME = re.compile(r"</?[A-Za-z][\w.:-]*>")
_THINKING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_SOURCE_TAGS = re.compile(r"<([\w:]*think|thought)>", re.IGNORECASE)
_BLANKS = " a\n b\n\n  c\t1 23\n"  # as they may stand around any token
_PLAIN = ("llama3", "llama3_builtin", "pythonic")  # forms that models without marks around calls mix


_ANY_TOOL = OfferedTools()


class ChatTemplate:
    """A tokenizer's chat template, or the one that `chat_template` of the arguments names.

    Attributes:
        tokenizer: the tokenizer.
        kwargs: more arguments of the template.
        source: the template's text.
    """

    def __init__(self, tokenizer: Any, kwargs: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self.kwargs = dict(kwargs or {})
        self.source = str(self.kwargs.get("chat_template") or tokenizer.chat_template or "")

    def raw(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        prompt: bool = True,
    ) -> str:
        """Return the text of messages as they are. Raise whatever the template raises."""
        options = {**template_clock(), **self.kwargs}
        chat = [dict(message) for message in messages]
        return str(
            self.tokenizer.apply_chat_template(
                chat, tools=list(tools) or None, tokenize=False, add_generation_prompt=prompt, **options
            )
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        prompt: bool = True,
    ) -> str:
        """Return the text of a conversation, each message given in the form that this template shows; with
        `prompt` a reply may follow.

        Raises:
            Exception: whatever the template raises.
        """
        return self.raw(self.prepared(messages), tools, prompt)

    def prepared(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return messages in the form that this template shows."""
        template_messages = [
            self._assistant(message) if message["role"] == "assistant" else dict(message)
            for message in messages
        ]
        if template_messages and template_messages[0]["role"] == "system" and not self.shows_system:
            system, *template_messages = template_messages
            first = next((m for m in template_messages if m["role"] == "user"), None)
            if first is None:
                template_messages.insert(0, {"role": "user", "content": system["content"]})
            else:
                first["content"] = f"{system['content']}\n\n{first['content']}"
        if self.wants_parts:
            return [in_parts(m) for m in template_messages]
        return template_messages

    @cached_property
    def problem(self) -> str:
        """Why no prompt can be made with the template, in a line; empty if it shows a question."""
        messages = self._plain([{"role": "user", "content": _QUESTION}])
        results: list[str | Exception] = []

        def show() -> None:
            try:
                results.append(self.raw(messages))
            except Exception as error:  # a template may raise anything
                results.append(error)

        # A template may also never end, which only the end of the process ends.
        thread = threading.Thread(target=show, name="chat template", daemon=True)
        thread.start()
        thread.join(RENDER_S)
        if not results:
            return f"did not show a question within {RENDER_S} s"
        (result,) = results
        if isinstance(result, Exception):
            cause = str(result).strip().partition("\n")[0][:200]
            return f"cannot show a question: {type(result).__name__}: {cause}"
        return "" if _QUESTION in result else "does not show the text of a message of the user"

    @property
    def hides_texts(self) -> bool:
        """Whether a question is rendered without its text, or never."""
        return self.problem.startswith(("does not show", "did not show"))

    @cached_property
    def shows_system(self) -> bool:
        """Whether a system message is shown."""
        messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _QUESTION}]
        return _SYSTEM in (self._try([in_parts(m) for m in messages] if self.wants_parts else messages) or "")

    @cached_property
    def wants_parts(self) -> bool:
        """Whether the text of a message is shown only as a list of parts."""
        if _QUESTION in (self._try([{"role": "user", "content": _QUESTION}]) or ""):
            return False
        parts = [{"type": "text", "text": _QUESTION}]
        return _QUESTION in (self._try([{"role": "user", "content": parts}]) or "")

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the prompt of a request with tools names them."""
        text = (
            self._try_plain(
                [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _QUESTION}], TOOLS
            )
            or ""
        )
        alone = self._try_plain([{"role": "user", "content": _QUESTION}], TOOLS) or ""
        return all(call.name in prompt_text for call in (FIRST, SECOND) for prompt_text in (text, alone))

    @cached_property
    def calls(self) -> CallForm | None:
        """The form of tool calls that comes back from the template's own rendering; None if there is none."""
        ways = product((False, True), (False, True), ("", None))
        lossy = None
        for numbered, as_text, empty in ways:
            form = self._form(as_text, empty, numbered)
            if form is not None and form.is_exact:
                return form
            lossy = lossy or form
        return lossy

    @cached_property
    def reads_calls_after_text(self) -> bool:
        """Whether a call comes back where the template shows it after a text."""
        if self.calls is None:
            return True
        first = numbered_call(FIRST, 0) if self.calls.numbered else FIRST
        text = self._shown((first,), self.calls.as_text, _ANSWER)
        return (
            text is None
            or _ANSWER not in text.partition(first.name)[0]
            or reads(self.calls.syntax, text, (first,))
        )

    @cached_property
    def syntaxes(self) -> tuple[Syntax, ...]:
        """The syntaxes in which calls of its model are read: its own, and those that the model's family uses
        besides.
        """
        if not self.shows_tools and self.calls is None:
            return (NAMED["hermes"],)  # as the text that then describes the tools
        if self.calls is None:
            if self._renders_calls:
                return ()
            vocabulary = {*special_tokens(self.tokenizer), *self.tokenizer.get_added_vocab()}
            return mentioned(self.source, self._asked(TOOLS), vocabulary)
        first = self.calls.syntax
        others = mentioned_with_tools(self._asked(TOOLS), self._asked(()), first)
        others += [NAMED[name] for name in _PLAIN if not first.trigger]
        return (first, *(syntax for syntax in others if syntax is not first))

    def _asked(self, tools: Sequence[Mapping[str, Any]]) -> str:
        return self._try_plain([{"role": "user", "content": _QUESTION}], tools) or ""

    def checked_syntaxes(self, agent_id: str) -> tuple[Syntax, ...]:
        """Return `syntaxes` for an agent that calls tools.

        Raises:
            AgentSystemError: what the template shows of a call cannot be read back, or it shows none and
                names no syntax.
        """
        if not self.syntaxes:
            why = f"does not show how its model calls tools{self._failure}"
            if self._renders_calls:
                why = "shows tool calls in a form that cannot be read back"
            raise AgentSystemError(
                f"the chat template of {agent_id!r} {why}; set tool_format of the agent to one of "
                f"{', '.join(NAMED)}, or data.apply_chat_template_kwargs.chat_template to another template"
            )
        if self.calls is not None and not self.calls.is_exact:
            logger.warning(
                "the chat template of %r writes texts with quotes, brackets or line ends in tool calls so "
                "that they cannot be read back",
                agent_id,
            )
        return self.syntaxes

    def call_id(self, name: str, place: int) -> str:
        """Return the id of a call by its place: nine letters and digits, as some templates want."""
        is_numbered = self.calls is not None and self.calls.numbered
        return f"functions.{name}:{place}" if is_numbered else f"call{place:05d}"

    def call_ids(self, calls: Sequence[tuple[str, str]], earlier: int) -> list[str]:
        """Return the ids with which calls (name, id that the model wrote) are shown: these, unless they are
        empty, refused by the template or another call's.
        """
        ids: list[str] = []
        for place, (name, sampled) in enumerate(calls, earlier):
            used_ids = {*ids, *(sampled_id for _, sampled_id in calls)}
            candidates = (self.call_id(name, number) for number in count(place))
            refused = self.calls is not None and self._refuses_ids and not self._shows_id(sampled)
            is_kept = sampled and sampled not in ids and not refused
            ids.append(sampled if is_kept else next(one for one in candidates if one not in used_ids))
        return ids

    @cached_property
    def _refuses_ids(self) -> bool:
        """Whether the template raises for some ids of calls."""
        return not all(map(self._shows_id, ("z", "zq: an odd id")))

    def _shows_id(self, call_id: str) -> bool:
        assert self.calls is not None, "only a template that shows calls is asked"
        call = replace(FIRST, id=call_id)
        return self._rendered((call,), self.calls.as_text, self.calls.empty) is not None

    def without_lead(self, text: str) -> str:
        """Return a rendered reply without what stands before every reply."""
        return text[len(whole_marks(max((shared_start(text, lead) for lead in self._leads), key=len))) :]

    def begin_of_calls(self, text: str, least: int) -> int:
        """Return where the first tool call after a place begins in a rendered conversation; the place itself
        if no mark says so.
        """
        assert self.calls is not None, "only a template that shows calls is asked"
        spans = self.calls.syntax.spans(text[least:], _ANY_TOOL) if self.calls.syntax.trigger else ()
        return least + next((span.begin for span in spans), 0)

    def said_with_calls(self, text: str, visible: str) -> str:
        """Return the content of a message with calls: the thinking of a reply and its text, without the
        blanks before its calls.

        Args:
            text: the reply.
            visible: its text without thinking and calls.
        """
        content = with_visible(text, visible)
        return content if visible else content.removesuffix(self._gap_after_tags)

    @cached_property
    def _gap_after_tags(self) -> str:
        """The blanks that the template adds between thinking that it takes for text and the calls
        after it.
        """
        if self.calls is None or self.marks.field != "content":
            return ""
        head = f"<think>\n{_THOUGHT}\n</think>\n\n"
        message = {"role": "assistant", "content": head, "tool_calls": [FIRST.message(self.calls.as_text)]}
        _, tags, text = (self._reply([message], TOOLS) or "").partition(head)
        spans = list(self.calls.syntax.spans(text, OFFERED)) if tags else []
        gap = text[: spans[0].begin] if spans else ""
        return gap if not gap.strip() else ""

    def end_of_calls(self, text: str) -> int:
        """Return where the last tool call of a rendered reply ends, without what ends the reply."""
        assert self.calls is not None, "only a template that shows calls is asked"
        mark = self.calls.syntax.end.split()[-1:] or self.calls.syntax.after.split()[:1]
        place = text.rfind(mark[0]) if mark else -1
        return place + len(mark[0]) if place >= 0 else len(text)

    def ends_turn(self, token_id: int) -> bool:
        """Return whether a token with which an engine has stopped ends a turn, whatever the template puts
        there.
        """
        return token_id in self._end_ids

    @cached_property
    def _end_ids(self) -> frozenset[int]:
        special = {self.tokenizer.convert_tokens_to_ids(token) for token in special_tokens(self.tokenizer)}
        return frozenset({*turn_end_ids(self.tokenizer, self.kwargs), *(special - self._kept_ids)})

    @property
    def _failure(self) -> str:
        """Why a call cannot be shown; empty where the template raises nothing."""
        try:
            message = {"role": "assistant", "content": "", "tool_calls": [FIRST.message(False)]}
            self.raw([{"role": "user", "content": _QUESTION}, message], TOOLS, prompt=False)
        except Exception as error:  # a template may raise anything
            return f" ({type(error).__name__}: {error})"
        return ""

    @cached_property
    def _renders_calls(self) -> bool:
        """Whether anything of a call is shown."""
        return any(
            self._rendered((FIRST,), as_text, empty) is not None
            for as_text in (False, True)
            for empty in ("", None)
        )

    @cached_property
    def marks(self) -> ReplyMarks:
        """The texts around the thinking and the answer of a reply."""
        plain = (self._reply([{"role": "assistant", "content": _ANSWER}]) or _ANSWER).partition(_ANSWER)[0]
        wrap = plain.removeprefix(self._header)
        thinking = self._thinking(plain)
        if thinking is None:
            tags = _SOURCE_TAGS.search(self.source)
            is_pair = tags is not None and f"</{tags.group(1)}>" in self.source
            begin, end = (
                (tags.group(0), f"</{tags.group(1)}>") if tags and is_pair else ("<think>", "</think>")
            )
            # Some templates put an empty block before every answer, also before one with thinking in tags.
            text = self._reply([{"role": "assistant", "content": f"{begin}{_THOUGHT}{end}{_ANSWER}"}]) or ""
            is_added = f"{begin}{end}" in "".join(text.split()) and _THOUGHT in text
            fields = [
                field
                for field in _THINKING_FIELDS
                if is_added and re.search(rf"[.'\"]{field}\b", self.source)
            ]
            thinking = ReplyMarks(next(iter(fields), "content"), begin, end)
        if thinking.end in wrap:
            wrap = wrap.partition(thinking.end)[2]
        wrap = wrap.replace(thinking.begin, "").strip() if thinking.begin else wrap.strip()
        if not MARK.search(wrap):  # a word is no mark
            wrap = ""
        end = thinking.end.removesuffix(wrap).strip() or thinking.end
        return replace(thinking, end=end, before=wrap)

    @cached_property
    def structure(self) -> frozenset[str]:
        """Tokens of the vocabulary that the template puts around messages, whether they are marked as special
        or not.
        """
        conversation = [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": _QUESTION},
            {"role": "assistant", "content": _ANSWER},
            {"role": "user", "content": _QUESTION},
        ]
        texts = [
            self._try(self._plain(conversation)) or self._try(self._plain(conversation[1:2])) or "",
            self.after,
        ]
        if self.calls is not None:
            call = FIRST.message(self.calls.as_text)
            call_message = {"role": "assistant", "content": self.calls.empty, "tool_calls": [call]}
            result = {"role": "tool", "content": _RESULT, "name": FIRST.name, "tool_call_id": FIRST.id}
            texts.append(
                (self._reply([call_message, result], TOOLS) or "")
                .partition(FIRST.name)[2]
                .rpartition(str(FIRST.arguments["zq_c"]))[2]
            )
        tokens = {*special_tokens(self.tokenizer), *self.tokenizer.get_added_vocab()}
        inner = f"{self.marks.begin} {self.marks.end} <think> </think> {self._call_marks}"
        return frozenset(
            t for t in tokens if t.strip() and t not in inner and any(t in text for text in texts)
        )

    def text_of(self, token_ids: Sequence[int], prompt: str = "") -> str:
        """Return a reply as text: thinking in `<think>` tags, calls as they are, the answer without marks and
        special tokens.

        Args:
            token_ids: the reply.
            prompt: the text of its prompt, which may begin the thinking.
        """
        opened = bool(self.marks.begin) and prompt.rstrip().endswith(self.marks.begin)
        # After results of tools some templates begin no turn.
        before = self._before if not prompt or prompt.endswith(self.opening) else self._before_after_results
        # Alone, some vocabularies take a blank from the beginning: indented code would lose it.
        context = () if self.keeps_text else self.anchor
        has_marks = self._has_marks or (before != self._before and self.marks.is_in(before))
        if not has_marks and self._kept_ids.isdisjoint(token_ids):
            text = text_after(self.tokenizer, context, token_ids, special=False).removeprefix(before)
        else:
            raw = text_after(self.tokenizer, context, token_ids)
            text = self._read(raw.removeprefix(before), opened)
            if not raw.startswith(before):  # marks stand before it
                text = text.removeprefix(before)
        if token_ids and self.ends_turn(token_ids[-1]):
            text = text.removesuffix(self._blanks_after)
        if not opened or text.lstrip().lower().startswith("<think>"):
            return text
        return f"<think>{prompt[prompt.rindex(self.marks.begin) + len(self.marks.begin) :]}{text}"

    @cached_property
    def keeps_text(self) -> bool:
        """Whether texts come back from their tokens as they were, also next to the template's own tokens."""
        sample = "".join(f"{_BLANKS}{token}" for token in sorted(self.structure)) + _BLANKS
        return all(
            decode(self.tokenizer, encode_all(self.tokenizer, [text])[0], special=True) == text
            for text in (sample, _BLANKS)
        )

    @cached_property
    def anchor(self) -> tuple[int, ...]:
        """Tokens after which other tokens have the text that they have inside a text."""
        return encode_all(self.tokenizer, ["a"])[0]

    @cached_property
    def opening(self) -> str:
        """The text with which every prompt ends."""
        alone = self._try(self._plain([{"role": "user", "content": _QUESTION}])) or ""
        return alone.rpartition(_QUESTION)[2]

    @cached_property
    def _before(self) -> str:
        """The blanks or words that the template puts between the end of a prompt and an answer, which a reply
        therefore begins with.
        """
        text = self._reply([{"role": "assistant", "content": _ANSWER}]) or ""
        before = (
            text.removeprefix(self.opening).partition(_ANSWER)[0] if text.startswith(self.opening) else ""
        )
        return "" if self.marks.is_in(before) else before

    @cached_property
    def _before_after_results(self) -> str:
        """As `_before`, where the prompt ends with the result of a tool: some templates have the model begin
        its turn there.
        """
        if self.calls is None:
            return self._before
        call = {**FIRST.message(self.calls.as_text), "id": self.call_id(FIRST.name, 0)}
        conversation: list[dict[str, Any]] = [
            {"role": "user", "content": _QUESTION},
            {"role": "assistant", "content": self.calls.empty, "tool_calls": [call]},
            {"role": "tool", "content": _RESULT, "name": FIRST.name, "tool_call_id": call["id"]},
        ]
        prompt = self._try_plain(conversation, TOOLS)
        whole = self._try(
            self._plain([*conversation, {"role": "assistant", "content": _ANSWER}]), TOOLS, prompt=False
        )
        if not prompt or whole is None or not whole.startswith(prompt):
            return self._before
        before = whole[len(prompt) :].partition(_ANSWER)[0].replace(self.marks.before, "")
        return "" if any(mark and mark in before for mark in (self.marks.begin, self.marks.end)) else before

    @cached_property
    def _blanks_after(self) -> str:
        """The blanks that the template puts between an answer and the token that ends it, which a reply
        therefore ends with.
        """
        return self.after[: len(self.after) - len(self.after.lstrip())]

    @cached_property
    def after(self) -> str:
        """What the template puts after a reply."""
        return (self._reply([{"role": "assistant", "content": _ANSWER}]) or "").rpartition(_ANSWER)[2]

    @cached_property
    def _has_marks(self) -> bool:
        """Whether replies have marks besides `<think>` and those of calls."""
        return (self.marks.begin, self.marks.end, self.marks.before) != (
            "<think>",
            "</think>",
            "",
        ) or "<|message|>" in self._header

    @cached_property
    def _call_marks(self) -> str:
        """All texts around calls, in one."""
        return " ".join(
            f"{s.begin} {s.before} {s.end} {s.after} {s.quote} {' '.join(s.header)} {' '.join(s.around)}"
            for s in self.syntaxes
        )

    @cached_property
    def marks_of_replies(self) -> frozenset[str]:
        """Special tokens that belong to the text of a reply."""
        return frozenset(map(str, self.tokenizer.convert_ids_to_tokens(sorted(self._kept_ids))))

    @cached_property
    def _kept_ids(self) -> frozenset[int]:
        """Special tokens that belong to the text of a reply: those around thinking and calls, and tags such
        as `<answer>`.
        """
        inner = f"{self.marks.begin} {self.marks.end} {self._call_marks}"
        named = [getattr(self.tokenizer, f"{name}_token", None) for name in ("bos", "eos", "pad", "unk")]
        ends = {*self.structure, *named}
        reply_tokens = [
            t
            for t in special_tokens(self.tokenizer)
            if t in inner or (_TAG_NAME.fullmatch(t) and t not in ends)
        ]
        return frozenset(self.tokenizer.convert_tokens_to_ids(reply_tokens))

    def _read(self, raw: str, opened: bool) -> str:
        """Return the text of a reply whose special tokens are in it; with `opened` it begins inside its
        thinking.
        """
        text = without_end(raw, self.after)
        if opened and self.marks.begin not in text.partition(self.marks.end)[0]:
            text = text.replace(self.marks.end, "</think>", 1)
        elif text.lstrip().startswith(self.marks.end):  # nothing was thought
            text = text.lstrip().removeprefix(self.marks.end)
        if self.marks.begin:
            text = self._thoughts.sub(
                lambda match: f"<think>{match['thought']}{'</think>' if match['end'] else ''}", text
            )
        parts: list[str] = []
        place = 0
        for syntax in self.syntaxes:
            if spans := list(syntax.spans(text, _ANY_TOOL)) if syntax.trigger else []:
                for span in spans:
                    parts += [self._answer(text[place : span.begin]), text[span.begin : span.end]]
                    place = span.end
                return "".join(
                    [
                        *parts,
                        self._answer(
                            text[place:].replace(syntax.after, "") if syntax.after else text[place:]
                        ),
                    ]
                )
        return "".join([*parts, self._answer(text[place:])])

    @cached_property
    def _thoughts(self) -> re.Pattern[str]:
        return re.compile(
            rf"{re.escape(self.marks.begin)}(?P<thought>.*?)(?:(?P<end>{re.escape(self.marks.end)})|\Z)",
            re.DOTALL,
        )

    def _answer(self, text: str) -> str:
        """Return a part of a reply without the marks of an answer and without special tokens."""
        for mark in (self.marks.before, self._turn_header):
            if mark:
                # a run of blanks is tried once
                text = re.sub(rf"(?:(?<![ \t])[ \t]+)?{re.escape(mark)}", "", text)
        return self._stripped.sub("", text) if self._stripped else text

    @cached_property
    def _turn_header(self) -> str:
        """What begins a turn of the assistant, without the end of the turn before."""
        header = self._header.strip()
        return header[header.index("<|start|>") :] if "<|start|>" in header else ""

    @cached_property
    def _stripped(self) -> re.Pattern[str] | None:
        tokens = [token for token in special_tokens(self.tokenizer) if token not in self.marks_of_replies]
        return re.compile("|".join(map(re.escape, tokens))) if tokens else None

    def _assistant(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a message of the assistant with its thinking and its calls as this template takes them."""
        template_message = dict(message)
        text = template_message.get("content") or ""
        if self.marks.field != "content" and "</think>" in text:
            template_message[self.marks.field], template_message["content"] = self._parts_of(text)
        calls = template_message.get("tool_calls")
        if not calls:
            return template_message
        if self.calls is None:
            del template_message["tool_calls"]
            return {**template_message, "content": with_calls(template_message.get("content") or "", calls)}
        if self.calls.most == 1:
            calls = calls[:1]
        template_message["tool_calls"] = [with_arguments(call, self.calls.as_text) for call in calls]
        if not template_message.get("content"):
            template_message["content"] = self.calls.empty
        return template_message

    def _parts_of(self, text: str) -> tuple[str, str]:
        """Return the thinking and the answer of a reply, without the blanks that the template puts around
        them itself.
        """
        head, end, rest = text.partition("</think>")
        thought = head.lstrip().removeprefix("<think>")
        if not end or "</think>" in rest or "<think>" in thought + rest:
            return "\n\n".join(thoughts(text)), without_thinking(text)
        if thought.endswith(self.marks.trail):
            thought = thought.removeprefix(self.marks.lead).removesuffix(self.marks.trail)
        else:
            thought = thought.strip()
        return thought, rest.removeprefix(self.marks.gap).lstrip("\n")

    def _try(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        prompt: bool = True,
    ) -> str | None:
        # some templates show no conversation without tools
        for offered in (tools,) if tools else (tools, TOOLS):
            try:
                return self.raw(messages, offered, prompt)
            except Exception:  # a template may raise anything for a conversation that it does not show
                continue
        return None

    def _try_plain(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str | None:
        return self._try(self._plain(messages), tools)

    def _plain(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return messages for a trial: without a system message or as parts where the template wants that."""
        trial_messages = [dict(m) for m in messages if m["role"] != "system" or self.shows_system]
        return [in_parts(m) for m in trial_messages] if self.wants_parts else trial_messages

    def _reply(
        self, added: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str | None:
        """Return what the template shows after a question; None if it shows nothing of it."""
        whole = self._try(self._plain([{"role": "user", "content": _QUESTION}, *added]), tools, prompt=False)
        if whole is None:
            return None
        return whole.rpartition(_QUESTION)[2]

    @cached_property
    def _leads(self) -> tuple[str, ...]:
        """What may stand between a question and a reply."""
        answer = {"role": "assistant", "content": _ANSWER}
        replies = [self._reply([answer]), self._reply([answer, {"role": "user", "content": "zq more"}])]
        return (self.opening, *(text.partition(_ANSWER)[0] for text in replies if text and _ANSWER in text))

    @cached_property
    def _header(self) -> str:
        """What stands between a question and every reply to it, with the end of the question."""
        return whole_marks(shared_start(*self._leads))

    def _thinking(self, plain: str) -> ReplyMarks | None:
        """Return the field in which thinking is given, and the texts around it; None if none is shown.

        Args:
            plain: what stands before an answer without thinking.
        """
        call = [{"tool_calls": [FIRST.message(self.calls.as_text)]}] if self.calls is not None else []
        for extra in ({}, *call):
            for field in _THINKING_FIELDS:
                text = self._reply(
                    [{"role": "assistant", "content": _ANSWER, field: _THOUGHT, **extra}],
                    TOOLS if extra else (),
                )
                if text is None or _THOUGHT not in text:
                    continue
                head, _, rest = text.partition(_THOUGHT)
                end = self._end_of_thought(rest)
                if call and not extra:
                    end = self._shared_end(field, end)
                begin = after_prefix(head, self._header)
                if not begin:
                    begin = (
                        last_marks(head, end) if end in plain else after_prefix(self.opening, self._header)
                    )
                if not end:
                    continue
                message = {
                    "role": "assistant",
                    "content": f"<think>\n{_THOUGHT}\n</think>\n\n{_ANSWER}",
                    **extra,
                }
                same = (self._reply([message], TOOLS if extra else ()) or "").split() == text.split()
                lead = head[len(head.rstrip()) :]
                trail = rest[: len(rest) - len(rest.lstrip())]
                after = rest[len(trail) + len(end) :].partition(_ANSWER)[0]
                gap = after[: len(after) - len(after.lstrip())]
                return ReplyMarks(
                    "content" if same and begin == "<think>" else field,
                    begin,
                    end,
                    lead=lead,
                    trail=trail,
                    gap=gap,
                )
        return None

    def _shared_end(self, field: str, end: str) -> str:
        """Return what ends thinking before an answer and before a call alike: the rest of it begins the
        answer.
        """
        assert self.calls is not None, "only a template that shows calls is asked"
        message = {
            "role": "assistant",
            "content": self.calls.empty,
            field: _THOUGHT,
            "tool_calls": [FIRST.message(self.calls.as_text)],
        }
        _, separator, rest = (self._reply([message], TOOLS) or "").partition(_THOUGHT)
        before_call = self._end_of_thought(rest) if separator else ""
        marks = list(MARK.finditer(whole_marks(shared_start(end, before_call))))
        return end[: marks[-1].end()] if marks else end

    def _end_of_thought(self, rest: str) -> str:
        """Return the mark that ends thinking, from what the template shows after it."""
        places = [place for place in (rest.find(_ANSWER),) if place >= 0]
        if self.calls is not None:
            places += [span.begin for span in self.calls.syntax.spans(rest, OFFERED)][:1]
        return rest[: min(places)].strip() if places else ""

    def _form(self, as_text: bool, empty: str | None, numbered: bool) -> CallForm | None:
        """Return the form of calls if a syntax reads back what this template shows of them."""
        from agent_system.tools.formats.derive import derived  # of templates that show calls alone

        first, second, hard = (
            numbered_call(call, place) if numbered else call
            for call, place in ((FIRST, 0), (SECOND, 1), (HARD, 0))
        )
        one = self._shown((first,), as_text, empty)
        if one is None:
            return None
        two = self._shown((first, second), as_text, empty)
        three = self._shown((hard,), as_text, empty)
        most, calls, text = (1, (first,), one) if two is None else (2, (first, second), two)
        derived_syntax = derived(text, calls)
        best: list[tuple[bool, int, Syntax]] = []
        for syntax in [*NAMED.values(), *([derived_syntax] if derived_syntax else [])]:
            if reads(syntax, one, (first,)) and (two is None or reads(syntax, two, (first, second))):
                best.append(
                    (
                        three is None or not reads(syntax, three, (hard,)),
                        len(split_calls(text, [syntax], OFFERED)[0]),
                        syntax,
                    )
                )
        if not best:
            return None
        is_lossy, _, syntax = min(best, key=lambda entry: entry[:2])
        return CallForm(as_text, empty, syntax, most, not is_lossy, numbered or NUMBER in syntax.header)

    def _shown(self, calls: Sequence[TrialCall], as_text: bool, empty: str | None) -> str | None:
        """Return the reply with these calls as its model would write it: through the tokens, without the end
        of the turn; None if a call stands behind that end, where an engine stops.
        """
        text = self._rendered(calls, as_text, empty)
        if text is None:
            return None
        ids = encode_all(self.tokenizer, [self.without_lead(text).removesuffix(self.after)])[0]
        ends = turn_end_ids(self.tokenizer, self.kwargs)
        end = next((place for place, token in enumerate(ids) if token in ends), len(ids))
        written = decode(self.tokenizer, ids[:end], special=True)
        return written if all(call.name in written for call in calls) else None

    def _rendered(self, calls: Sequence[TrialCall], as_text: bool, empty: str | None) -> str | None:
        """Return what the template shows of a message with these calls; None if it lacks one of them."""
        message = {
            "role": "assistant",
            "content": empty,
            "tool_calls": [call.message(as_text) for call in calls],
        }
        results = [
            {"role": "tool", "content": _RESULT, "name": call.name, "tool_call_id": call.id} for call in calls
        ]
        alone = self._reply([message], TOOLS)
        text = self._reply([message, *results], TOOLS)
        if text is None or alone is None or any(call.name not in text for call in calls):
            return None
        # Some templates show a call only together with its result.
        return alone if all(call.name in alone for call in calls) else text.partition(_RESULT)[0]
