r"""Parsing of a reply's text into an action.

A projection is a function text -> `Projection`. All of them ignore `<think>...</think>`, match tags
in any case, take the last well-formed match, and return `valid=False` instead of guessing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_system.errors import AgentSystemError


@dataclass(frozen=True, slots=True)
class Projection:
    """A parsed reply.

    Attributes:
        action: the parsed text; the fallback, or empty, when nothing could be parsed.
        valid: the reply had the required form.
        fields: further parsed values, such as `approved`.
        text: the reply without its thinking.
    """

    action: str
    valid: bool = True
    fields: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""


Projector = Callable[[str], Projection]

_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.IGNORECASE | re.DOTALL)
_THINK_TAG = re.compile(r"</?think>", re.IGNORECASE)
_THINK_END = re.compile(r"</think>", re.IGNORECASE)
_BRACES = re.compile(r"\\\\|\\[{}]|[{}]")
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_OPEN_BOX = re.compile(r"\\(?:boxed|fbox)(?:[ \t]+(?=[^\s{])|(?=[^\s{A-Za-z]))([^$\n]*)")
MARKS = " \t\n.!*"  # around the word of a verdict
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|[-+]?\.\d+")


def strip_thinking(text: str) -> str:
    """Return `text` without its thinking; an unclosed `<think>` removes all text after it, a lone
    `</think>` all text before it.
    """
    return _visible(text).strip()


def _visible(text: str) -> str:
    """Return the same with the white space around it: the first line may be an indented fence."""
    if "think>" not in text.lower():
        return text
    visible = _THINKING.sub("", text)
    ends = [m.end() for m in _THINK_END.finditer(visible)]
    return visible[ends[-1] if ends else 0 :]


def without_thinking(text: str) -> str:
    """Return `text` without its thinking and the line ends after it, else as it is: code may begin
    with an indentation.
    """
    visible = _visible(text)
    return visible if visible == text else visible.lstrip("\n")


def closed_thinking(text: str) -> str:
    """Return `text` with an end of its thinking, if it has none."""
    opened = text.lower().rfind("<think>")
    return text if opened < 0 or "</think>" in text.lower()[opened:] else f"{text}\n</think>"


def with_visible(text: str, visible: str) -> str:
    """Return a reply's thinking as it is written, and another text in place of the rest."""
    rest = without_thinking(text)
    if not text.endswith(rest):  # blanks stand before the thinking
        rest = rest.lstrip()
    if text.endswith(rest):
        return closed_thinking(text.removesuffix(rest)) + visible
    inner = "\n\n".join(thoughts(text))
    return f"<think>\n{inner}\n</think>\n\n{visible}"


def thoughts(text: str) -> list[str]:
    """Return what `strip_thinking` leaves out, without the tags and without empty thinking."""
    rest = _THINKING.sub("", text)
    ends = [m.start() for m in _THINK_END.finditer(rest)]
    blocks = [*_THINKING.findall(text), *([rest[: ends[-1]]] if ends else [])]
    return [inner for block in blocks if (inner := _THINK_TAG.sub("", block).strip())]


def raw_text(text: str) -> Projection:
    """Take the whole reply; an empty one is invalid."""
    visible = strip_thinking(text)
    return Projection(visible, bool(visible), text=visible)


def tag(name: str) -> Projector:
    """Return a projection to the content of the last `<name>...</name>`."""
    pair = re.compile(
        rf"<{re.escape(name)}\s*>((?:(?!<{re.escape(name)}\s*>).)*?)</{re.escape(name)}\s*>",
        re.IGNORECASE | re.DOTALL,
    )

    def project(text: str) -> Projection:
        visible = strip_thinking(text)
        contents = pair.findall(visible)
        content = contents[-1].strip() if contents else ""
        return Projection(content, bool(content), text=visible)

    return project


def boxed_answer(text: str) -> Projection:
    r"""Take the content of the last closed `\boxed{...}`, braces inside included."""
    visible = strip_thinking(text)
    content = last_boxed(visible)
    return Projection(content, bool(content), text=visible)


def last_boxed(text: str) -> str:
    r"""Return the content of the last closed `\boxed{...}` or `\fbox{...}`, or an empty string.

    Without a brace in the whole text, as in `$\boxed 5$`, it is the rest of the line or formula.
    """
    starts = {m.end() - 1: m.end() for m in _BOXED.finditer(text)}
    if not starts:
        contents = _OPEN_BOX.findall(text)
        return contents[-1].strip().rstrip(".,;") if contents else ""
    open_braces: list[int] = []
    best: tuple[int, int] | None = None
    for m in _BRACES.finditer(text):
        if m.group() == "{":
            open_braces.append(m.start())
        elif m.group() == "}" and open_braces:
            start = open_braces.pop()
            if start in starts and (best is None or start > best[0]):
                best = (start, m.start())
    return "" if best is None else text[best[0] + 1 : best[1]].strip()


def code_block(*languages: str) -> Projector:
    """Return a projection to the last fenced block; with `languages`, the last one of those
    (`fields["language"]`).

    Of a reply without a closed block, it is the one that is open at the end.
    """
    language_names = {name.lower() for name in languages}

    def project(text: str) -> Projection:
        from agent_system.fences import FencedBlock, fenced_blocks

        visible = _visible(text)
        blocks = [
            block
            for block in fenced_blocks(visible)
            if not language_names or block.language in language_names
        ]
        last = max(
            blocks, key=lambda block: (block.closed, block.number), default=FencedBlock("", "", False, 0)
        )
        return Projection(last.code, bool(last.code.strip()), {"language": last.language}, visible.strip())

    return project


_PYTHON_BLOCK = code_block(
    "python", "python3", "py", "py3", "ipython", "ipython3", "pypy", "pypy3", "cpython", "cpython3"
)


def python_block(text: str) -> Projection:
    """Return the last fenced block of Python."""
    return _PYTHON_BLOCK(text)


def program_of(reply: str) -> str:
    """Return the last block of Python of a reply, or the whole reply if it has no block at all."""
    from agent_system.fences import fenced_blocks, without_margin

    visible = _visible(reply)
    return python_block(visible).action if fenced_blocks(visible) else without_margin(visible)


def number(text: str) -> Projection:
    """Take the last decimal number, thousands commas removed."""
    visible = strip_thinking(text)
    numbers = _NUMBER.findall(visible)
    return Projection(
        numbers[-1].replace(",", "").lstrip("+") if numbers else "", bool(numbers), text=visible
    )


def verdict(
    name: str = "verify",
    *,
    approve: tuple[str, ...] = ("approve", "approved"),
    reject: tuple[str, ...] = ("reject", "rejected"),
    fallback: str = "reject",
) -> Projector:
    """Return a projection to `approve` or `reject` from the last `<name>...</name>`.

    `fields` holds `approved` (bool) and `parsed` (bool). A reply without a clear verdict is invalid
    and counts as `fallback`.

    Raises:
        AgentSystemError: `fallback` is neither `approve` nor `reject`.
    """
    if fallback not in ("approve", "reject"):
        raise AgentSystemError(f"verdict fallback must be 'approve' or 'reject', found {fallback!r}")
    read = tag(name)
    words = {w.strip(MARKS).lower(): w not in reject for w in (*approve, *reject)}

    def project(text: str) -> Projection:
        inner = read(text)
        parsed = words.get(inner.action.strip(MARKS).lower())
        approved = fallback == "approve" if parsed is None else parsed
        return Projection(
            "approve" if approved else "reject",
            parsed is not None,
            {"approved": approved, "parsed": parsed is not None},
            inner.text,
        )

    return project
