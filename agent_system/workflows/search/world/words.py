"""Words of a text for BM25, the same for documents and queries: stems, and parts of text in scripts
without blanks.
"""

from __future__ import annotations

import itertools
import unicodedata
from functools import cache
from typing import Any

import regex

# Those of Lucene's English analyzer.
_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then "
    "there these they this to was will with"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
# Words of these scripts are not separated, or, in Korean, carry their particles.
_UNSEPARATED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
# Of Latin, Greek and Cyrillic letters, the points of Hebrew and the vowels of Arabic with its
# lengthened lines; then what only says where a line may break.
_ACCENTS = regex.compile(
    r"[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670"
    r"\u00ad\u2060\ufeff]+"
)
# Letters with a stroke, and joined ones, which have no form without.
_PLAIN_LETTERS = str.maketrans({
    "ł": "l", "ø": "o", "đ": "d", "ð": "d", "ħ": "h", "ŧ": "t", "ı": "i",
    "æ": "ae", "œ": "oe", "þ": "th",
})  # fmt: skip
_INITIALS = regex.compile(r"(?<![\p{L}\p{N}])(?:\p{L}\.){2,}")
_RUN = rf"(?P<run>(?:[{_UNSEPARATED}]\p{{M}}*)+)"
_NUMBER = r"\p{N}+(?:[.,]\p{N}+)+"
# The signs of C++, C# and the like belong to a word that they end.
_WORD = rf"(?:(?![{_UNSEPARATED}])[\p{{L}}\p{{M}}\p{{N}}])+(?:'\p{{L}}+)?(?:[+#]+(?![\p{{L}}\p{{N}}]))?"
_TOKEN = regex.compile(rf"{_RUN}|{_NUMBER}|{_WORD}")
_THOUSANDS = regex.compile(r"\p{N}{1,3}(?:,\p{N}{3})+(?=\.|$)")
_POSSESSIVE = regex.compile(r"'s?$")


class WordSplitter:
    """Splits texts into words. Upper case, accents of letters and widths of characters do not
    count.

    Args:
        language: of Snowball's stemmer, or an empty text for no stems.
    """

    def __init__(self, language: str = "english") -> None:
        self._stemmer = _stemmer(language) if language else None

    def of(self, text: str) -> list[str]:
        """Return the words in their order, without stop words; of scripts without blanks all
        characters and pairs of neighbours.
        """
        words: list[str] = []
        for match in _TOKEN.finditer(_folded(text)):
            if run := match["run"]:
                words += [*run, *map("".join, itertools.pairwise(run))]
            elif (word := _POSSESSIVE.sub("", match.group())) not in STOP_WORDS:
                if _THOUSANDS.match(word):
                    word = word.replace(",", "")
                words.append(self._stemmer.stemWord(word) if self._stemmer else word)
        return words


def _folded(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    letters = _ACCENTS.sub("", decomposed).translate(_PLAIN_LETTERS)
    plain = unicodedata.normalize("NFC", letters).replace("’", "'")
    return _INITIALS.sub(lambda match: match.group().replace(".", ""), plain)


@cache
def _stemmer(language: str) -> Any:
    import Stemmer

    return Stemmer.Stemmer(language)
