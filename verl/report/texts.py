"""What can be told of a reply only from its text, so that the index needs no texts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import blake2b

# Longest text of the index; the whole text is with the other texts of the episode.
MOST_CHARACTERS = 200
# Prompts after a reply in which it is searched: searching all of a long episode would take minutes.
LATER_PROMPTS = 16
# Last characters of a reply that are searched in later prompts, which may have only a part of it.
_TAIL = 60


class Numbers:
    """Numbers of distinct texts, from 0, in order of appearance; -1 for an empty text."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def of(self, text: str) -> int:
        """Return the number of a text."""
        return self._numbers.setdefault(hash(text), len(self._numbers)) if text else -1


def cut(text: str) -> str:
    """Return a text of at most 200 characters; of a longer one the start and a hash, so that
    different texts stay different.
    """
    if len(text) <= MOST_CHARACTERS:
        return text
    mark = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return f"{text[: MOST_CHARACTERS - len(mark) - 2]}… {mark}"


def is_heard(reply: str, action: str, later_prompts: Sequence[str], answer: str) -> bool:
    """Return whether the end of a reply, or its action, is in a later prompt or in the answer;
    thoughts (`</think>`) do not count, since later prompts leave them out.
    """
    tail = reply.rpartition("</think>")[2].strip()[-_TAIL:]
    if not tail:
        return False
    if tail in answer or (action and action == answer):
        return True
    if any(tail in prompt for prompt in later_prompts):
        return True
    # A short action, such as a number, is in many prompts by chance.
    return len(action) >= 8 and any(action in prompt for prompt in later_prompts)
