"""The fixed grid on which texts are computed: chunks of `CHUNK` positions, so that the bits of a
chunk's keys are a function of the tokens up to its end alone, whatever was computed before it, with
it or between its parts.

A text is cut at multiples of `CHUNK`. What is left behind the last one is computed `SHORT` positions
wide if that holds it. Chunks of one width are computed together, always as many rows as the token
budget holds; rows may be chunks of different texts or consecutive ones of the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

CHUNK = 64
SHORT = 32


@dataclass(frozen=True)
class TextChunk:
    """The tokens of a text from position `start` to before `end`, to be computed into a slot.

    Attributes:
        slot: whose earlier positions hold the keys of the text before `start`.
        text: all tokens of the text.
        width: positions of the row that computes it, at least end - start.
        adapter: under which it is computed.
    """

    slot: int
    text: Sequence[int]
    start: int
    end: int
    width: int
    adapter: str | None

    @property
    def is_last(self) -> bool:
        """Whether the text ends with it."""
        return self.end == len(self.text)

    @property
    def is_whole(self) -> bool:
        """Whether it fills a place of the grid, so that a text with the same beginning has the same
        chunk.
        """
        return self.end - self.start == CHUNK == self.width


def next_chunk(
    slot: int, text: Sequence[int], start: int, adapter: str | None, whole: bool = False
) -> TextChunk:
    """Return the chunk of a text that begins at `start`; with `whole` all that is left."""
    left = len(text) - start
    if whole:
        return TextChunk(slot, text, start, len(text), left, adapter)
    return TextChunk(slot, text, start, start + min(left, CHUNK), SHORT if left <= SHORT else CHUNK, adapter)


class ComputesChunks(Protocol):
    """A model with slots."""

    @property
    def token_budget(self) -> int | None:
        """Tokens of one pass over chunks; None: a text is computed whole and alone."""
        ...

    def compute(self, chunks: Sequence[TextChunk]) -> list[bool]:
        """Compute chunks of one width, in order, and return whether their keys are numbers."""
        ...


def compute_texts(model: ComputesChunks, texts: Mapping[int, Sequence[int]]) -> None:
    """Compute whole texts, by slot, without adapters."""
    starts = dict.fromkeys(texts, 0)
    while starts:
        chunks = [
            next_chunk(slot, texts[slot], start, None, model.token_budget is None)
            for slot, start in starts.items()
        ]
        width = chunks[0].width
        rows = 1 if model.token_budget is None else max(1, model.token_budget // width)
        batch = [chunk for chunk in chunks if chunk.width == width][:rows]
        model.compute(batch)
        for chunk in batch:
            starts[chunk.slot] = chunk.end
            if chunk.is_last:
                del starts[chunk.slot]
