"""Numbers read exactly from text, so that most answers need no grader: integers, decimals, percentages, fractions.

Nothing is evaluated: a number is matched by a pattern, its digits are counted, and it becomes a `Fraction`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARS = 200

_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox|operatorname)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"\\[,;:! ]|~|\\q?quad|[\s\u00a0\u2009\u202f]+")
_DEGREE = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|°)$")
_CURRENCY = re.compile(r"^([+-]?)\s*(?:\\?\$|€|£|US\s?\$|USD )\s*")
_UNIT = re.compile(r"(?<=[0-9.}])\s+([A-Za-z][A-Za-z./ ]*)$|(?<=[0-9.}])\s*(cm|mm|km|kg|mph|ft|lbs?|oz|ml|hrs?|mins?)\.?$")
_DECIMAL = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+")
_SCIENTIFIC = re.compile(rf"({_DECIMAL.pattern})(?:[eE]|\s*(?:\\times|\\cdot|×)\s*10\s*\^\s*)\{{?([+-]?[0-9]{{1,2}})\}}?")
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{\s*([+-]?[0-9,]+)\s*\}\s*\{\s*([+-]?[0-9,]+)\s*\}|([0-9])\s*([0-9]))|([0-9]+)\s*/\s*([0-9]+)")
_SCALE = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_ALSO = {"%": Fraction(1, 100), "percent": Fraction(1, 100), "pct": Fraction(1, 100), "dozen": Fraction(12)}
# Words after a number that change its value or add another.
_NOT_A_UNIT = frozenset(
    {
        "pi", "e", "i", "x", "y", "z", "n", "r", "or", "and", "to", "mod", "over", "divided", "times", "plus", "minus", "factorial",
        "squared", "cubed", "choose", "half", "halves", "third", "thirds", "quarter", "quarters", "power", "root",
    }
)  # fmt: skip


def normalise(text: str) -> str:
    """Drop what carries no value: math delimiters, \\text{}, thin spaces, a closing full stop; one kind of minus."""
    text = text.strip().replace("\u2212", "-").replace("{,}", ",").replace("\\%", "%").replace("\\$", "$")
    text = _SPACE.sub(" ", _TEXT.sub(r" \1 ", text)).strip()
    if len(text) > 1 and text.startswith("$") and text.endswith("$"):
        text = text[1:-1].strip()
    return re.sub(r"(?<=[0-9A-Za-z})])\.$", "", text).strip()


@dataclass(frozen=True)
class ExactNumber:
    """A number as written, and the other value it may stand for: `12%` is 12 or 0.12, `3 dozen` is 3 or 36.

    Data sets write either for the same answer, so the reading is left to the other side of the comparison.
    """

    value: Fraction
    also: Fraction | None = None

    def equals(self, other: ExactNumber) -> bool:
        """Whether the two can be the same number; two that both have a second value are compared as written."""
        if self.value == other.value or (self.also is not None and other.also is not None):
            return self.value == other.value
        return self.also == other.value or self.value == other.also


def exact_number(text: str) -> ExactNumber | None:
    """The number that the text is, or None. Units, degrees and currency signs carry no value; `3 million` does."""
    if len(text) > MAX_CHARS:
        return None
    text = _DEGREE.sub("", normalise(text))
    text = _CURRENCY.sub(r"\1", text)
    negative = text.startswith("-")
    if text[:1] in ("+", "-"):
        text = _CURRENCY.sub("", text[1:].lstrip()) if text[1:2] not in ("+", "-") else ""
    scale, also = Fraction(-1 if negative else 1), None
    if unit := _UNIT.search(text):
        words = [word.strip(".") for word in (unit.group(1) or unit.group(2)).lower().split()]
        if any(word in _NOT_A_UNIT for word in words):
            return None
        scale *= _SCALE.get(words[0], 1)
        also = _ALSO.get(words[0])
        text = text[: unit.start()]
    if text.endswith("%"):
        also, text = _ALSO["%"], text[:-1].rstrip()
    value = _value(text)
    if value is None:
        return None
    return ExactNumber(value * scale, None if also is None else value * scale * also)


def _value(text: str) -> Fraction | None:
    if _DECIMAL.fullmatch(text):
        return Fraction(text.replace(",", "").rstrip("."))
    if scientific := _SCIENTIFIC.fullmatch(text):
        return Fraction(scientific.group(1).replace(",", "").rstrip(".")) * Fraction(10) ** int(scientific.group(2))
    if fraction := _FRACTION.fullmatch(text):
        above, below = (int(part.replace(",", "")) for part in fraction.groups() if part is not None)
        return Fraction(above, below) if below else None
    return None


def same_text(answer: str, truth: str) -> bool:
    """Whether two answers are the same but for spaces, \\text{} and math delimiters."""
    left, right = (re.sub(r"\s+", "", normalise(text)) for text in (answer, truth))
    return bool(left) and left == right
