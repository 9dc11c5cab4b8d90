"""Exact parsing of numbers (integers, decimals, percentages, fractions), so that most answers need no grader process.

Nothing is evaluated: a number is matched by a regular expression of bounded length and converted to a `Fraction`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from agent_system.workflows.math.world.grader_process import close

MAX_CHARS = 200

_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox|operatorname)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"\\[,;:! ]|~|\\q?quad|[\s\u00a0\u2009\u202f]+")
_DEGREE = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|°)$")
_CURRENCY = re.compile(r"^([+-]?)\s*(\\?\$|€|£|US\s?\$|USD )\s*")
_UNIT = re.compile(r"(?<=[0-9.}])\s+([A-Za-z][A-Za-z./ ]*)$|(?<=[0-9.}])\s*(m|cm|mm|km|kg|mph|ft|lbs?|oz|ml|hrs?|mins?)\.?$")
_DECIMAL = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+")
_SCIENTIFIC = re.compile(
    # Exponents up to 399 in absolute value; floats have at most 308, or -324.
    rf"({_DECIMAL.pattern})(?:[eE]|\s*(?:\\times|\\cdot|×|\*)\s*10\s*(?:\^|\*\*)\s*)\{{?([+-]?(?:[0-9]{{1,2}}|[0-3][0-9]{{2}}))\}}?"
)
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{\s*([+-]?[0-9,]+)\s*\}\s*\{\s*([+-]?[0-9,]+)\s*\}|([0-9])\s*([0-9]))|([0-9]+)\s*/\s*([0-9]+)")
_SCALE = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_ALSO = {"%": Fraction(1, 100), "percent": Fraction(1, 100), "pct": Fraction(1, 100), "dozen": Fraction(12)}
# Words after a number that change its value or start another number.
_NOT_A_UNIT = frozenset(
    {
        "pi", "e", "i", "x", "y", "z", "n", "r", "or", "and", "to", "mod", "over", "divided", "times", "plus", "minus", "factorial",
        "squared", "cubed", "choose", "half", "halves", "third", "thirds", "quarter", "quarters", "power", "root",
    }
)  # fmt: skip
# Units of one or two letters, and units with several spellings; any other word of that length may be a product of variables.
_SHORT = {
    "m": "meter", "km": "kilometer", "cm": "centimeter", "mm": "millimeter", "g": "gram", "kg": "kilogram", "mg": "milligram",
    "s": "second", "sec": "second", "min": "minute", "h": "hour", "hr": "hour", "d": "day", "l": "liter", "ml": "milliliter",
    "t": "ton", "ft": "foot", "feet": "foot", "in": "inch", "oz": "ounce", "lb": "pound", "yd": "yard", "mi": "mile", "sq": "square",
    "cu": "cubic", "am": "am", "pm": "pm", "metre": "meter", "kilometre": "kilometer", "centimetre": "centimeter", "litre": "liter",
    "millimetre": "millimeter", "usd": "dollar", "deg": "degree", "a": "per", "an": "per", "per": "per",
}  # fmt: skip
_LINKS = frozenset({"of", "in", "at", "on", "by", "a", "an"})
_FUNCTIONS = frozenset(
    {
        "sin", "cos", "tan", "cot", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln", "lg", "exp", "sqrt", "abs",
        "det", "dim", "ker", "gcd", "lcm", "max", "lim", "sup", "inf", "arg",
    }
)  # fmt: skip
_CURRENCIES = {"€": "euro", "£": "pound"}


def normalise(text: str) -> str:
    """Return `text` without math delimiters, \\text{}, thin spaces and a final full stop, with one kind of minus sign."""
    text = text.strip().replace("\u2212", "-").replace("{,}", ",").replace("\\%", "%").replace("\\$", "$")
    text = _SPACE.sub(" ", _TEXT.sub(r" \1 ", text)).strip()
    if len(text) > 1 and text.startswith("$") and text.endswith("$"):
        text = text[1:-1].strip()
    return re.sub(r"(?<=[0-9A-Za-z})])\.$", "", text).strip()


@dataclass(frozen=True)
class ExactNumber:
    """A number as written, and its second possible value: `12%` is 12 or 0.12, `3 dozen` is 3 or 36.

    Data sets use either for the same answer, so the other side of the comparison decides between them.

    Attributes:
        value: the number as written.
        also: the second value, if there is one.
        unit: in the singular, empty for none: "kilometer", "dollar" and "pm" for `3 km`, `$5` and `7 p.m.`.
        all_digits: the number is written without an exponent.
    """

    value: Fraction
    also: Fraction | None = None
    unit: str = ""
    all_digits: bool = True

    def equals(self, other: ExactNumber, tolerance: float = 0.0) -> bool:
        """Return whether the two can be equal. Two numbers that both have second values are compared as written; different units differ.

        Args:
            other: the true number.
            tolerance: relative, for a number printed by a program; see `close`.
        """
        if self.unit and other.unit and self.unit != other.unit:
            return False
        pairs: list[tuple[Fraction | None, Fraction | None]] = [(self.value, other.value)]
        if self.also is None or other.also is None:
            pairs += [(self.also, other.value), (self.value, other.also)]
        all_digits = self.all_digits and other.all_digits
        return any(close(a, b, tolerance, all_digits) for a, b in pairs if a is not None and b is not None)


@dataclass(frozen=True)
class _Parts:
    """A text split into sign, number and following words; `currency` is the unit of a currency sign in front."""

    sign: int
    number: str
    words: tuple[str, ...]
    currency: str


def exact_number(text: str) -> ExactNumber | None:
    """Return the number denoted by the text, or None; None also where following words may be variables or a function (`2 ab`, `5 sin`)."""
    parts = _parts(text)
    if parts is None or _letters(parts.words) or any(word in _NOT_A_UNIT for word in parts.words):
        return None
    words, currency = parts.words, parts.currency
    scale, also = Fraction(parts.sign), None
    if words and words[0] in _SCALE | _ALSO:
        scale *= _SCALE.get(words[0], 1)
        also = _ALSO.get(words[0])
        words = words[1:]
    number = parts.number
    if number.endswith("%"):
        also, number = _ALSO["%"], number[:-1].rstrip()
    value = _value(number)
    if value is None:
        return None
    unit = " ".join(map(_singular, words))
    if currency and not unit.startswith(currency):
        unit = f"{currency} {unit}".rstrip()
    return ExactNumber(value * scale, None if also is None else value * scale * also, unit, all_digits=not _SCIENTIFIC.fullmatch(number))


def letters_after(text: str) -> str | None:
    """Return the sorted letters after a plain number that are not a unit ("ab" for `2 ba`, "" for `5`); None without a plain number."""
    parts = _parts(text)
    if parts is None or _value(parts.number.rstrip("% ")) is None or any(word in _NOT_A_UNIT for word in parts.words):
        return None
    return _letters(parts.words)


def _parts(text: str) -> _Parts | None:
    if len(text) > MAX_CHARS:
        return None
    plain = normalise(text)
    text = _DEGREE.sub("", plain)
    words: tuple[str, ...] = () if text == plain else ("degree",)
    currency = _CURRENCY.match(text)
    text = _CURRENCY.sub(r"\1", text)
    negative = text.startswith("-")
    if text[:1] in ("+", "-"):
        text = text[1:].lstrip() if text[1:2] not in ("+", "-") else ""
        currency = currency or _CURRENCY.match(text)
        text = _CURRENCY.sub("", text)
    if unit := _UNIT.search(text):
        unit_words = (unit.group(1) or unit.group(2)).lower().replace(".", "").replace("/", " per ").replace("mph", "mi per h").split()
        words, text = (*unit_words, *words), text[: unit.start()]
    return _Parts(-1 if negative else 1, text, words, _CURRENCIES.get(currency.group(2), "dollar") if currency else "")


def _letters(words: tuple[str, ...]) -> str:
    """Return the sorted letters of `words` if one may be a function or variables (up to two letters, no unit, no link), else ""."""
    last = len(words) - 1
    if any(
        word in _FUNCTIONS or (len(word) < 3 and not (word in _LINKS and i < last) and (word not in _SHORT or word in ("a", "an")))
        for i, word in enumerate(words)
    ):
        return "".join(sorted("".join(words)))
    return ""


def _singular(word: str) -> str:
    """Return the canonical spelling of a unit: the same for `feet`, `ft` and `foot`, and for `box` and `boxes`."""
    word = _SHORT.get(word) or _SHORT.get(word.removesuffix("s")) or word
    if len(word) < 4:
        return word
    return re.sub(r"ies$", "y", word).removesuffix("s").removesuffix("e")


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
    """Return whether two answers are equal up to spaces, \\text{} and math delimiters."""
    left, right = (re.sub(r"\s+", "", normalise(text)) for text in (answer, truth))
    return bool(left) and left == right
