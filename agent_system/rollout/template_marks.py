"""The marks that a chat template puts around parts of a reply."""

from __future__ import annotations

import re
from dataclasses import dataclass

from verl.protocol.turns import shared_start

MARK = re.compile(r"[<\[][^<>\[\]\s]+[>\]]\w*")


@dataclass(frozen=True, slots=True)
class ReplyMarks:
    """Texts that a model writes around its thinking and its answer.

    Attributes:
        field: the field of a message in which the template takes thinking; `content`: in tags in
            the text.
        begin, end: around the thinking.
        before: before the answer; empty for most models.
        lead, trail: blanks between the marks and the thinking.
        gap: blanks between the thinking and the answer.
    """

    field: str = "content"
    begin: str = "<think>"
    end: str = "</think>"
    before: str = ""
    lead: str = ""
    trail: str = ""
    gap: str = ""

    def is_in(self, text: str) -> bool:
        """Return whether a text has a mark, of these or of any template."""
        return bool(MARK.search(text)) or any(mark and mark in text for mark in (self.begin, self.end))


def whole_marks(text: str) -> str:
    """Return a text without a mark at its end that is cut."""
    return re.sub(r"[<\[][^<>\[\]]*\Z", "", text)


def after_prefix(text: str, prefix: str) -> str:
    """Return a text without a beginning that it shares with another one."""
    return text[len(whole_marks(shared_start(text, prefix))) :].strip()


def last_marks(text: str, like: str) -> str:
    """Return as many marks at the end of a text as another one has, or as there are."""
    for count in range(max(len(re.findall(r"[<\[][^<>\[\]\s]+[>\]]", like)), 1), 0, -1):
        if match := re.search(rf"(?:[<\[][^<>\[\]\s]{{1,40}}[>\]]\w*\s*){{{count}}}\Z", text):
            return match.group().strip()
    return ""


def without_end(text: str, after: str) -> str:
    """Return a reply without the marks that the template puts after one, or the first of them."""
    marks = MARK.findall(after)
    for count in range(len(marks), 0, -1):
        end = "".join(marks[:count])
        if text.endswith(end):
            return text.removesuffix(end)
    return text
