"""The syntax of tool calls: the marks around them, and how a name and its arguments are written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from agent_system.fences import fenced_blocks
from agent_system.json_text import parse_json
from agent_system.tools.formats.literals import LiteralReader
from agent_system.tools.formats.request import OfferedTools, ToolRequest

# in one reply: what follows is one malformed call, so that a reply full of marks is read in linear
# time
MOST_CALLS = 256
NAME = "\0name"
ID = "\0id"
NUMBER = "\0number"
ANYTHING = "\0anything"
_HOLES = {
    NAME: r"(?P<name>[\w.:/\-]{1,200})",
    ID: r"(?P<id>[\w.:/\-]{1,200})",
    NUMBER: r"\d{1,9}",
    ANYTHING: r"[^{}\n]{0,100}?",
}
_LONGEST_MARK = 400
_LETTER = re.compile(r"[^\W\d_]")
_BLANKS = re.compile(r"\s*+")
_SEPARATORS = re.compile(r"[\s;,]*+")
_OPENING = re.compile(r"[\s\[]*+")
_ID_NAME = re.compile(r"(?:functions\.)?(.*?)(?::\d+)?")
_ID_CHARACTERS = re.compile(r"[\w.:/\-]*+")
# the end of a fence on the last line of its JSON
_CLOSED_IN_LINE = re.compile(r"([}\]])[ \t]*```[ \t\r]*$", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*```(?:json)?[ \t]*\n.*?^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_DECODER = json.JSONDecoder()


class CallSpan(NamedTuple):
    """A group of tool calls in a text, with the marks around it.

    Attributes:
        begin, end: its place.
        requests: its calls.
    """

    begin: int
    end: int
    requests: list[ToolRequest]


@dataclass(frozen=True, slots=True)
class ItemMarks:
    """The texts around an argument that is written as it is: `begin` KEY `middle` VALUE `end`.

    Attributes:
        begin, end: the outer ones; `end` holds `NAME` where the key is written again.
        middle: the one before a text.
        other: the one before a value of another type, with `ANYTHING` for the name of its type,
            where it differs: the value is then JSON, whatever the tool's schema says.
    """

    begin: str
    middle: str
    end: str
    other: str = ""


@dataclass(frozen=True, slots=True)
class KeyNames:
    """The names by which a call in JSON holds its name, its arguments and its id; `name` is empty
    where the tool's name is the key.
    """

    name: str = "name"
    arguments: str = "arguments"
    id: str = "id"


@dataclass(frozen=True, slots=True)
class TrialCall:
    """A call that a template is asked to show.

    Attributes:
        name, arguments, id: of the call.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str

    def message(self, as_text: bool) -> dict[str, Any]:
        """Return the call as a chat template takes it, with its arguments as text of JSON or as an
        object.
        """
        arguments: Any = json.dumps(self.arguments, ensure_ascii=False) if as_text else dict(self.arguments)
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


@dataclass(frozen=True)
class Syntax:
    """How a model family writes tool calls. Blanks between marks may differ.

    Attributes:
        kind: `json`: a call is an object of JSON, or several are a list; `object`: its arguments
            are one;
            `literal`: they are named values; `items`: each is a text between marks.
        begin: text before each call.
        header: texts and holes (`NAME`, `ID`, `NUMBER`, `ANYTHING`) between `begin` and the
            arguments.
        end: text after each call.
        before, after: texts before the first call and after the last one.
        around: texts that may stand before or after a reply that consists of calls.
        keys: names inside the object of a call, for `json`.
        fenced: calls may stand in a Markdown fence, for `json`.
        items: marks of an argument, for `items`.
        quote: mark around a text, for `literal`; empty: Python's quotes.
        separator, close: what stands between a name and its value, and after the last one, for
            `literal`.
        all_quoted: values of every type are written as texts, for `literal`.
    """

    kind: str
    begin: str = ""
    header: tuple[str, ...] = ()
    end: str = ""
    before: str = ""
    after: str = ""
    around: tuple[str, ...] = ()
    keys: KeyNames = KeyNames()
    fenced: bool = False
    items: ItemMarks | None = None
    quote: str = ""
    separator: str = "="
    close: str = ")"
    all_quoted: bool = False

    @cached_property
    def trigger(self) -> str:
        """The mark by which a call is found: the last line of `begin` that has a letter, else of
        `before`; empty: there is none.
        """
        for text in (self.begin, self.before):
            if lines := _lines(text):
                return lines[-1]
        return ""

    def spans(self, text: str, tools: OfferedTools) -> Iterator[CallSpan]:
        """Yield the calls of a text, malformed ones included.

        Without a mark, only a reply that consists of calls has any, and only of the tools that are
        offered.
        """
        if not self.trigger:
            yield from self._whole(text, tools)
            return
        place = 0
        for _ in range(MOST_CALLS):
            start = text.find(self.trigger, place)
            if start < 0:
                return
            requests, end = self._group(text, start + len(self.trigger), tools)
            begin = self._begin_of_marks(text, start, place)
            place = _past(text, end, self._after)
            yield CallSpan(begin, place, requests)
        if (start := text.find(self.trigger, place)) >= 0:
            yield CallSpan(
                start,
                len(text),
                [ToolRequest(error=f"there are more than {MOST_CALLS} tool calls in one reply")],
            )

    @cached_property
    def _first_end(self) -> str:
        """The line of `end` without which a call is cut."""
        return next(iter(_lines(self.end)), self.end.strip())

    @cached_property
    def _header(self) -> re.Pattern[str]:
        begin = (
            self.begin.rpartition(self.trigger)[2]
            if self.trigger and self.trigger in self.begin
            else self.begin
        )
        parts = [_HOLES[part] if part in _HOLES else _flexible(part) for part in (begin, *self.header)]
        return re.compile(r"\s*" + r"\s*".join(part for part in parts if part) + r"\s*")

    @cached_property
    def _end(self) -> re.Pattern[str]:
        first, _, others = self.end.partition(self._first_end) if self._first_end else (self.end, "", "")
        optional = "".join(rf"(?:\s*{re.escape(line)})?" for line in others.split())
        return re.compile(rf"\s*{_flexible(first + self._first_end)}{optional}" if self.end.strip() else "")

    @cached_property
    def _after(self) -> re.Pattern[str]:
        return re.compile(rf"\s*{_flexible(self.after)}" if self.after.strip() else "")

    @cached_property
    def _item(self) -> re.Pattern[str]:
        assert self.items is not None, "only syntaxes of this kind have items"
        either = f"(?P<text>{_flexible(self.items.middle)})"
        if self.items.other:
            words = (_flexible(part) for part in self.items.other.split(ANYTHING))
            either += "|" + r"[^<>\"]{1,40}".join(words)
        return re.compile(
            rf"\s*{_flexible(self.items.begin)}\s*(?P<key>[^\s<>\"'\[\]{{}}/][^\s<>\"'\[\]{{}}]{{0,200}})\s*(?:{either})"
        )

    def _begin_of_marks(self, text: str, start: int, least: int) -> int:
        """Return where the marks begin that stand directly before a trigger."""
        wrappers = [line.strip() for line in (self.before + "\n" + self.begin).splitlines() if line.strip()]
        if self.trigger in wrappers:
            wrappers.remove(self.trigger)
        window = text[max(least, start - _LONGEST_MARK) : start]
        rest = window
        for wrapper in reversed(wrappers):
            if rest.rstrip().endswith(wrapper):
                rest = rest.rstrip()[: -len(wrapper)]
        return start - len(window) + len(rest)

    def _group(self, text: str, place: int, tools: OfferedTools) -> tuple[list[ToolRequest], int]:
        """Return the calls after a trigger, and the place after them."""
        if self.kind == "json":
            requests, end, error = _values(text, place, self.keys)
            closed = _past(text, end, self._end)
            following = _past(text, closed, _SEPARATORS)
            ends = (
                closed > end
                or not self.end.strip()
                or following >= len(text)
                or text.startswith(self.trigger, following)
            )
            if not error and requests and ends:
                return requests, closed
            stop = self._end_of_lost(text, end)
            return [ToolRequest(error=error or _not_json(text[place:stop]))], stop
        if self.trigger in self.begin:
            request, end = self._call(text, place, tools)
            return [request], end
        return self._sequence(text, _past(text, place, _OPENING), tools)

    def _sequence(self, text: str, place: int, tools: OfferedTools) -> tuple[list[ToolRequest], int]:
        """Return calls that follow each other, at least one, and the place after the last one."""
        request, place = self._call(text, place, tools)
        requests = [request]
        while not requests[-1].error and len(requests) < MOST_CALLS:
            following = _past(text, place, _SEPARATORS)
            if self._header.match(text, following) is None:
                break
            request, place = self._call(text, following, tools)
            requests.append(request)
        return requests, place

    def _call(self, text: str, place: int, tools: OfferedTools) -> tuple[ToolRequest, int]:
        """Return the call whose name and arguments begin at a place, and the place after it."""
        match = self._header.match(text, place)
        if match is None:
            return ToolRequest(error="a tool call has no name"), self._end_of_lost(text, place)
        name, call_id = self._name(text, match)
        try:
            arguments, end = self._arguments(text, match.end(), name, tools)
        except (ValueError, RecursionError) as error:
            return ToolRequest(error=f"the arguments of {name} are not valid: {error}"), self._end_of_lost(
                text, match.end()
            )
        closed = _past(text, end, self._end)
        if closed == end and self._first_end:
            following = _past(text, end, _SEPARATORS)
            cut = self.kind == "items" or not (
                following >= len(text) or text.startswith(self.trigger or "\0", following)
            )
            if cut:
                return ToolRequest(
                    error=f"the tool call has no {self._first_end} at its end"
                ), self._end_of_lost(text, end)
        return ToolRequest(name, arguments, id=call_id), closed

    def _name(self, text: str, match: re.Match[str]) -> tuple[str, str]:
        """Return the name and the id of a call; one may hold the other."""
        groups = match.groupdict()
        if "name" not in groups:
            call_id = str(groups["id"])
            named = _ID_NAME.fullmatch(call_id)
            return (named.group(1) if named else call_id), call_id
        name = str(groups["name"])
        call_id = str(groups.get("id") or "")
        if NUMBER in self.header and not call_id:
            begin = match.start("name")
            while (
                begin > 0
                and match.start("name") - begin < _LONGEST_MARK
                and _ID_CHARACTERS.match(text[begin - 1]).end()
            ):  # type: ignore[union-attr]
                begin -= 1
            around = text[begin : _past(text, begin, _ID_CHARACTERS)]
            call_id = around if around != name else ""
        return name, call_id

    def _arguments(self, text: str, place: int, name: str, tools: OfferedTools) -> tuple[dict[str, Any], int]:
        if self.kind == "object":
            value, end = _decoded(text, place)
            if isinstance(value, str):
                value = parse_json(value)
            if not isinstance(value, dict):
                raise ValueError("expected an object of JSON")
            return value, end
        if self.kind == "items":
            return self._read_items(text, place, name, tools)
        arguments, end = LiteralReader(text, self.quote).items(place, self.separator, self.close)
        if name in tools.schemas:
            quoted = not self.all_quoted
            arguments = {
                k: tools.typed(name, k, v, quoted) if isinstance(v, str) else v for k, v in arguments.items()
            }
        return arguments, end

    def _read_items(
        self, text: str, place: int, name: str, tools: OfferedTools
    ) -> tuple[dict[str, Any], int]:
        assert self.items is not None, "only syntaxes of this kind have items"
        arguments: dict[str, Any] = {}
        while match := self._item.match(text, place):
            key = match["key"]
            is_other = bool(self.items.other) and match["text"] is None
            middle = self.items.other if is_other else self.items.middle
            last = self.items.end.replace(NAME, key)
            mark = last.strip()
            stop = text.find(mark, match.end())
            if stop < 0:
                raise ValueError(f"{key} has no {mark} at its end")
            lead = middle[len(middle.rstrip()) :]
            trail = last[: len(last) - len(last.lstrip())]
            value = text[match.end() : stop].removeprefix(lead).removesuffix(trail)
            if is_other:
                arguments[key] = parse_json(value)
            else:
                arguments[key] = value if self.items.other else tools.typed(name, key, value)
            place = stop + len(mark)
        return arguments, place

    def _end_of_lost(self, text: str, place: int) -> int:
        """Return where a malformed call ends: after its end, before the next one, or with the text."""
        mark = self._first_end or self.after.strip()
        end = text.find(mark, place) if mark else -1
        following = text.find(self.trigger, place) if self.trigger else -1
        if end >= 0 and (following < 0 or end < following):
            return _past(text, end, self._end) if self._first_end else end
        return following if following >= 0 else len(text)

    def _whole(self, text: str, tools: OfferedTools) -> Iterator[CallSpan]:
        """Yield the calls of a text that consists of them, or has them in fences."""
        if self.fenced:
            closed = _CLOSED_IN_LINE.sub(r"\1\n```", text)
            blocks = [block.code for block in fenced_blocks(closed) if block.language in ("", "json")]
            requests = [request for code in blocks for request in self._plain(code, tools)]
            if blocks:
                if requests:
                    yield CallSpan(0, len(text), requests)
                return
        if requests := self._plain(text, tools):
            yield CallSpan(0, len(text), requests)

    def rest_of(self, text: str) -> str:
        """Return a text without its fences, if calls may stand in them."""
        if not self.fenced or text.startswith(("{", "[")):
            return ""
        return _FENCE.sub("", _CLOSED_IN_LINE.sub(r"\1\n```", text)).strip()

    def _plain(self, text: str, tools: OfferedTools) -> list[ToolRequest]:
        body = text.strip()
        for mark in self.around:
            body = body.removeprefix(mark).removesuffix(mark).strip()
        if self.kind == "json":
            return _plain_json(body, self.keys, tools)
        begin = _past(body, 0, _OPENING)
        match = self._header.match(body, begin)
        if match is None or not tools.allow(self._name(body, match)[0]):
            return []
        requests, place = self._sequence(body, begin, tools)
        rest = body[_past(body, place, self._after) :].strip(" \t\r\n;,]")
        if rest and not requests[-1].error:
            return []
        return requests if all(request.error or tools.allow(request.name) for request in requests) else []


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if _LETTER.search(line)]


def _flexible(text: str) -> str:
    """Return an expression for a text whose blanks may differ."""
    return r"\s*".join(re.escape(word) for word in text.split())


def _past(text: str, place: int, pattern: re.Pattern[str]) -> int:
    match = pattern.match(text, place)
    return place if match is None else match.end()


def _decoded(text: str, place: int) -> tuple[Any, int]:
    """Return the JSON at a place, and the place after it. Raise ValueError if there is none."""
    _, end = _DECODER.raw_decode(text, place)
    return parse_json(text[place:end]), end


def _values(text: str, place: int, keys: KeyNames) -> tuple[list[ToolRequest], int, str]:
    """Return the calls in the JSON at a place, the place after it, and why it cannot be read."""
    requests: list[ToolRequest] = []
    while len(requests) < MOST_CALLS:
        begin = _past(text, place, _SEPARATORS)
        if text[begin : begin + 1] not in ("{", "["):
            break
        try:
            value, place = _decoded(text, begin)
        except (ValueError, RecursionError) as error:
            return requests, place, f"the tool call is not valid JSON: {error}"
        requests += [_checked(item, keys) for item in (value if isinstance(value, list) else [value])]
    return requests, place, ""


def _plain_json(text: str, keys: KeyNames, tools: OfferedTools) -> list[ToolRequest]:
    """Return the calls of a text that consists of JSON; a JSON answer gives none."""
    if not text.startswith(("{", "[")):
        return []
    requests, place, error = _values(text, 0, keys)
    calls = [request for request in requests if not request.error and tools.allow(request.name)]
    if error and (calls or '"name"' in text[place:]):
        calls.append(ToolRequest(error=error))
    wrong = [request for request in requests if request.error]
    return calls or (wrong[:1] if '"name"' in text and not tools.schemas else [])


def _checked(value: Any, keys: KeyNames) -> ToolRequest:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = {**value, **value["function"]}
    if isinstance(value, dict) and not keys.name and len(value) == 1:
        ((name, arguments),) = value.items()
        return ToolRequest(name, arguments)
    name = value.get(keys.name, value.get("name")) if isinstance(value, dict) else None
    if not isinstance(name, str):
        return ToolRequest(error=f'a tool call is an object with "{keys.name}" and "{keys.arguments}"')
    arguments = next((value[key] for key in (keys.arguments, "arguments", "parameters") if key in value), {})
    # some models write the arguments as a text of JSON
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except ValueError as error:
            return ToolRequest(error=f"the arguments are not valid JSON: {error}")
    call_id = value.get(keys.id)
    return ToolRequest(name, arguments, id=call_id if isinstance(call_id, str) else "")


def _not_json(text: str) -> str:
    try:
        parse_json(text.strip())
    except ValueError as error:
        return f"the tool call is not valid JSON: {error}"
    return "a tool call is an object of JSON"
