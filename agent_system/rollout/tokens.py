"""Text to token ids and back, without the overhead that prompts do not need."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

CACHED_TOKENS = 2_000_000  # about 80 MB
_CONTEXT = 8  # tokens before others that decide how these are written
# Ends of these are cuts near a blank line that are known to be piece boundaries of the
# pre-tokenizer (see `_blank_lines`).
_AFTER = r"\n\n(?=[!-~])"
_BEFORE_THE_LAST = r"\n(?=\n(?!{added})[!-~])"
_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?WORD+|NUMBER| ?[^\sMARKS\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_KNOWN_SPLITS = {
    _SPLIT.replace("WORD", word).replace("MARKS", marks).replace("NUMBER", number)
    for word, marks in ((r"\p{L}", r"\p{L}"), (r"[\p{L}\p{M}]", r"\p{L}\p{M}"))
    for number in (r"\p{N}", r"\p{N}{1,3}")
}  # Qwen 2 to 3.5, Llama 3


# The same expressions and that of GPT-2 for ASCII texts, where letters are A to Z and numbers 0 to
# 9.
_PIECES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|NUMBER| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PIECES_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"
# Whole pieces, up to a space or the end of a line: many texts have the same ones, and they are half
# as many. None of the expressions above matches a space or a line end between two other characters
# together with the second one. Bounded, because what does not end in this way is tried again behind
# each of its pieces.
_CHUNK = r" ?[!-~]{1,40}+(?:\n(?=[!-~])|(?= [!-~])|\Z)|"
# A place where all of them begin a piece, whatever is before and after it.
_CUT = re.compile(r"(?= [!-~])")
_LAST_CUT = re.compile(r".*(?= [!-~])", re.DOTALL)
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
PIECED_CHARACTERS = 400  # shorter texts are tokenized as they are
CACHED_PIECES, LONGEST_PIECE = 200_000, 80  # in number, in characters


class Encoder:
    """Token ids of prompts, with a cache of paragraphs: one that several prompts share (a task, an
    earlier reply) is tokenized once.

    A long paragraph is put together from the ids of its words and their pieces, most of which were
    met before; what is not ASCII is tokenized with the words around it.

    The ids are exactly those of the whole text: only tokenizers whose pieces cannot cross a blank
    line encode by paragraph, all others encode the whole text.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Inspect the tokenizer; no tokens may be added to it later."""
        self._tokenizer = tokenizer
        parts = _parts(tokenizer) if tokenizer.is_fast else None
        self._blank_lines = None if parts is None else _blank_lines(parts)
        self._token_ids: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._tokens = 0
        self._pieces = None if parts is None or self._blank_lines is None else _pieces(parts)
        self._piece_ids = _Known(lambda piece: encode_all(tokenizer, [piece])[0])
        self._chunk_ids = _Known(self._chunk)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of `text` without adding special tokens, which the chat template has
        already inserted.
        """
        if self._blank_lines is None:
            return encode_all(self._tokenizer, [text])[0]
        cuts = [0, *(blank.end() for blank in self._blank_lines.finditer(text)), len(text)]
        return tuple(chain.from_iterable(self._paragraph(text[begin:end]) for begin, end in pairwise(cuts)))

    def _paragraph(self, text: str) -> tuple[int, ...]:
        ids = self._token_ids.get(text)
        if ids is not None:
            self._token_ids.move_to_end(text)
            return ids
        ids = self._token_ids[text] = (
            self._pieced(text) if len(text) >= PIECED_CHARACTERS else encode_all(self._tokenizer, [text])[0]
        )
        self._tokens += len(ids)
        while self._tokens > CACHED_TOKENS:
            self._tokens -= len(self._token_ids.popitem(last=False)[1])
        return ids

    def _pieced(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text that is not in memory."""
        if self._pieces is None:
            return encode_all(self._tokenizer, [text])[0]
        added, _, chunk = self._pieces
        parts = added.split(text)  # every second one is an added token
        chunks = [
            chunk_text
            for i, part in enumerate(parts)
            for chunk_text in ([part] if i % 2 else _cut(part, chunk))
        ]
        return tuple(chain.from_iterable(map(self._chunk_ids.__getitem__, chunks)))

    def _chunk(self, text: str) -> tuple[int, ...]:
        """Return the ids of an added token, of a chunk of pieces, or of words of which one is not
        ASCII.
        """
        assert self._pieces is not None
        added, piece, _ = self._pieces
        whole = not text.isascii() or added.fullmatch(text)
        return tuple(
            chain.from_iterable(map(self._piece_ids.__getitem__, [text] if whole else piece.findall(text)))
        )


class _Known(dict[str, tuple[int, ...]]):
    """Ids of parts of texts, made when they are met first; long ones are not kept."""

    def __init__(self, encode: Callable[[str], tuple[int, ...]]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, text: str) -> tuple[int, ...]:
        ids = self._encode(text)
        if len(text) <= LONGEST_PIECE:
            if len(self) >= CACHED_PIECES:
                self.clear()
            self[text] = ids
        return ids


def _cut(text: str, chunk: re.Pattern[str]) -> list[str]:
    """Return the chunks of a text without added tokens; what is not ASCII is in one with the words
    around it.
    """
    chunks: list[str] = []
    begin = 0
    while not text.isascii() and (other := _NOT_ASCII.search(text, begin)):
        before = _LAST_CUT.match(text, begin, other.start())
        after = _CUT.search(text, other.end())
        start = before.end() if before else begin
        end = after.start() if after else len(text)
        chunks += [*chunk.findall(text, begin, start), text[start:end]]
        begin = end
    return chunks + chunk.findall(text, begin)


@dataclass(frozen=True)
class _Parts:
    """What a fast tokenizer does to a text before its vocabulary counts.

    Attributes:
        model: name of the algorithm, such as BPE.
        normalizer, steps: the normalizer and the steps of the pre-tokenizer, as in
            `tokenizer.json`.
        added: the added tokens.
    """

    model: str
    normalizer: Mapping[str, Any] | None
    steps: Sequence[Mapping[str, Any]]
    added: Sequence[Any]


def _parts(tokenizer: Any) -> _Parts:
    """Read the parts one by one: the whole `tokenizer.json` holds the vocabulary and takes seconds
    to write and read.
    """
    backend = tokenizer.backend_tokenizer
    normalizer, pre_tokenizer = (
        json.loads(part.__getstate__()) if part is not None else None
        for part in (backend.normalizer, backend.pre_tokenizer)
    )
    if normalizer == {"type": "Sequence", "normalizers": []}:
        normalizer = None
    steps = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer] if pre_tokenizer else [])
    return _Parts(
        type(backend.model).__name__, normalizer, steps, list(backend.get_added_tokens_decoder().values())
    )


def _pieces(parts: _Parts) -> tuple[re.Pattern[str], ...] | None:
    """Return expressions of the added tokens and, for ASCII, of pieces and chunks between them, of
    a tokenizer of `_blank_lines`.

    None for a tokenizer that looks for added tokens after its normalizer, or for some before
    others.
    """
    normalized = {token.normalized for token in parts.added}
    if len(normalized) > 1 or (parts.normalizer and True in normalized):
        return None
    longest_first = sorted((token.content for token in parts.added if token.content), key=len, reverse=True)
    added = re.compile("(" + ("|".join(map(re.escape, longest_first)) or "(?!)") + ")")
    first = parts.steps[0]
    if first["type"] == "ByteLevel":
        return added, re.compile(_PIECES_GPT2, re.ASCII), re.compile(_CHUNK + _PIECES_GPT2, re.ASCII)
    number = "[0-9]{1,3}" if "{1,3}" in first["pattern"]["Regex"] else "[0-9]"
    pieces = _PIECES.replace("NUMBER", number)
    return added, re.compile(pieces, re.ASCII), re.compile(_CHUNK + pieces, re.ASCII)


def _blank_lines(parts: _Parts) -> re.Pattern[str] | None:
    r"""Return a pattern at whose ends a text may be cut without changing its token ids; None if no
    such pattern is known.

    BPE merges inside the pieces of the pre-tokenizer, whose expressions look ahead, never back.
    Qwen's and Llama's match a run of newlines with `\s*[\r\n]+` or at the end of punctuation, and
    none matches a newline and the text after it: a piece ends after the run. GPT-2's `\s+(?!\S)`
    leaves the last newline of a run to a separate piece, unless an added token is next: a piece
    ends before it. NFC does not compose newlines with other characters. Added tokens are cut out
    first and must not extend over white space.
    """
    if parts.model != "BPE" or (parts.normalizer or {"type": "NFC"}) != {"type": "NFC"}:
        return None
    if any(t.lstrip or t.rstrip or t.single_word or "\n" in t.content for t in parts.added):
        return None
    if not parts.steps or any(step.get("add_prefix_space") for step in parts.steps):
        return None
    first, *others = parts.steps
    if first.get("type") == "ByteLevel" and first.get("use_regex", True) and not others:
        if parts.normalizer and any(t.normalized for t in parts.added):
            # such a token is found only after normalization, so the pattern cannot exclude it
            return None
        added = "|".join(re.escape(t.content) for t in parts.added)
        return re.compile(_BEFORE_THE_LAST.format(added=added or "(?!)"))
    splits = first.get("type") == "Split" and first["behavior"] == "Isolated" and not first["invert"]
    bytes_only = [step.get("type") for step in others] == ["ByteLevel"] and not others[0].get(
        "use_regex", True
    )
    return (
        re.compile(_AFTER)
        if splits and bytes_only and first["pattern"].get("Regex") in _KNOWN_SPLITS
        else None
    )


def special_tokens(tokenizer: Any) -> list[str]:
    """Return the special tokens of a tokenizer, longest first: those that it has a name for, and
    those of its vocabulary alone.

    The files of Llama 3 and Gemma name the tokens at the ends of a text, not those of the chat
    template.
    """
    tokens = {
        *tokenizer.all_special_tokens,
        *(token.content for token in tokenizer.added_tokens_decoder.values() if token.special),
    }
    return sorted(tokens - {""}, key=len, reverse=True)


def encode_all(tokenizer: Any, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the ids of every text without adding special tokens.

    Fast tokenizers are called through their backend, which skips offsets and costs a third less CPU
    for the same ids; not for a short text, which would be handed to another thread.
    """
    if not tokenizer.is_fast:
        return [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    backend = tokenizer.backend_tokenizer
    # left over from another user of this tokenizer object
    if backend.truncation is not None:
        backend.no_truncation()
    if backend.padding is not None:
        backend.no_padding()
    if len(texts) == 1 and len(texts[0]) <= LONGEST_PIECE:
        return [tuple(backend.encode(texts[0], add_special_tokens=False).ids)]
    return [
        tuple(encoding.ids) for encoding in backend.encode_batch_fast(list(texts), add_special_tokens=False)
    ]


def text_after(tokenizer: Any, before: Sequence[int], ids: Sequence[int], special: bool = True) -> str:
    """Return the text that tokens add after others, with special ones unless `special` is False:
    decoded alone, some vocabularies take a blank from the start.
    """
    if not before:
        return decode(tokenizer, ids, special)
    context = list(before[-_CONTEXT:])
    head = decode(tokenizer, context, special)
    whole = decode(tokenizer, [*context, *ids], special)
    return whole[len(head) :] if whole.startswith(head) else decode(tokenizer, ids, special)


def decode(tokenizer: Any, ids: Sequence[int], special: bool = False) -> str:
    """Return the text of `ids`, without special tokens unless `special` asks for them."""
    if tokenizer.is_fast and not tokenizer.clean_up_tokenization_spaces:
        return str(tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=not special))
    return str(tokenizer.decode(list(ids), skip_special_tokens=not special))
