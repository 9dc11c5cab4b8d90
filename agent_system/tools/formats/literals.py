"""Values as Python and some chat templates write them, read without evaluating anything."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

MOST_NESTED = 100
_BLANK = re.compile(r"\s*+")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"|' + r"'(?:[^'\\]|\\.)*+'", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?")
_KEY = re.compile(r"[^\s\"'{}\[\](),:=<>][^\"'{}\[\](),:=<>\n]{0,200}")
_WORD = re.compile("true|false|null|True|False|None")
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(\r?\n)|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class LiteralReader:
    """Reads values of a text: strings, numbers, `true`/`True` and the like, lists, and objects with
    plain or quoted names.
    """

    def __init__(self, text: str, quote: str = "") -> None:
        """Set the text, and a mark that begins and ends strings which have no escapes."""
        self.text = text
        self._quote = quote

    def skip(self, place: int) -> int:
        """Return the place after blanks."""
        match = _BLANK.match(self.text, place)
        return place if match is None else match.end()

    def items(self, place: int, separator: str, close: str, depth: int = 0) -> tuple[dict[str, Any], int]:
        """Return named values up to `close`, and the place after it. Raise ValueError for another
        form.

        Args:
            place: where the first name begins.
            separator: what stands between a name and its value.
            close: the character that ends them.
            depth: how deep they are nested.
        """
        named_values: dict[str, Any] = {}
        place = self.skip(place)
        while not self.text.startswith(close, place):
            key, place = self._name(place)
            place = self.skip(place)
            if not self.text.startswith(separator, place):
                raise ValueError(f"expected {separator!r} after the name {key[:40]!r}")
            named_values[key], place = self.value(self.skip(place + 1), depth + 1)
            place = self._comma(place)
            if place >= len(self.text):
                raise ValueError(f"it ends before its {close!r}")
        return named_values, place + 1

    def value(self, place: int, depth: int = 0) -> tuple[Any, int]:
        """Return the value at a place, and the place after it. Raise ValueError if there is none."""
        if depth > MOST_NESTED:
            raise ValueError("it is nested too deep")
        first = self.text[place : place + 1]
        if (self._quote and self.text.startswith(self._quote, place)) or first in ("'", '"'):
            return self._string(place)
        if first == "{":
            return self.items(place + 1, ":", "}", depth)
        if first in ("[", "("):
            return self._several(place + 1, "]" if first == "[" else ")", depth)
        if number := _NUMBER.match(self.text, place):
            return _number(number.group()), number.end()
        word = _WORD.match(self.text, place)
        if word is None:
            raise ValueError(f"expected a value, found {self.text[place : place + 20]!r}")
        return _WORDS[word.group()], word.end()

    def _several(self, place: int, close: str, depth: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        place = self.skip(place)
        while not self.text.startswith(close, place):
            value, place = self.value(place, depth + 1)
            values.append(value)
            place = self._comma(place)
        return values, place + 1

    def _comma(self, place: int) -> int:
        place = self.skip(place)
        return self.skip(place + 1) if self.text.startswith(",", place) else place

    def _name(self, place: int) -> tuple[str, int]:
        if self.text[place : place + 1] in ("'", '"') or (
            self._quote and self.text.startswith(self._quote, place)
        ):
            return self._string(place)
        match = _KEY.match(self.text, place)
        if match is None:
            raise ValueError(f"expected the name of an argument, found {self.text[place : place + 20]!r}")
        return match.group().rstrip(), match.end()

    def _string(self, place: int) -> tuple[str, int]:
        if self._quote and self.text.startswith(self._quote, place):
            begin = place + len(self._quote)
            end = self.text.find(self._quote, begin)
            if end < 0:
                raise ValueError(f"a text has no {self._quote} at its end")
            return self.text[begin:end], end + len(self._quote)
        match = _STRING.match(self.text, place)
        if match is None:
            raise ValueError("a text has no quote at its end")
        return _unescaped(match.group()[1:-1]), match.end()


def literal(text: str) -> Any:
    """Return the value that a text consists of. Raise ValueError if it is none."""
    reader = LiteralReader(text)
    value, end = reader.value(reader.skip(0))
    if reader.skip(end) < len(text):
        raise ValueError(f"expected the end, found {text[end : end + 20]!r}")
    return value


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_character, text)
    return _SURROGATES.sub(
        lambda pair: pair.group().encode("utf-16", "surrogatepass").decode("utf-16"), plain
    )


def _character(match: re.Match[str]) -> str:
    code = match.group(1) or match.group(2) or match.group(3)
    if code is not None:
        number = int(code, 16)
        return chr(number) if number < 0x110000 else match.group()
    if match.group(4) is not None:
        return ""
    letter = match.group(5)
    return _LETTERS.get(letter, letter if letter in "\\'\"/" else match.group())


def _number(text: str) -> int | float:
    kind: Callable[[str], int | float] = float if set(text) & set(".eE") else int
    return kind(text)
