"""A policy's chat template: how it shows messages, and what its model writes, found by rendering conversations that are known."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from os.path import commonprefix
from typing import Any

from agent_system.agent import Message
from agent_system.projection import strip_thinking, thoughts
from agent_system.rollout.tokens import decode, encode_all, special_tokens
from agent_system.tools.formats import OfferedTools, Syntax, read_calls, split_calls, with_calls
from agent_system.tools.formats.derive import TrialCall, derived
from agent_system.tools.formats.named import NAMED
from agent_system.tools.formats.syntax import NUMBER

_QUESTION = "zq question"
_ANSWER = "zq answer"
_SYSTEM = "zq system"
_THOUGHT = "zq thought"
_RESULT = "zq result"
_TAG = re.compile(r"(<[^<>\s]{1,40}>|\[[^\[\]\s]{1,40}\])\s*\Z")
_TAG_NAME = re.compile(r"</?[A-Za-z][\w.:-]*>")
_THINKING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_SOURCE_TAGS = re.compile(r"<([\w:]*think|thought)>", re.IGNORECASE)
_FAMILIES = {"llama3": ("pythonic", "llama3_builtin"), "json": ("pythonic", "llama3")}


def _schema(name: str, properties: Mapping[str, str]) -> dict[str, Any]:
    fields = {key: {"type": kind, "description": key} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": fields, "required": list(fields)}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}


FIRST = TrialCall("zq_tool_a", {"zq_a": "zq value a", "zq_b": 73194, "zq_c": "zq value c"}, "zqid00001")
SECOND = TrialCall("zq_tool_b", {"zq_d": "zq value d"}, "zqid00002")
_HARD_TYPES = {
    "zq_a": "string", "zq_b": "string", "zq_c": "string", "zq_d": "string", "zq_e": "integer", "zq_f": "number", "zq_g": "boolean",
    "zq_h": "object", "zq_i": "array", "zq_j": "integer",
}  # fmt: skip
HARD = TrialCall(
    "zq_tool_c",
    {
        "zq_a": "  red, \"ripe\" ('2') [3] {4}: a=b",
        "zq_b": "def f(x):\n    return x < 1 & x > 0\n",
        "zq_c": "crème 日本 \U0001f600",
        "zq_d": "C:\\new\\table 12",
        "zq_e": -7,
        "zq_f": 2.5,
        "zq_g": True,
        "zq_h": {"zq k": ["a, b", {"n": None}], "e": {}},
        "zq_i": [1, "two, (2)", False],
        "zq_j": None,
    },
    "zqid00003",
)
TOOLS = [
    _schema(FIRST.name, {"zq_a": "string", "zq_b": "integer", "zq_c": "string"}),
    _schema(SECOND.name, {"zq_d": "string"}),
    _schema(HARD.name, _HARD_TYPES),
]
_OFFERED = OfferedTools.of(TOOLS)


@dataclass(frozen=True, slots=True)
class CallForm:
    """How calls are given to a template, and how its model writes them.

    Attributes:
        as_text: arguments as text of JSON, else as an object.
        empty: content of a message that only calls: `""` or None.
        syntax: how the model writes calls.
        most: the largest number of calls in one message that it shows: 1, or 2 for any number.
        is_exact: also texts with quotes, brackets and line ends come back as they were.
        numbered: ids are `functions.NAME:NUMBER`.
    """

    as_text: bool
    empty: str | None
    syntax: Syntax
    most: int = 2
    is_exact: bool = True
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class ReplyMarks:
    """Texts that a model writes around its thinking and its answer.

    Attributes:
        field: the field of a message in which the template takes thinking; `content`: in tags in the text.
        begin, end: around the thinking.
        before, after: around the answer; empty for most models.
        header: what the template puts before every reply.
    """

    field: str = "content"
    begin: str = "<think>"
    end: str = "</think>"
    before: str = ""
    after: str = ""
    header: str = ""


class ChatTemplate:
    """A tokenizer's chat template, or the one that `chat_template` of the arguments names.

    Attributes:
        tokenizer: the tokenizer.
        kwargs: more arguments of the template.
        source: the template's text.
    """

    def __init__(self, tokenizer: Any, kwargs: Mapping[str, Any] | None = None) -> None:
        self.tokenizer, self.kwargs = tokenizer, dict(kwargs or {})
        self.source = str(self.kwargs.get("chat_template") or tokenizer.chat_template or "")

    def raw(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), prompt: bool = True) -> str:
        """Return the text of messages as they are. Raise whatever the template raises."""
        return str(
            self.tokenizer.apply_chat_template(
                [dict(message) for message in messages], tools=list(tools) or None, tokenize=False, add_generation_prompt=prompt,
                **self.kwargs,
            )
        )  # fmt: skip

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), prompt: bool = True) -> str:
        """Return the text of a conversation, each message given in the form that this template shows; with `prompt` a reply may follow.

        Raises:
            Exception: whatever the template raises.
        """
        return self.raw(self.prepared(messages), tools, prompt)

    def prepared(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return messages in the form that this template shows."""
        shown = [self._assistant(message) if message["role"] == "assistant" else dict(message) for message in messages]
        if shown and shown[0]["role"] == "system" and not self.shows_system:
            system, *shown = shown
            first = next((m for m in shown if m["role"] == "user"), None)
            if first is None:
                shown.insert(0, {"role": "user", "content": system["content"]})
            else:
                first["content"] = f"{system['content']}\n\n{first['content']}"
        if self.wants_parts:
            return [{**m, "content": [{"type": "text", "text": m["content"]}]} if isinstance(m.get("content"), str) else m for m in shown]
        return shown

    @cached_property
    def shows_system(self) -> bool:
        """Whether a system message is shown."""
        return _SYSTEM in (self._try([{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _QUESTION}]) or "")

    @cached_property
    def wants_parts(self) -> bool:
        """Whether the text of a message is shown only as a list of parts."""
        if _QUESTION in (self._try([{"role": "user", "content": _QUESTION}]) or ""):
            return False
        parts = [{"type": "text", "text": _QUESTION}]
        return _QUESTION in (self._try([{"role": "user", "content": parts}]) or "")

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the prompt of a request with tools names and describes them."""
        text = self._try_prepared([{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _QUESTION}], TOOLS) or ""
        alone = self._try_prepared([{"role": "user", "content": _QUESTION}], TOOLS) or ""
        return all(tool.name in shown and "zq_a" in shown for tool in (FIRST, SECOND) for shown in (text, alone))

    @cached_property
    def calls(self) -> CallForm | None:
        """The form of tool calls that comes back from the template's own rendering; None if there is none."""
        ways = product((False, True), (False, True), ("", None))
        found = [form for numbered, as_text, empty in ways if (form := self._form(as_text, empty, numbered)) is not None]
        return min(found, key=lambda form: not form.is_exact, default=None)

    @cached_property
    def syntaxes(self) -> tuple[Syntax, ...]:
        """The syntaxes in which calls of its model are read: its own, and those that the model's family uses besides."""
        if self.calls is not None:
            if self.calls.syntax.trigger:
                return (self.calls.syntax,)
            return (self.calls.syntax, *(NAMED[name] for name in ("pythonic", "llama3_builtin", "llama3")))
        return self._mentioned()

    @cached_property
    def marks(self) -> ReplyMarks:
        """The texts around the thinking and the answer of a reply."""
        header = self._header
        plain = self._reply([{"role": "assistant", "content": _ANSWER}]) or _ANSWER
        before, _, after = plain.partition(_ANSWER)
        found = self._thinking()
        wrap = before.removeprefix(header) if header else before
        if found is None:
            tags = _SOURCE_TAGS.search(self.source)
            pair = (tags.group(0), f"</{tags.group(1)}>") if tags and f"</{tags.group(1)}>" in self.source else ("<think>", "</think>")
            found = ("content", *pair)
        field, begin, end = found
        wrap = wrap.replace(begin.strip(), "").replace(end.strip(), "").strip()
        if wrap and end.endswith(wrap) and end != wrap:
            end = end.removesuffix(wrap).strip()
        return ReplyMarks(field, begin.strip(), end.strip(), wrap, self._wrap_after(after), header.strip())

    # PRIVATE

    def _assistant(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a message of the assistant with its thinking and its calls as this template takes them."""
        shown = dict(message)
        text = shown.get("content") or ""
        if self.marks.field != "content" and "</think>" in text:
            shown[self.marks.field] = "\n\n".join(thoughts(text))
            shown["content"] = strip_thinking(text)
        calls = shown.get("tool_calls")
        if not calls:
            return shown
        if self.calls is None:
            del shown["tool_calls"]
            return {**shown, "content": with_calls(shown.get("content") or "", calls)}
        if self.calls.most == 1:
            calls = calls[:1]
        shown["tool_calls"] = [_with_arguments(call, self.calls.as_text) for call in calls]
        if not shown.get("content"):
            shown["content"] = self.calls.empty
        return shown

    def _try(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), prompt: bool = True) -> str | None:
        try:
            return self.raw(messages, tools, prompt)
        except Exception:  # noqa: BLE001 - a template may raise anything for a conversation that it does not show
            return None

    def _try_prepared(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str | None:
        return self._try(self._plain(messages), tools)

    def _plain(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return messages for a trial: without a system message or as parts where the template wants that."""
        shown = [dict(m) for m in messages if m["role"] != "system" or self.shows_system]
        if self.wants_parts:
            return [{**m, "content": [{"type": "text", "text": m["content"]}]} if isinstance(m.get("content"), str) else m for m in shown]
        return shown

    def _reply(self, added: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str | None:
        """Return what the template shows after a question; None if it shows nothing of it."""
        whole = self._try(self._plain([{"role": "user", "content": _QUESTION}, *added]), tools, prompt=False)
        if whole is None:
            return None
        return whole.rpartition(_QUESTION)[2]

    @cached_property
    def _header(self) -> str:
        """What stands between a question and every reply to it, with the end of the question."""
        alone = self._try(self._plain([{"role": "user", "content": _QUESTION}])) or ""
        prompt = alone.rpartition(_QUESTION)[2]
        last = self._reply([{"role": "assistant", "content": _ANSWER}]) or ""
        earlier = self._reply([{"role": "assistant", "content": _ANSWER}, {"role": "user", "content": "zq more"}]) or last
        return _whole_marks(commonprefix([prompt, last.partition(_ANSWER)[0], earlier.partition(_ANSWER)[0]]))

    @property
    def opening(self) -> str:
        """The text with which every prompt ends, after the header of a reply."""
        alone = self._try(self._plain([{"role": "user", "content": _QUESTION}])) or ""
        return alone.rpartition(_QUESTION)[2]

    def _thinking(self) -> tuple[str, str, str] | None:
        """Return the field in which thinking is given, and the texts around it; None if none is shown."""
        call = {"tool_calls": [FIRST.message(False)]}
        for extra in ({}, call):
            for field in _THINKING_FIELDS:
                said = {"role": "assistant", "content": _ANSWER, field: _THOUGHT, **extra}
                text = self._reply([said], TOOLS if extra else ())
                if text is None or _THOUGHT not in text:
                    continue
                mark = _ANSWER if _ANSWER in text.partition(_THOUGHT)[2] else FIRST.name
                head, _, rest = text.partition(_THOUGHT)
                begin = head.removeprefix(self._header).strip() if self._header else ""
                if not begin:
                    tag = _TAG.search(head)
                    begin = tag.group(1) if tag else ""
                end = rest.partition(mark)[0].strip()
                if mark == FIRST.name:
                    end = end.split("\n")[0]
                if begin and end:
                    in_content = self._reply(
                        [{"role": "assistant", "content": f"{begin}\n{_THOUGHT}\n{end}\n\n{_ANSWER}", **extra}], TOOLS if extra else ()
                    )
                    same = in_content is not None and in_content.split() == text.split() and begin == "<think>"
                    return ("content" if same else field), begin, end
        return None

    def _wrap_after(self, after: str) -> str:
        """Return what stands between an answer and the end of its turn."""
        tokens = special_tokens(self.tokenizer)
        ends = [place for token in tokens if (place := after.find(token)) >= 0]
        return after[: min(ends)].strip() if ends else ""

    def _form(self, as_text: bool, empty: str | None, numbered: bool) -> CallForm | None:
        """Return the form of calls if a syntax reads back what this template shows of them."""
        first, second, hard = (_numbered(call, place) if numbered else call for call, place in ((FIRST, 0), (SECOND, 1), (HARD, 0)))
        one = self._shown((first,), as_text, empty)
        if one is None:
            return None
        two = self._shown((first, second), as_text, empty)
        three = self._shown((hard,), as_text, empty)
        most, calls, text = (1, (first,), one) if two is None else (2, (first, second), two)
        found = derived(text, calls)
        best: list[tuple[bool, int, Syntax]] = []
        for syntax in [*NAMED.values(), *([found] if found else [])]:
            if _reads(syntax, one, (first,)) and (two is None or _reads(syntax, two, (first, second))):
                best.append((three is None or not _reads(syntax, three, (hard,)), len(split_calls(text, [syntax], _OFFERED)[0]), syntax))
        if not best:
            return None
        is_lossy, _, syntax = min(best, key=lambda entry: entry[:2])
        return CallForm(as_text, empty, syntax, most, not is_lossy, numbered or NUMBER in syntax.header)

    def _shown(self, calls: Sequence[TrialCall], as_text: bool, empty: str | None) -> str | None:
        """Return the reply with these calls as its model would write it: through the tokens, without the end of the turn."""
        said = {"role": "assistant", "content": empty, "tool_calls": [call.message(as_text) for call in calls]}
        results = [{"role": "tool", "content": _RESULT, "name": call.name, "tool_call_id": call.id} for call in calls]
        alone = self._reply([said], TOOLS)
        text = self._reply([said, *results], TOOLS)
        if text is None or alone is None or any(call.name not in text for call in calls):
            return None
        # Some templates show a call only together with its result.
        text = alone if all(call.name in alone for call in calls) else text.partition(_RESULT)[0]
        ids = encode_all(self.tokenizer, [text.removeprefix(self._header).removesuffix(self.after)])[0]
        return decode(self.tokenizer, ids, special=True)

    @cached_property
    def after(self) -> str:
        """What the template puts after a reply."""
        return (self._reply([{"role": "assistant", "content": _ANSWER}]) or "").rpartition(_ANSWER)[2]

    def _mentioned(self) -> tuple[Syntax, ...]:
        """Return the syntaxes whose marks the prompt or the vocabulary names, for a template that shows no calls."""
        prompt = self._try_prepared([{"role": "user", "content": _QUESTION}], TOOLS) or ""
        known = set(special_tokens(self.tokenizer)) | set(self.tokenizer.get_added_vocab())
        if not self.shows_tools:
            return (NAMED["hermes"],)
        named = [s for s in NAMED.values() if s.trigger and (s.trigger in prompt)]
        named += [s for s in NAMED.values() if s.trigger and s.trigger in known and s not in named]
        plain = NAMED["llama3" if '"parameters"' in self.source or "ipython" in self.source else "json"]
        return (*named, plain)


def _with_arguments(call: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if as_text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _whole_marks(text: str) -> str:
    """Return a text without a mark at its end that is cut."""
    return re.sub(r"[<\[][^<>\[\]]*\Z", "", text)


def _numbered(call: TrialCall, place: int) -> TrialCall:
    return replace(call, id=f"functions.{call.name}:{place}")


def _reads(syntax: Syntax, text: str, calls: Sequence[TrialCall]) -> bool:
    """Return whether a syntax reads these calls from a text, and nothing else."""
    found = read_calls(text, [syntax], _OFFERED)
    return [(r.name, r.arguments, r.error) for r in found] == [(c.name, dict(c.arguments), "") for c in calls]
