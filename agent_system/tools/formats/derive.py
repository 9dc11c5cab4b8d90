"""The syntax of tool calls, read from a chat template's own rendering of calls that are known."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from agent_system.tools.formats.literals import LiteralReader
from agent_system.tools.formats.syntax import (
    ANYTHING,
    ID,
    NAME,
    NUMBER,
    ItemMarks,
    KeyNames,
    Syntax,
    TrialCall,
)
from verl.protocol.turns import shared_start

_DECODER = json.JSONDecoder()
_DIGITS = re.compile(r"\d+")
_HOLE = re.compile(f"({NAME}|{ID}|{NUMBER})")


def derived(text: str, calls: Sequence[TrialCall]) -> Syntax | None:
    """Return the syntax in which a text shows calls; None where it shows them in no form that can
    be read.

    Args:
        text: what the template makes of a reply with these calls.
        calls: one or two calls, the first with two texts and a number as arguments in alphabetical
            order.
    """
    for reader in (_json_calls, _object_arguments, _literal_arguments, _item_arguments):
        syntax = reader(text, calls)
        if syntax is not None:
            return syntax
    return None


@dataclass(frozen=True, slots=True)
class _Frame:
    """Texts around calls: before the first one, before each, after each, and after the last one."""

    before: str
    begin: str
    end: str
    after: str

    @classmethod
    def of(cls, text: str, places: Sequence[tuple[int, int]]) -> _Frame:
        """Return the texts around these places; with one place alone all text belongs to the one
        call.
        """
        head = text[: places[0][0]]
        tail = text[places[-1][1] :]
        if len(places) == 1:
            return cls("", head, tail, "")
        between = text[places[0][1] : places[1][0]]
        end = _common_start(between, tail)
        begin = _common_end(between, head)
        # marks that both could hold belong to the beginning
        if len(end) + len(begin) > len(between):
            end = end[: len(between) - len(begin)]
        return cls(head[: len(head) - len(begin)], begin, end, tail[len(end) :])


def _json_calls(text: str, calls: Sequence[TrialCall]) -> Syntax | None:
    """Return the syntax if a name and its arguments stand in one object of JSON."""
    places: list[tuple[int, int]] = []
    keys: KeyNames | None = None
    for call in calls:
        start = places[-1][1] if places else 0
        place = _json_around(text, call, start)
        if (
            place is None
            and keys is not None
            and start == places[-1][1]
            and call.name in text[places[-1][0] : start]
        ):
            continue  # in the list of the first call
        if place is None:
            return None
        keys = keys or _keys_of(json.loads(text[place[0] : place[1]]), call)
        places.append(place)
    if keys is None:
        return None
    frame = _Frame.of(text, places)
    if len(places) == 1 and len(calls) > 1:
        return Syntax("json", before=frame.begin.strip(), after=frame.end.strip(), keys=keys)
    return Syntax(
        "json",
        frame.begin.strip(),
        end=frame.end.strip(),
        before=frame.before.strip(),
        after=frame.after.strip(),
        keys=keys,
    )


def _json_around(text: str, call: TrialCall, start: int) -> tuple[int, int] | None:
    """Return the place of the outermost JSON that holds a name and its arguments."""
    name = text.find(call.name, start)
    value = _json_end_of_arguments(text, call, name)
    if name < 0 or value is None:
        return None
    for place in range(start, name + 1):
        if text[place] in "[{":
            try:
                _, end = _DECODER.raw_decode(text, place)
            except ValueError:
                continue
            if end > value:
                return place, end
    return None


def _json_end_of_arguments(text: str, call: TrialCall, start: int) -> int | None:
    last = str(list(call.arguments.values())[-1]) if call.arguments else call.name
    place = text.find(last, max(start, 0))
    return None if place < 0 else place + len(last)


def _keys_of(value: Any, call: TrialCall) -> KeyNames | None:
    """Return the names of a call's parts in the JSON that shows it."""
    if isinstance(value, list):
        return next((keys for item in value if (keys := _keys_of(item, call)) is not None), None)
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("function"), dict):
        value = {**value, **value["function"]}
    arguments = dict(call.arguments)
    as_json = {
        key
        for key, item in value.items()
        if item == arguments or (isinstance(item, str) and _loaded(item) == arguments)
    }
    named = {key for key, item in value.items() if item == call.name}
    if value.get(call.name) == arguments:
        return KeyNames(name="")
    if not named or not as_json:
        return None
    ids = [key for key, item in value.items() if item == call.id]
    return KeyNames(min(named), min(as_json), ids[0] if ids else "id")


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _object_arguments(text: str, calls: Sequence[TrialCall]) -> Syntax | None:
    """Return the syntax if the arguments alone are an object of JSON."""
    places: list[tuple[int, int, int, int]] = []
    for call in calls:
        start = places[-1][3] if places else 0
        for brace in (m.start() for m in re.finditer(r"\{", text[start:])):
            try:
                value, end = _DECODER.raw_decode(text, start + brace)
            except ValueError:
                continue
            head = text.rfind(call.name, start, start + brace)
            if value == dict(call.arguments) and head >= 0:
                places.append((head, head + len(call.name), start + brace, end))
                break
        else:
            return None
    return _with_header("object", text, places, calls)


def _literal_arguments(text: str, calls: Sequence[TrialCall]) -> Syntax | None:
    """Return the syntax if the arguments are named values in brackets."""
    for opening, separator, close in (("(", "=", ")"), ("{", ":", "}")):
        first = text.find(calls[0].name + opening)
        key, value = next(iter(calls[0].arguments.items()))
        begin = text.find(f"{key}{separator}", first) + len(key) + 1
        if first < 0 or begin <= len(key):
            continue
        quote = text[begin : text.find(str(value), begin)].strip()
        quote = "" if quote in ("'", '"') else quote
        places: list[tuple[int, int, int, int]] = []
        for call in calls:
            head = text.find(call.name + opening, places[-1][3] if places else 0)
            if head < 0:
                break
            at = head + len(call.name) + 1
            try:
                _, end = LiteralReader(text, quote).items(at, separator, close)
            except ValueError:
                break
            places.append((head, at - 1, at, end))
        if len(places) == len(calls):
            syntax = _with_header("literal", text, places, calls)
            if syntax is None:
                return None
            last = text[places[0][2] : places[0][3]]
            numbers = [str(value) for value in calls[0].arguments.values() if not isinstance(value, str)]
            mark = re.escape(quote) if quote else "[\"']"
            return replace(
                syntax,
                quote=quote,
                separator=separator,
                close=close,
                all_quoted=any(re.search(rf"{mark}{re.escape(number)}{mark}", last) for number in numbers),
            )
    return None


def _item_arguments(text: str, calls: Sequence[TrialCall]) -> Syntax | None:
    """Return the syntax if every argument is a text between marks."""
    first = calls[0]
    # begin and end of a key, and of its value
    spots: list[tuple[int, int, int, int]] = []
    place = 0
    for key, value in first.arguments.items():
        at = text.find(key, place)
        value_start = text.find(str(value), at + len(key)) if at >= 0 else -1
        if value_start < 0:
            return None
        spots.append((at, at + len(key), value_start, value_start + len(str(value))))
        place = spots[-1][3]
    between = [text[a[3] : b[0]] for a, b in pairwise(spots)]
    head = text.rfind(first.name, 0, spots[0][0])
    if head < 0 or not between:
        return None
    opening = text[head + len(first.name) : spots[0][0]]
    begin = _common_end(opening, between[0])
    keys = list(first.arguments)
    following = text[spots[-1][3] :]
    ends = [piece.replace(key, NAME) for piece, key in zip([*between, following], keys, strict=True)]
    end = _common_start(ends[0], ends[-1])
    if len(begin) + len(end) > len(ends[0]):
        begin = begin[len(begin) + len(end) - len(ends[0]) :]
    middles = [text[spot[1] : spot[2]] for spot in spots]
    texts = [m for m, v in zip(middles, first.arguments.values(), strict=True) if isinstance(v, str)]
    others = [m for m, v in zip(middles, first.arguments.values(), strict=True) if not isinstance(v, str)]
    if not end.strip() or not middles[0].strip() or len({*texts}) > 1:
        return None
    other = _with_hole(texts[0], others[0]) if others and others[0] != texts[0] else ""
    marks = ItemMarks(begin.strip(), texts[0], end, other)
    places = [
        (
            head,
            head + len(first.name),
            spots[0][0] - len(begin),
            spots[-1][3] + len(end.replace(NAME, keys[-1])),
        )
    ]
    for call in calls[1:]:
        key, value = next(iter(call.arguments.items()))
        spot = text.find(key, places[-1][3])
        at = text.rfind(call.name, places[-1][3], max(spot, 0))
        value_start = text.find(str(value), spot)
        if min(at, spot, value_start) < 0:
            return None
        places.append(
            (
                at,
                at + len(call.name),
                spot - len(begin),
                value_start + len(str(value)) + len(end.replace(NAME, key)),
            )
        )
    syntax = _with_header("items", text, places, calls)
    return None if syntax is None else replace(syntax, items=marks)


def _with_header(
    kind: str, text: str, places: Sequence[tuple[int, int, int, int]], calls: Sequence[TrialCall]
) -> Syntax | None:
    """Return the syntax of calls with a name before their arguments.

    Args:
        kind: see `Syntax`.
        text: the reply.
        places: begin and end of the name of each call, and of its arguments.
        calls: the calls.
    """
    starts = [_start_with_id(text, place, call) for place, call in zip(places, calls, strict=True)]
    frame = _Frame.of(text, [(start, place[3]) for start, place in zip(starts, places, strict=True)])
    headers = [
        text[start : place[2]].replace(call.id, ID).replace(call.name, NAME)
        for start, place, call in zip(starts, places, calls, strict=True)
    ]
    header = headers[0]
    if len(headers) > 1 and headers[1] != header:
        if _DIGITS.sub("#", headers[1]) != _DIGITS.sub("#", header):
            return None
        header = _DIGITS.sub(NUMBER, header)
    parts = tuple(part.strip() for part in _HOLE.split(header) if part.strip())
    if NAME not in parts and ID not in parts:
        return None
    return Syntax(
        kind, frame.begin.strip(), parts, frame.end.strip(), frame.before.strip(), frame.after.strip()
    )


def _start_with_id(text: str, place: tuple[int, int, int, int], call: TrialCall) -> int:
    """Return where a call's name begins, or its id if that stands before the name or holds it."""
    at = text.rfind(call.id, max(0, place[0] - 200), place[2])
    return min(place[0], at) if at >= 0 else place[0]


def _with_hole(one: str, other: str) -> str:
    """Return two texts as one, with `ANYTHING` where a word differs."""
    start = re.sub(r"\w*\Z", "", shared_start(one, other))
    end = re.sub(r"\A\w*", "", shared_start(one[::-1], other[::-1])[::-1])
    return f"{start}{ANYTHING}{end}"


def _common_start(one: str, other: str) -> str:
    """Return the common beginning of two texts, without a mark that it cuts."""
    common_text = shared_start(one, other)
    if len(common_text) in (len(one), len(other)):
        return common_text
    return re.sub(r"[<\[｜|][^<>\[\]]*\Z", "", common_text)


def _common_end(one: str, other: str) -> str:
    """Return the common end of two texts, without a mark that it cuts."""
    common_text = shared_start(one[::-1], other[::-1])[::-1]
    if len(common_text) in (len(one), len(other)):
        return common_text
    return re.sub(r"\A[^<>\[\]]*[>\]]", "", common_text)
