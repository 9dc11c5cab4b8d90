"""The text of a team file, YAML or JSON, as values of JSON types, with the place of every value in
the text.

YAML is read as JSON types only: `true`, `false`, `null` and JSON's numbers; every other plain
scalar is text, `yes`, `012` and `1:30` too. Tags, anchors, aliases, further documents and duplicate
keys are refused. Sizes and depth are limited while the text is read, before a value of it is used.
"""

from __future__ import annotations

import bisect
import json
import math
import os
import re
import reprlib
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from agent_system.errors import AgentSystemError

# A value without quotes that begins as a mapping and goes on as text.
_TEXT_WITH_BRACE = re.compile(r":[ ]+\{[\w ]*\}[ ]*[^\s,}\]#]")
MAX_BYTES = 256 * 1024
MAX_DEPTH = 100
MAX_VALUES = 20_000
MAX_TEXT = 32 * 1024
MAX_NUMBER = 32

KeyPath = tuple[str | int, ...]

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LITERALS = {"true": True, "false": False, "null": None, "": None}
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
_JSON_TOKEN = re.compile(r'[^\s"{}\[\],:]+')
_JSON_SPACE = re.compile(r"[ \t\r\n]*")


class SourceProblem(Exception):
    """What is wrong with a text, and where."""

    def __init__(self, message: str, line: int, column: int, path: KeyPath = ()) -> None:
        super().__init__(message)
        self.line = line
        self.column = column
        self.path = path


class _Event(NamedTuple):
    """A step through the text.

    Attributes:
        kind: map | list | end (of a map or list) | value.
        value: of a `value`; JSON type.
        text: of a `value`, as it is written, for keys.
        line, column: place, from 1.
    """

    kind: str
    value: Any
    text: str
    line: int
    column: int


@dataclass(frozen=True)
class TeamSource:
    """A text that was read.

    Attributes:
        name: name of the text in messages, such as its file.
        value: a value of JSON types.
        places: line and column, from 1, of every value by its path.
    """

    name: str
    value: Any
    places: dict[KeyPath, tuple[int, int]] = field(default_factory=dict, repr=False)

    def place(self, path: KeyPath) -> tuple[int, int]:
        """Return line and column of a value, or of the nearest value around it that the text has."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, (1, 1))

    def error(self, path: KeyPath, message: str) -> AgentSystemError:
        """Return the error of a value, in one line: name, line, column, path and message."""
        line, column = self.place(path)
        where = f"{self.name}:{line}:{column}" if self.places else self.name
        return AgentSystemError(f"{where} {path_text(path)}: {message}" if path else f"{where}: {message}")


def path_text(path: KeyPath) -> str:
    """Return a path as `do[0].call`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f"{'.' if text else ''}{_key_text(part)}"
    return text


def short(value: Any) -> str:
    """Return a value for a message: one line of at most 80 printable characters."""
    text = (
        reprlib.repr(value)
        if isinstance(value, list | dict)
        else repr(value[:200] if isinstance(value, str) else value)
    )
    return text if len(text) <= 80 else f"{text[:77]}..."


def read_file(path: str | Path) -> TeamSource:
    """Read a file. Raise AgentSystemError, in one line, for one that cannot be read or is no such
    text.
    """
    name = _key_text(str(path))
    try:
        with open(Path(path).expanduser(), "rb", opener=_open_regular) as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AgentSystemError(f"{name}: cannot be read: {reason} (looked in {Path.cwd()})") from error
    if len(content) > MAX_BYTES:
        raise AgentSystemError(f"{name}: larger than {MAX_BYTES // 1024} KiB, the limit of a team file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise AgentSystemError(f"{name}:{line}: not UTF-8 at byte {error.start}") from error
    return read_text(text, name, is_json=str(path).endswith(".json"))


def read_text(text: str, name: str, *, is_json: bool = False) -> TeamSource:
    """Read a text, YAML unless it is JSON. Raise AgentSystemError, in one line, for what it may not
    have.
    """
    source = TeamSource(name, None)
    try:
        # a lone surrogate has no UTF-8: it is refused below, with its place
        if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
            raise SourceProblem(f"larger than {MAX_BYTES // 1024} KiB, the limit of a team file", 1, 1)
        if control := _CONTROL.search(text):
            raise SourceProblem(
                f"the character {control[0]!r} is not allowed", *_Lines(text).at(control.start())
            )
        reader = _Composer(_json_events(text) if is_json else _yaml_events(text), source.places)
        return TeamSource(name, reader.document(), source.places)
    except SourceProblem as problem:
        source.places[problem.path] = (problem.line, problem.column)
        raise source.error(problem.path, str(problem)) from problem


def write_text(value: Any, *, is_json: bool = False) -> str:
    """Return the text of a value of JSON types, which `read_text` reads as the same value."""
    if is_json:
        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file. Raises OSError for a device, a pipe or a folder, which might not end."""
    # without this flag, the opening of a pipe waits until somebody writes to it
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is no regular file")
    return descriptor


def _key_text(key: str) -> str:
    return key if key.isprintable() and len(key) <= 200 else short(key)


class _Composer:
    """Builds the value of a document from its events."""

    def __init__(self, events: Iterator[_Event], places: dict[KeyPath, tuple[int, int]]) -> None:
        self._events = events
        self._places = places

    def document(self) -> Any:
        """Return the value. Raises SourceProblem."""
        first = next(self._events, None)
        if first is None:
            raise SourceProblem("it is empty", 1, 1)
        value = self._value(first, (), 0)
        if (more := next(self._events, None)) is not None:
            raise SourceProblem("one document only", more.line, more.column)
        return value

    def _value(self, event: _Event, path: KeyPath, depth: int) -> Any:
        self._places[path] = (event.line, event.column)
        if len(self._places) > MAX_VALUES:
            raise SourceProblem(f"more than {MAX_VALUES:,} values", event.line, event.column)
        if event.kind == "value":
            return self._checked(event, path)
        if depth == MAX_DEPTH:
            raise SourceProblem(f"nested more than {MAX_DEPTH} deep", event.line, event.column)
        return (self._mapping if event.kind == "map" else self._list)(path, depth + 1)

    def _mapping(self, path: KeyPath, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while (event := next(self._events)).kind != "end":
            if event.kind != "value":
                raise SourceProblem("a key must be text", event.line, event.column, path)
            key = event.text
            place = (*path, key)
            if len(key) > 200 or _CONTROL.search(key):
                raise SourceProblem(f"{short(key)} cannot be a key", event.line, event.column, path)
            if key in mapping:
                line, _ = self._places[place]
                message = f"the key is there twice, first in line {line}"
                raise SourceProblem(message, event.line, event.column, place)
            mapping[key] = self._value(next(self._events), place, depth)
            # what is wrong with a value is told at its key
            self._places[place] = (event.line, event.column)
        return mapping

    def _list(self, path: KeyPath, depth: int) -> list[Any]:
        items: list[Any] = []
        while (event := next(self._events)).kind != "end":
            items.append(self._value(event, (*path, len(items)), depth))
        return items

    def _checked(self, event: _Event, path: KeyPath) -> Any:
        value = event.value
        if isinstance(value, str):
            if len(value) > MAX_TEXT:
                message = f"a text of {len(value):,} characters; the limit is {MAX_TEXT:,}"
                raise SourceProblem(message, event.line, event.column, path)
            if control := _CONTROL.search(value):
                message = f"the character {control[0]!r} is not allowed in a text"
                raise SourceProblem(message, event.line, event.column, path)
        elif isinstance(value, float) and not math.isfinite(value):
            message = f"the number {short(event.text)} is not finite, or has more than {MAX_NUMBER} digits"
            raise SourceProblem(message, event.line, event.column, path)
        return value


def _yaml_events(text: str) -> Iterator[_Event]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    documents = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            place = (event.start_mark.line + 1, event.start_mark.column + 1)
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1 or event.version or event.tags:
                    raise SourceProblem("one document only, without directives", *place)
            elif isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                raise SourceProblem("anchors and aliases are not allowed", *place)
            elif getattr(event, "tag", None) is not None:
                raise SourceProblem(f"the tag {short(event.tag)} is not allowed", *place)
            elif isinstance(event, yaml.ScalarEvent):
                value = _plain(event.value) if not event.style else event.value
                yield _Event("value", value, event.value, *place)
            elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                yield _Event("map" if isinstance(event, yaml.MappingStartEvent) else "list", None, "", *place)
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                yield _Event("end", None, "", *place)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        hint = _yaml_hint(text, *place)
        raise SourceProblem(f"no YAML: {error.problem or error.context}{hint}", *place) from error
    except yaml.YAMLError as error:
        raise SourceProblem(f"no YAML: {short(str(error))}", 1, 1) from error


def _yaml_hint(text: str, line: int, column: int) -> str:
    """Return what is probably wrong where YAML cannot be read, behind the reader's own words; empty
    if nothing is known.
    """
    lines = text.split("\n")
    # The reader may notice it at the begin of the next line.
    near = "\n".join(lines[max(0, line - 2) : line])
    if lines[min(line, len(lines)) - 1][column - 1 : column] == "\t":
        return "; lines are indented by blanks, not by tabs"
    if _TEXT_WITH_BRACE.search(near):
        return '; a text that begins with { stands in quotes: "{env_prompt} ..."'
    return ""


def _plain(text: str) -> Any:
    """Return the value of a plain scalar. A number that is too long is infinite, which is refused."""
    if text in _LITERALS:
        return _LITERALS[text]
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    if len(text) > MAX_NUMBER:
        return math.inf
    return float(text) if number[1] or number[2] else int(text)


class _Lines:
    """Lines and columns of the places of a text, from 1."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(m.end() for m in re.finditer("\n", text))]

    def at(self, place: int) -> tuple[int, int]:
        """Return line and column of a place."""
        line = bisect.bisect_right(self._starts, place)
        return line, place - self._starts[line - 1] + 1


def _json_events(text: str) -> Iterator[_Event]:
    """Yield the events of a JSON text. The composer stops a text that is nested too deep."""
    return _Json(text).document()


class _Json:
    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = _Lines(text)
        self._at = 0

    def document(self) -> Iterator[_Event]:
        """Yield the events of the whole text. Raises SourceProblem."""
        if self._next():
            yield from self._value()
            if self._next():
                raise self._problem("expected nothing after the value")

    def _next(self) -> str:
        """Return the next character that is no space, or an empty text."""
        space = _JSON_SPACE.match(self._text, self._at)
        assert space is not None, "it matches any text"
        self._at = space.end()
        return self._text[self._at : self._at + 1]

    def _event(self, kind: str, value: Any = None, text: str = "") -> _Event:
        return _Event(kind, value, text, *self._lines.at(self._at))

    def _problem(self, message: str) -> SourceProblem:
        return SourceProblem(f"no JSON: {message}", *self._lines.at(self._at))

    def _value(self) -> Iterator[_Event]:
        character = self._next()
        if character and character in "{[":
            yield from self._members(is_map=character == "{")
        elif character == '"':
            yield self._string()
        else:
            token = _JSON_TOKEN.match(self._text, self._at)
            value = _plain(token[0]) if token else ""
            # in JSON a bare word is no text
            if token is None or isinstance(value, str):
                raise self._problem(f"expected a value, found {short(token[0] if token else character)}")
            yield self._event("value", value, token[0])
            self._at = token.end()

    def _members(self, *, is_map: bool) -> Iterator[_Event]:
        closing = "}" if is_map else "]"
        yield self._event("map" if is_map else "list")
        self._at += 1
        is_first = True
        while self._next() != closing or not is_first:
            if is_map:
                if self._next() != '"':
                    raise self._problem("expected a key in double quotes")
                yield self._string()
                if self._next() != ":":
                    raise self._problem("expected ':' after a key")
                self._at += 1
            yield from self._value()
            is_first = False
            if self._next() == closing:
                break
            if self._next() != ",":
                raise self._problem(f"expected ',' or {closing!r}")
            self._at += 1
        yield self._event("end")
        self._at += 1

    def _string(self) -> _Event:
        try:
            value, end = scanstring(self._text, self._at + 1, True)
        except json.JSONDecodeError as error:
            self._at = min(error.pos, len(self._text))
            raise self._problem(error.msg) from error
        event = self._event("value", value, value)
        self._at = end
        return event


class _Dumper(yaml.SafeDumper):
    """Writes lines of a text as lines, and quotes what this reader or another one takes for more
    than text.
    """

    def ignore_aliases(self, data: Any) -> bool:
        # a value that is there twice is written twice, since the reader refuses aliases
        del data
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    has_lines = "\n" in text and not text[0].isspace() and not text[-1].isspace()
    # Other characters may be line breaks or marks to a reader of YAML, such as U+0085: an escape
    # keeps them.
    is_plain = all(c.isprintable() or c in "\n\t" for c in text)
    style = '"' if not is_plain else "|" if has_lines else '"' if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-0123456789"))


def lookup(value: Any, path: Sequence[str | int]) -> Any:
    """Return the value at a path of a value of JSON types; None where there is none."""
    for part in path:
        if isinstance(part, int) and isinstance(value, list) and 0 <= part < len(value):
            value = value[part]
        elif isinstance(part, str) and isinstance(value, dict):
            value = value.get(part)
        else:
            return None
    return value
