"""Exact parsing of numbers (integers, decimals, percentages, fractions), so that most answers need
no grader process.

Nothing is evaluated: a number is matched by a regular expression of bounded length and converted to
a `Fraction`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from agent_system.workflows.math.world.grader_process import close
from agent_system.workflows.math.world.latex import normalise, spelled
from agent_system.workflows.math.world.units import NOT_A_UNIT, bare_unit, cut_unit, unit_of_words

MAX_CHARS = 200

_DEGREE = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?)$")
_CURRENCY = re.compile(r"^([+-]?)\s*(\\?\$|€|£|US\s?\$|USD )\s*")
_UNIT = re.compile(
    r"(?<=[0-9.}])\s+([A-Za-z][A-Za-z./ ]*)$|(?<=[0-9.}])\s*(cm|mm|km|kg|mph|ft|lbs?|oz|ml|hrs?|mins?)\.?$|"
    r"(?<=[0-9.}])\s*\(([A-Za-z][A-Za-z./ ']*(?:-[A-Za-z]+[A-Za-z./ ']*)*)\)$"
)
_DECIMAL = re.compile(r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+")
_SCIENTIFIC = re.compile(
    # Exponents up to 399 in absolute value; floats have at most 308, or -324.
    rf"({_DECIMAL.pattern})(?:[eE]|\s*(?:\\times|\\cdot|×|\*)\s*10\s*(?:\^|\*\*)\s*)\{{?([+-]?(?:[0-9]{{1,2}}|[0-3][0-9]{{2}}))\}}?"
)
_FRACTION = re.compile(
    r"\\frac\s*(?:\{\s*([+-]?[0-9,]+)\s*\}\s*\{\s*([+-]?[0-9,]+)\s*\}|([0-9])\s*([0-9]))|([0-9]+)\s*/\s*([0-9]+)"
)
_MIXED = re.compile(
    r"([0-9]+)\s*(?:\\frac\s*(?:\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}|([0-9])\s*([0-9]))|\s([0-9]+)/([0-9]+))"
)
_WITH_SYMBOL = re.compile(
    rf"(?P<sign>[+-]?)\s*(?P<number>{_SCIENTIFIC.pattern}|{_DECIMAL.pattern})\s+(?P<unit>[A-Za-zμµΩ].*)"
)
_SCALE = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_ALSO = {"%": Fraction(1, 100), "percent": Fraction(1, 100), "pct": Fraction(1, 100), "dozen": Fraction(12)}
# Bare words of one or two letters that are units; any other one may be a product of variables.
_SHORT = frozenset(
    {
        "m",
        "km",
        "cm",
        "mm",
        "g",
        "kg",
        "mg",
        "s",
        "h",
        "hr",
        "d",
        "l",
        "ml",
        "t",
        "ft",
        "in",
        "oz",
        "lb",
        "yd",
        "mi",
        "sq",
        "cu",
        "am",
        "pm",
    }
)
_LINKS = frozenset({"of", "in", "at", "on", "by", "a", "an"})
_FUNCTIONS = frozenset(
    {
        "sin", "cos", "tan", "cot", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln",
        "lg", "exp", "sqrt", "abs",
        "det", "dim", "ker", "gcd", "lcm", "max", "lim", "sup", "inf", "arg",
    }
)  # fmt: skip
# Of words in parentheses these count things, as in `9 (quarters)`; without parentheses they change
# the value.
_COUNTED = frozenset(
    {"times", "third", "thirds", "quarter", "quarters", "half", "halves", "each", "with", "for"}
)
_CURRENCIES = {"€": "euro", "£": "pound"}


@dataclass(frozen=True)
class ExactNumber:
    """A number as written, and its second possible value: `12%` is 12 or 0.12, `3 dozen` is 3 or
    36.

    Data sets use either for the same answer, so the other side of the comparison decides between
    them.

    Attributes:
        value: the number as written.
        also: the second value, if there is one.
        unit: in one spelling, empty for none: "kilometer", "dollar" and "pm" for `3 km`, `$5` and
            `7 p.m.`.
        all_digits: the number is written without an exponent.
    """

    value: Fraction
    also: Fraction | None = None
    unit: str = ""
    all_digits: bool = True

    def equals(self, other: ExactNumber, tolerance: float = 0.0) -> bool:
        """Return whether the two can be equal. Two numbers that both have second values are
        compared as written; different units differ.

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
    """A text split into sign, number and following words; `unit` is that of a currency sign, or one
    that is no bare word.
    """

    sign: int
    number: str
    words: tuple[str, ...]
    unit: str


def exact_number(text: str) -> ExactNumber | None:
    """Return the number denoted by the text, or None; None also where following words may be
    variables or a function (`2 ab`, `5 sin`).
    """
    parts = _parts(text)
    if parts is None or _may_be_letters(parts.words):
        return None
    words = parts.words
    scale = Fraction(parts.sign)
    also: Fraction | None = None
    if words and words[0] in _SCALE | _ALSO:
        scale *= _SCALE.get(words[0], 1)
        also = _ALSO.get(words[0])
        words = words[1:]
    if any(word in NOT_A_UNIT for word in words):
        return None
    number = parts.number
    if number.endswith("%"):
        also = _ALSO["%"]
        number = number[:-1].rstrip()
    value = _value(number)
    if value is None:
        return None
    unit = unit_of_words(words)
    if parts.unit and not unit.startswith(parts.unit):
        unit = " ".join(sorted([parts.unit, *unit.split()]))
    return ExactNumber(
        value * scale,
        None if also is None else value * scale * also,
        unit,
        all_digits=not _SCIENTIFIC.fullmatch(number),
    )


def number_with_symbol(text: str) -> ExactNumber | None:
    """Return a number with the symbol of a unit behind it and a blank between them, as
    `5 kJ mol^{-1}`; None for any other text.

    The letters may be variables as well, so only an answer to a number, or to a number with such a
    symbol, is read so.
    """
    match = _WITH_SYMBOL.fullmatch(normalise(text)) if len(text) <= MAX_CHARS else None
    unit = bare_unit(match["unit"]) if match else ""
    value = _value(match["number"]) if match and unit else None
    if match is None or value is None:
        return None
    all_digits = not _SCIENTIFIC.fullmatch(match["number"])
    return ExactNumber(-value if match["sign"] == "-" else value, None, unit, all_digits=all_digits)


def is_number_and_word(text: str) -> bool:
    """Return whether a text is a number, a blank and letters, which are the symbol of a unit or a
    mistake in one.
    """
    match = _WITH_SYMBOL.fullmatch(normalise(text)) if len(text) <= MAX_CHARS else None
    return match is not None and re.fullmatch(r"[A-Za-z]{2,}", match["unit"]) is not None


def _parts(text: str) -> _Parts | None:
    if len(text) > MAX_CHARS:
        return None
    text, unit = cut_unit(spelled(text))
    text = normalise(text)
    if _DEGREE.search(text):
        text = _DEGREE.sub("", text)
        unit = "degree"
    currency = _CURRENCY.match(text)
    text = _CURRENCY.sub(r"\1", text)
    negative = text.startswith("-")
    if text[:1] in ("+", "-"):
        text = text[1:].lstrip() if text[1:2] not in ("+", "-") else ""
        currency = currency or _CURRENCY.match(text)
        text = _CURRENCY.sub("", text)
    words: tuple[str, ...] = ()
    if after := _UNIT.search(text):
        plain = next(group for group in after.groups() if group)
        words = tuple(
            re.sub(r"[.']", "", plain)
            .replace("-", " ")
            .replace("/", " per ")
            .replace("mph", "mi per h")
            .split()
        )
        words = tuple(
            word.lower() if len(word) > 2 else word
            for word in words
            if not after.group(3) or word not in _COUNTED
        )
        text = text[: after.start()]
    if currency:
        unit = " ".join(
            sorted([_CURRENCIES.get(currency.group(2), "dollar"), *unit.replace("dollar", "").split()])
        )
    return _Parts(-1 if negative else 1, text, words, unit)


def _may_be_letters(words: tuple[str, ...]) -> bool:
    """Return whether one of the words may be a function or variables: up to two letters, no unit,
    no link.
    """
    last = len(words) - 1
    return any(
        word in _FUNCTIONS
        or (
            len(word) < 3
            and not (word in _LINKS and i < last)
            and (word not in _SHORT or word in ("a", "an"))
        )
        for i, word in enumerate(words)
    )


def _value(text: str) -> Fraction | None:
    if _DECIMAL.fullmatch(text):
        return Fraction(text.replace(",", "").rstrip("."))
    if scientific := _SCIENTIFIC.fullmatch(text):
        return Fraction(scientific.group(1).replace(",", "").rstrip(".")) * Fraction(10) ** int(
            scientific.group(2)
        )
    if fraction := _FRACTION.fullmatch(text):
        above, below = (int(part.replace(",", "")) for part in fraction.groups() if part is not None)
        return Fraction(above, below) if below else None
    if mixed := _MIXED.fullmatch(text):
        whole, above, below = (int(part) for part in mixed.groups() if part is not None)
        return whole + Fraction(above, below) if below else None
    return None
