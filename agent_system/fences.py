"""The fenced blocks of code of a Markdown text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

# A line that opens or closes a block of code, in lists and quotes as well.
_PREFIX = r"((?:[ \t\u00a0\u200b\u3000\ufeff]|>|(?:[-*+]|\d{1,9}[.)])(?=[ \t]))*)"
_FENCE = re.compile(rf"{_PREFIX}(?:(`{{3,}})([^`]*)|(~{{3,}})(.*))", re.DOTALL)
_BEHIND_TEXT = re.compile(r"(`{3,})[ \t]*+([\w.+#-]*+)[ \t]*+")
_LANGUAGE = re.compile(r"\W*(?:lang(?:uage)?-)?([^\s{}.,:;=()\[\]<>\"']*)", re.IGNORECASE)
_QUOTE = re.compile(r"[ \t]*> ?")
MOST_INDENTED = 3  # columns of a closing fence, from its opening one


class FencedBlock(NamedTuple):
    """A fenced block of code.

    Attributes:
        language: first word after the fence, in lower case.
        code: its lines, without the indentation of the fence.
        closed: it has an end, which may be at the end of its last line.
        number: its place in the text.
    """

    language: str
    code: str
    closed: bool
    number: int


class _Fence(NamedTuple):
    prefix: str
    mark: str
    info: str


def fenced_blocks(text: str) -> list[FencedBlock]:
    """Return the fenced blocks of a Markdown text (CommonMark 0.31, 4.5), in order.

    Beyond that, fences may be indented by any width, as in lists, or stand behind text, and the
    fence of another language ends an open block. As there, a fence four columns further right than
    the one before it is code, as in the text that documents a function.
    """
    blocks: list[FencedBlock] = []
    opened: _Fence | None = None
    lines: list[str] = []
    # not `splitlines`, which also cuts at characters inside literals
    for line in text.replace("\r\n", "\n").split("\n"):
        fence = _fence(line)
        if opened is None:
            opened = fence or _fence_behind_text(line)
        elif (
            fence is None
            or not fence.mark.startswith(opened.mark)
            or _columns(fence.prefix) > _columns(opened.prefix) + MOST_INDENTED
        ):
            lines.append(line)
        elif fence.info:
            blocks.append(_open_block(opened, lines, len(blocks)))
            opened = fence
            lines = []
        else:
            blocks.append(_block(opened, lines, True, len(blocks)))
            opened = None
            lines = []
    return blocks if opened is None else [*blocks, _open_block(opened, lines, len(blocks))]


def _fence(line: str) -> _Fence | None:
    match = _FENCE.fullmatch(line)
    if match is None:
        return None
    prefix, ticks, info, tildes, other_info = match.groups()
    return _Fence(prefix, ticks or tildes, (info or other_info or "").strip())


def _fence_behind_text(line: str) -> _Fence | None:
    """Return the fence at the end of a line of prose, as models write it: `The code:```python`."""
    place = line.find("`")
    match = _BEHIND_TEXT.fullmatch(line, place) if place > 0 and line[place - 1] != "\\" else None
    prefix = re.match(_PREFIX, line)
    return _Fence(prefix.group(), match[1], match[2]) if match and prefix else None


def _open_block(fence: _Fence, lines: Sequence[str], number: int) -> FencedBlock:
    """Return a block without a line that closes it; it may be closed at the end of a line of code."""
    for index, line in enumerate(lines):
        code = line.rstrip()
        if code.endswith(fence.mark) and (code := code.rstrip(fence.mark[0])).strip():
            return _block(fence, [*lines[:index], code], True, number)
    # Of fences further right, those in pairs are code, as in the text that documents a function.
    inner = [
        index for index, line in enumerate(lines) if (one := _fence(line)) and one.mark.startswith(fence.mark)
    ]
    if len(inner) % 2:
        return _block(fence, lines[: inner[-1]], True, number)
    return _block(fence, lines, False, number)


def _block(fence: _Fence, lines: Sequence[str], closed: bool, number: int) -> FencedBlock:
    language = _LANGUAGE.match(fence.info)
    assert language is not None, "it matches any text"
    quotes = fence.prefix.count(">")
    lines = [_unquoted(line, quotes) for line in lines]
    last = fence.prefix.rfind(">") + 1
    blank = last > 0 and fence.prefix.startswith(" ", last)
    # Code may begin left of its fence; then all of its lines do.
    width = _columns(fence.prefix[last + blank :])
    width = min(width, next((_indentation(line) for line in lines if line.strip()), width))
    return FencedBlock(
        language.group(1).lower(), "\n".join(_outdented(line, width) for line in lines), closed, number
    )


def _unquoted(line: str, quotes: int) -> str:
    for _ in range(quotes):
        if not line.lstrip(" \t").startswith(">"):
            break
        line = _QUOTE.sub("", line, count=1)
    return line


def _columns(prefix: str) -> int:
    return len(prefix.expandtabs(4))


def _indentation(line: str) -> int:
    return _columns(line[: len(line) - len(line.lstrip(" \t"))])


def _outdented(line: str, width: int) -> str:
    """Return a line without at most `width` columns of blanks at its beginning."""
    column = index = 0
    while column < width and index < len(line) and line[index] in " \t":
        column += 1 if line[index] == " " else 4 - column % 4
        index += 1
    return " " * (column - width) + line[index:]


def without_margin(code: str) -> str:
    """Return code without the indentation of its first line, and without white space around it."""
    lines = code.rstrip().lstrip("\r\n").split("\n")
    while lines and not lines[0].strip():
        del lines[0]
    width = _indentation(lines[0]) if lines else 0
    return "\n".join(_outdented(line, width) for line in lines).strip()
