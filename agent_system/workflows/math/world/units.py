r"""Units at the end of an answer: cut before it is read, and compared in one spelling (`kJ/mol` is
`\mathrm{kJ} \mathrm{~mol}^{-1}`).
"""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction

from agent_system.workflows.math.world.latex import TEXT_COMMANDS

_PREFIXES = {
    "": "", "k": "kilo", "M": "mega", "G": "giga", "T": "tera", "d": "deci", "c": "centi", "m": "milli",
    "\\mu": "micro", "μ": "micro",
    "µ": "micro", "u": "micro", "n": "nano", "p": "pico", "f": "femto",
}  # fmt: skip
_SI = {
    "m": "meter", "g": "gram", "s": "second", "A": "ampere", "K": "kelvin", "mol": "mole", "cd": "candela",
    "J": "joule", "N": "newton",
    "W": "watt", "V": "volt", "Pa": "pascal", "Hz": "hertz", "C": "coulomb", "F": "farad", "T": "tesla",
    "H": "henry", "L": "liter",
    "l": "liter", "eV": "electronvolt", "cal": "calorie", "bar": "bar", "Wb": "weber", "Bq": "becquerel",
    "\\Omega": "ohm", "Ω": "ohm",
}  # fmt: skip
_OTHER = {
    "sec": "second", "min": "minute", "h": "hour", "hr": "hour", "d": "day", "t": "ton", "ft": "foot",
    "feet": "foot", "in": "inch",
    "oz": "ounce", "lb": "pound", "yd": "yard", "mi": "mile", "sq": "square", "cu": "cubic", "am": "am",
    "pm": "pm", "usd": "dollar",
    "deg": "degree", "metre": "meter", "kilometre": "kilometer", "centimetre": "centimeter",
    "millimetre": "millimeter", "litre": "liter",
    "a": "per", "an": "per", "per": "per", "cc": "cubiccentimeter",
    "yr": "year", "atm": "atmosphere", "Torr": "torr", "ppm": "ppm", "dB": "decibel", "M": "molar",
    "D": "debye", "amu": "dalton",
    "rpm": "rpm", "rev": "revolution", "rad": "radian", "inches": "inch", "people": "person", "men": "man",
    "women": "woman",
    "children": "child",
}  # fmt: skip
_NAMES = {f"{p}{u}": f"{prefix}{unit}" for p, prefix in _PREFIXES.items() for u, unit in _SI.items()} | _OTHER
_POWERS = {"square": 2, "cubic": 3}
# Words that change a number's value, or join it to another answer.
NOT_A_UNIT = frozenset(
    {
        "pi", "e", "i", "x", "y", "z", "n", "r", "or", "and", "to", "mod", "over", "divided", "times", "plus",
        "minus", "factorial",
        "squared", "cubed", "choose", "half", "halves", "third", "thirds", "quarter", "quarters", "power",
        "fourth", "fourths", "fifth", "fifths", "sixth", "sixths", "seventh", "sevenths", "eighth", "eighths",
        "ninth", "ninths", "tenth", "tenths", "twelfth", "twelfths", "hundredth", "hundredths", "thousandth",
        "thousandths", "ten", "tens", "hundreds", "thousands", "millions", "billions", "dozens", "score",
        "gross", "lakh", "crore", "fold", "doubled", "tripled", "below", "above", "zero", "negative", "less",
        "more",
        "root", "not", "if", "when",
        "hundred", "thousand", "million", "billion", "trillion", "percent", "pct", "dozen", "base", "than",
        "least", "most", "about",
        "approximately", "infinity", "no", "none", "is", "for", "where", "with", "each", "between",
    }
)  # fmt: skip
_GROUP = rf"\\(?:{TEXT_COMMANDS}|rm)\s*\{{([^{{}}]*)\}}"
_EXPONENT = r"\s*\^\s*(?:\{\s*([+-]?\d{1,2})\s*\}|([+-]?\d))"
_DEGREE = r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree"
_SYMBOL = r"\\AA|\\Omega|\\mu"
# One piece of a unit: a group of text, a degree sign, or a symbol with a command of its own; after
# it an exponent.
_PIECE = re.compile(rf"(?:{_GROUP}|({_DEGREE})|({_SYMBOL})(?![A-Za-z]))(?:{_EXPONENT})?")
_PIECES = rf"(?:\\(?:{TEXT_COMMANDS})\s*\{{[^{{}}]*\}}|\^\s*\{{?\s*[+-]?\d\s*\}}?|\\cdot(?![A-Za-z])|[\s~]|\\[,;: ])+"
_QUOTIENT = re.compile(rf"\\frac\s*\{{({_PIECES})\}}\s*\{{({_PIECES})\}}$")
_BETWEEN = re.compile(r"(?:\s|~|\\[,;:! ]|\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|·|/|\(|\))*")
_WORD = re.compile(
    rf"([A-Za-zμµΩ]+|\\AA|\\Omega|\\mu|%)\.?(?:{_EXPONENT}|([23]))?|(/)|([\s~.·*,-]+|\\cdot|\\[,;: ]|\(s\))"
)


def cut_unit(text: str) -> tuple[str, str]:
    r"""Return an answer without the unit at its end, and the unit in one spelling; empty if there
    is none.

    A unit is text (`\text{}`, `\mathrm{}`), a degree sign or a symbol such as `\AA`, after a value.
    Text that is no unit stays.

    Args:
        text: from `spelled`.
    """
    text = _QUOTIENT.sub(r" \1/(\2)", text)
    for match in _PIECE.finditer(text):
        value = re.sub(
            r"(?:\s|~|\\[,;: ]|\\cdot(?![A-Za-z])|\\times(?![A-Za-z]))+$", "", text[: match.start()]
        )
        if not re.search(r"[\w)\]}%!|]$", value) or value.count("{") != value.count("}"):
            continue
        unit = _unit(text[match.start() :])
        if unit:
            return value, unit
    return text, ""


def _unit(text: str) -> str:
    """Return a unit that is the whole text in one spelling, or ""."""
    powers: Counter[str] = Counter()
    place = 0
    sign = 1
    prefix = ""
    while place < len(text):
        between = _BETWEEN.match(text, place)
        assert between is not None, "it may be empty"
        if "/" in between.group():
            sign = -1
        elif "(" not in between.group() and ")" in between.group():
            sign = 1
        place = between.end()
        if place == len(text):
            break
        piece = _PIECE.match(text, place)
        if piece is None:
            return ""
        place = piece.end()
        words = piece.group(1)
        degree = piece.group(2)
        symbol = piece.group(3)
        power = int(piece.group(4) or piece.group(5) or 1)
        if symbol == "\\mu":
            prefix = "μ"
            continue
        inner = "degree" if degree else symbol or words.strip(" ~")
        sign = _add(powers, prefix + inner, power, sign)
        prefix = ""
        if not sign:
            return ""
    return _written(powers)


def _add(powers: Counter[str], words: str, power: int, sign: int) -> int:
    """Add the units of words, of which the last has the power; return the sign of what follows, 0
    if they are no unit.
    """
    place = 0
    times = 1
    last = ""
    while place < len(words):
        match = _WORD.match(words, place)
        if match is None:
            return 0
        place = match.end()
        if match.group(5):
            sign = -1
            continue
        if match.group(1) is None:
            continue
        word = match.group(1)
        if word in NOT_A_UNIT or (len(word) > 1 and word.lower() in NOT_A_UNIT) or word == "%":
            return 0
        last = unit_name(word)
        if last == "per":
            sign = -1
        elif last in _POWERS:
            times = _POWERS[last]
        else:
            powers[last] += sign * times * int(match.group(2) or match.group(3) or match.group(4) or 1)
            times = 1
    if last and power != 1:
        powers[last] += sign * (power - 1)
    return sign


def bare_unit(text: str) -> str:
    r"""Return a unit in symbols without `\text{}` (`kJ mol^{-1}`, `m/s^2`) in one spelling; empty
    if one of its words is no symbol.
    """
    powers: Counter[str] = Counter()
    words = re.findall(r"[A-Za-zμµΩ]+", re.sub(_EXPONENT, "", text).replace("\\cdot", ""))
    symbols = all(word in _NAMES and word not in ("a", "an", "per") for word in words)
    return _written(powers) if words and symbols and _add(powers, text, 1, 1) else ""


def unit_of_words(words: tuple[str, ...]) -> str:
    """Return the unit of plain words (`miles per hour`) in one spelling."""
    powers: Counter[str] = Counter()
    _add(powers, " ".join(words), 1, 1)
    return _written(powers)


def unit_name(word: str) -> str:
    """Return the one spelling of a unit: the same for `feet`, `ft` and `foot`, for `box` and
    `boxes`, for `kJ` and `kilojoules`.
    """
    for spelling in (word, word.removesuffix("s")):
        if spelling in _NAMES:
            return _NAMES[spelling]
    lower = word.lower()
    if lower in _POWERS:
        return lower
    if len(word) > 2 or lower in ("am", "pm"):
        for spelling in (lower, lower.removesuffix("s")):
            if spelling in _OTHER:
                return _OTHER[spelling]
    if len(word) < 4:
        return word
    return re.sub(r"ies$", "y", lower).removesuffix("s").removesuffix("e")


def _written(powers: Counter[str]) -> str:
    # `meter` loses no letter, `metre`'s and plurals' endings are gone: compare what `unit_name`
    # leaves of both.
    names = Counter[str]()
    for name, power in powers.items():
        names[name.removesuffix("e")] += power
    return " ".join(
        f"{name}^{Fraction(power)}" if power != 1 else name for name, power in sorted(names.items()) if power
    )
