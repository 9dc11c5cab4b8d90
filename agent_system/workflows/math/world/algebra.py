r"""Equality of answers in LaTeX: read as a whole or not at all, compared by value or, where neither
side is mathematics, as text.

Lists, tuples, intervals, sets and relations are split here (`latex`), units are cut (`units`), and
single expressions are read by the parser of latex2sympy2_extended with the case of letters kept and
every number exact. Truth values are never compared: two equations are equal if they differ by a
constant factor. Graders import this in processes of their own, since hostile texts take for ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
from sympy.core.function import AppliedUndef

from agent_system.workflows.math.world.latex import (
    elements,
    half_width,
    has_text_command,
    in_brackets,
    plain_spaces,
    relation,
    same_text,
    spelled,
    split_at,
    without_text_commands,
)
from agent_system.workflows.math.world.units import cut_unit

# Digits to which a difference must be 0 where it cannot be decided otherwise: of numbers, and at
# the points of an identity.
DIGITS = 1000
POINT_DIGITS = 150
# Values of the letters in an identity; the letters, sorted, take them in turn from a different
# place at each point.
POINTS = tuple(
    sympy.Rational(*value)
    for value in [(7, 3), (-5, 7), (13, 11), (-17, 2), (3, 29), (37, 5), (-41, 31), (23, 19), (11, 17)]
)
TRIES = 7
REAL_POINTS = 3
MOST_SIGNS = 3
# "No" alone answers another question.
NO_SOLUTION = re.compile(
    r"(there (is|are) )?(no( real)?( such)? (solutions?|values?)|none|(the )?empty set)|does not exist|dne"
)
_TRUTH_VALUES = frozenset({"yes", "no", "true", "false"})
_EMPTY = frozenset({"\\emptyset", "\\varnothing", "\\{\\}", "∅", "\\phi set"})
_BASE = re.compile(r"\(?([0-9A-Z][0-9A-Za-z.]*)\)?\s*_\s*(?:\{\s*(\d+)\s*\}|(\d+))")
# The library ignores what is under a number, a bracket or a power.
_BASE_WITHIN = re.compile(r"[\d)\]!]\s*_")
_GROUP_WITH_INDEX = re.compile(r"\}\s*_")
_LETTER_COMMAND = re.compile(
    r"\\(?:mathrm|mathbf|mathcal|mathbb|text|operatorname\*?|vec|hat|bar|overline|tilde)\s*$"
)
_UNSOLVED = re.compile(r"\\(?:i*int|oint|sum|prod|lim)(?![A-Za-z])")
_CLOCK = re.compile(r"\d{1,2}\s*:\s*\d{2}")
_VARIABLE = re.compile(
    r"(?:\\[A-Za-z]+|[A-Za-z]|\\(?:vec|mathbf|boldsymbol|bm|hat|bar|overline|tilde|overrightarrow)"
    r"\s*(?:\{\s*\\?[A-Za-z]+\s*\}|[A-Za-z]))(?:_\{[^{}]*\}|_\w)?'*(?:\([A-Za-z](?:,\s*[A-Za-z])*\))?"
)
_TUPLE_OF_LETTERS = re.compile(r"\(\s*(?:\\?[A-Za-z]++(?:_\w|_\{\w+\})?\s*+,?\s*+)++\)")
_SIGNS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
# What follows a residue: `\pmod 5`, `(\text{mod } 5)`; the same behind a number is an operation.
_MODULUS = re.compile(
    r"(?P<value>.*?[\w)}!])\s*\(?\s*(?:\\[pb]?|(?<![A-Za-z]))mod(?![A-Za-z])\s*"
    r"(?P<modulus>\{[^{}]*\}|[^{}()]*?)\s*\)?",
    re.DOTALL,
)
_ALL_REALS = re.compile(
    r"\\(?:mathbb|mathbf|Bbb)\s*\{?\s*R\s*\}?|\\R"
    r"|(?:all )?(?:the )?(?:set of )?(?:all )?real numbers|all reals"
)
# Arithmetic in form only: a date, a version and two raised numbers are no values.
_NO_ARITHMETIC = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}-\d{1,2}-\d{4}|\d{1,2}/\d{1,2}/\d{4}|\d{3}(?:-\d{3})?-\d{4}"
    r"|.*\d\.\d+\.\d.*|.*\^\s*(?:\{[^{}]*\}|\w)\s*\^.*",
    re.DOTALL,
)
_DOUBLE_FACTORIAL = re.compile(r"(?<![\w.}])(\d{1,3})\s*!!(?!!)")
_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp"
# `sec` at the end has no argument: seconds.
_NAMED_FUNCTION = re.compile(
    rf"\\(?:operatorname\*?|mathrm|text|mathop)\s*\{{\s*(?!sec\s*\}}\s*\.?\s*$)({_FUNCTIONS})\s*\}}"
)
_PLAIN_FUNCTION = re.compile(rf"(?<![A-Za-z\\])({_FUNCTIONS}|pi)(?![A-Za-z])")
_FUNCTION_BRACKETS = re.compile(r"(\\sqrt\s*\[[^\[\]]*\])|\[|\]")
_WORDS = re.compile(r"[A-Za-z][A-Za-z .'/-]*[A-Za-z.]")
_PLAIN_WORDS = re.compile(r"[A-Za-z0-9 .,:;'()/-]*")
_LONG_WORD = re.compile(r"[A-Za-z]{5,}")
_NO_WORD = re.compile(r"\\(?:begin|end)\s*\{[a-z]+\}|\\[A-Za-z]+|_\s*\{[^{}]*\}")
_ANGLES = re.compile(r"\\langle(?![A-Za-z])(.*)\\rangle", re.DOTALL)
_LETTER = re.compile(r"\(?\s*([A-Za-z])\s*\)?")
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_PERCENT = re.compile(r"\s*(?:%|percent|pct)$")
_READS = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none"
)
_MIXED = re.compile(r"(?<![\w.}])(\d+)\s*\\frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}(?!\s*[\^!])")
_MIXED_PLAIN = re.compile(r"^(-?)\s*(\d+) (\d+)/(\d+)$")
_REPLACED = (
    (re.compile(r"\\(?:mathrm|text|mathbf|mathit|operatorname)\s*\{\s*([A-Za-z])\s*\}"), r" \1 "),
    (re.compile(r"\\(Gamma|gamma)(?![A-Za-z])(?!\s*\()"), r"g_{\1}"),
    # The library takes E for the base of natural logarithms.
    (re.compile(r"(?<![A-Za-z\\])E\s*_\s*(?:\{([^{}]*)\}|(\w))"), r" g_{E\1\2} "),
    (re.compile(r"([A-Za-z])'(?!')"), r"\1_{prime}"),
    (re.compile(r"(\d)\s*[eE]\s*([+-]?\d+)(?![\d.])"), r"\1 \\cdot 10^{\2}"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<!\\log_)(?<!\\log _)(?<!\\log_ )(\d)\s*(?=\()"), r"\1 \\cdot "),
    (re.compile(r"(\))\s*(?=[(\d])"), r"\1 \\cdot "),
    (re.compile(r"(?<=\d)(?<!(?<!\d)0),(?=\d{3}(?!\d))"), ""),
)
# Products that do not commute, and names of several letters: as products of numbers they would be
# equal to others.
_VECTOR = r"\\(?:vec|mathbf|boldsymbol|bm|overrightarrow)(?![A-Za-z])"
_INVERSE = r"[A-Z]\s*\^\s*\{?\s*-\s*1\s*\}?"
_NO_PRODUCT = re.compile(
    rf"[A-Z]\s*\^\s*(?:T(?![A-Za-z])|\{{\s*-?\s*T\s*\}})|\\(?:top|intercal|dagger)(?![A-Za-z])"
    rf"|{_INVERSE}\s*[A-Z]|[A-Z]\s*{_INVERSE}"
    rf"|{_VECTOR}.*\\times(?![A-Za-z])|(?:\\(?:mathbf|boldsymbol|bm)\s*\{{\s*[A-Z]\s*\}}\s*){{2}}"
    r"|\\(?:angle|triangle|measuredangle)\s*[A-Z]\s*[A-Z]"
)
_EXPONENT_T = re.compile(r"\^\s*(?:\{\s*(-?)\s*T\s*\}|T(?![A-Za-z]))")
_LETTER_OF_A_DERIVATIVE = r"\\?[A-Za-z]+(?:_\w|_\{\w+\})?"
_DERIVATIVE = re.compile(
    rf"\\frac\s*\{{\s*d\s*({_LETTER_OF_A_DERIVATIVE})\s*\}}\s*\{{\s*d\s*({_LETTER_OF_A_DERIVATIVE})\s*\}}"
    rf"|(?<![A-Za-z\\])d\s*({_LETTER_OF_A_DERIVATIVE})\s*/\s*d\s*({_LETTER_OF_A_DERIVATIVE})"
)
_SUBSCRIPT = re.compile(r"_\s*\{[^{}]*\}")
# The letter d that is not within a command. The library takes it with the next letter for a
# differential.
_DIFFERENTIAL = re.compile(
    r"(?<!\\)(?<!\\[A-Za-z])(?<!\\[A-Za-z]{2})(?<!\\[A-Za-z]{3})(?<!\\[A-Za-z]{4})d(?![A-Za-z]*\{|_)"
)


class UnreadableError(ValueError):
    """A text that is not one mathematical expression."""


class _Reader(_Latex2Sympy):  # type: ignore[misc]
    """The library's reader with exact numbers, products that are products, and real roots of
    negative numbers.
    """

    def parse_number(self, text: str) -> Any:
        """Return an exact number."""
        return sympy.Rational(text.replace(",", ""))

    def convert_postfix_list(self, arr: Sequence[Any], i: int = 0) -> Any:
        """Return the product of factors written side by side; a number after another one is a
        mistake, not a mixed number.
        """
        texts = [factor.getText() for factor in arr[i:]]
        if any(after[:1].isdigit() and not before.endswith("!") for before, after in pairwise(texts)):
            raise UnreadableError("a number after another factor")
        factors = [self.convert_postfix(factor) for factor in arr[i:]]
        if any(isinstance(factor, list) for factor in factors):
            raise UnreadableError("a derivative")
        if len(factors) == 1:
            return factors[0]
        if any(getattr(factor, "is_Matrix", False) for factor in factors):
            return sympy.MatMul(*factors, evaluate=False)
        return sympy.Mul(*factors, evaluate=False)

    def convert_atom_expr(self, atom_expr: Any) -> Any:
        """Return a symbol; a capital I is one as well."""
        if atom_expr.LETTER_NO_E() and atom_expr.LETTER_NO_E().getText() == "I" and not atom_expr.subexpr():
            return sympy.Symbol("I_", real=True)
        return super().convert_atom_expr(atom_expr)

    def convert_func(self, func: Any) -> Any:
        """Return a function; an odd root of a negative number is real."""
        if func.FUNC_SQRT() and func.root:
            inner = self.convert_expr(func.base)
            root = self.convert_expr(func.root)
            if root.is_Integer and root % 2 and not inner.free_symbols and inner.is_negative:
                return -sympy.Pow(-inner, 1 / root, evaluate=False)
        return super().convert_func(func)


@dataclass(frozen=True)
class Value:
    """One expression. Of `12%` the value is 12 and `percent` is set; `text` is what was read;
    `computed` is the left side of a computation with its result, as of `\\cos(0)=1`.
    """

    expression: Any
    unit: str
    percent: bool
    text: str
    computed: str = ""


@dataclass(frozen=True)
class Words:
    """A text that is no mathematics, or none that can be read."""

    text: str


@dataclass(frozen=True)
class Based:
    """A number in a base: its digits and the base."""

    digits: str
    base: int


@dataclass(frozen=True)
class Several:
    """A list (no brackets), tuple, set, interval or union, by the brackets around its members; `|`
    of a union.

    `name` is the letter of an interval that is written as `x>5`, or of several values as in
    `M=(1, 2)`.
    """

    brackets: str
    members: tuple[Answer, ...]
    name: str = ""


@dataclass(frozen=True)
class Related:
    """A chain of sides with signs between them; `name` is set where the first side is a letter
    alone: `x=5`.
    """

    sides: tuple[Value, ...]
    signs: tuple[str, ...]
    name: str


Answer = Value | Words | Based | Several | Related
EMPTY = Several("\\{\\}", ())


@lru_cache(maxsize=512)
def read(text: str) -> Answer:
    """Return an answer. A text that is not mathematics as a whole is `Words`: no part of it counts."""
    text = _NAMED_FUNCTION.sub(r"\\\1 ", spelled(half_width(text)))
    try:
        return _read(text)
    except (UnreadableError, ValueError):
        return _words(text)


def readable(text: str) -> bool:
    """Return whether an answer is mathematics or a plain word, so that other spellings can be equal
    to it.
    """
    answer = read(text)
    if isinstance(answer, Several):
        return all(
            not isinstance(member, Words) or bool(_WORDS.fullmatch(member.text)) for member in answer.members
        )
    return not isinstance(answer, Words) or re.fullmatch(r"[A-Za-z][A-Za-z .'-]*", answer.text) is not None


def _words(text: str) -> Words:
    text = re.sub(r"\s+", " ", plain_spaces(without_text_commands(text))).strip(" .")
    bracketed = re.fullmatch(r"\(\s*([A-Za-z])\s*\)", text)
    return Words(bracketed.group(1) if bracketed else text)


def _read(text: str) -> Answer:
    plain = plain_spaces(without_text_commands(text))
    if re.sub(r"\s", "", text) in _EMPTY or NO_SOLUTION.fullmatch(plain.lower()):
        return EMPTY
    if _ALL_REALS.fullmatch(plain):
        return Several("()", (Value(-sympy.oo, "", False, ""), Value(sympy.oo, "", False, "")))
    if letter := _LETTER.fullmatch(plain):
        return value(letter.group(1))
    if _is_word(text, plain):
        return _words(text)
    if (based := _BASE.fullmatch(plain)) and (
        number := _based(based.group(1), int(based.group(2) or based.group(3)))
    ):
        return number
    sides, signs = relation(text)
    if signs == ["="] and _TUPLE_OF_LETTERS.fullmatch(plain_spaces(sides[0])):
        values = _read(sides[1])
        name = re.sub(r"[\s{}]", "", sides[0])
        return replace(values, name=name) if isinstance(values, Several) else values
    if residue := _residue(sides, signs):
        return residue
    if signs == ["in"] and _VARIABLE.fullmatch(plain_spaces(sides[0])):
        return _read(sides[1])
    if (vector := _ANGLES.fullmatch(text)) and len(parts := elements(vector.group(1), thousands=False)) > 1:
        return _several("()", parts)
    parts = elements(text)
    if len(parts) > 1:
        return _several("", parts)
    if not parts:
        raise UnreadableError("empty")
    if "\\cup" in text and len(members := split_at(text, "\\cup")) > 1:
        return Several("|", tuple(_read(member) for member in members))
    if inside := in_brackets(text):
        return _bracketed(*inside)
    if _SIGNS.search(text):
        return _several("", _both_signs(text))
    return _relation(sides, signs) if signs else value(text)


def _residue(sides: Sequence[str], signs: Sequence[str]) -> Answer | None:
    r"""Return `8 \pmod 5` and `x \equiv 3 \pmod 5` as 3 with the unit `mod 5`, None for other texts."""
    match = _MODULUS.fullmatch(plain_spaces(without_text_commands(sides[-1])))
    if match is None or signs not in ([], ["=="], ["="]):
        return None
    residue = value(match["value"].rstrip(" ("))
    modulus = expression(match["modulus"].strip("{} "))
    number = residue.expression
    if not (number.is_Integer and modulus.is_Integer and modulus > 0):
        # Of letters nothing is known: `n \\bmod 4` is not n.
        return replace(residue, expression=sympy.Function("mod")(number, modulus)) if not signs else None
    number = number % modulus
    residue = replace(residue, expression=number, unit=f"mod {modulus}")
    if not signs:
        return residue
    name = plain_spaces(sides[0])
    if not _VARIABLE.fullmatch(name):
        raise UnreadableError("a congruence of more than a letter")
    return Related((_name(name), residue), ("=",), name)


def _based(digits: str, base: int) -> Based | None:
    """Return a number in a base, None if a digit is not one of that base, as of the variable `E_1`."""
    if not all(
        character == "."
        or (character.isdigit() and int(character) < base)
        or "A" <= character.upper() < chr(55 + base)
        for character in digits
    ):
        return None
    return Based(digits.lstrip("0").upper() or "0", base)


def _is_word(text: str, plain: str) -> bool:
    r"""Return whether a text is a name or a word: letters alone, two or more, that are not the
    product of a few small letters.
    """
    return re.fullmatch(r"[A-Za-z]{2,}", plain) is not None or (
        has_text_command(text) and _WORDS.fullmatch(plain) is not None
    )


def _several(brackets: str, parts: Sequence[str]) -> Several:
    return Several(brackets, tuple(member for part in parts for member in _flat(_read(part))))


def _flat(answer: Answer) -> tuple[Answer, ...]:
    """Return the members of a list within a list: of `1\\pm\\sqrt2, 3`."""
    return answer.members if isinstance(answer, Several) and not answer.brackets else (answer,)


def _bracketed(opening: str, content: str, closing: str) -> Answer:
    parts = elements(content, thousands=False)
    if opening == "\\{":
        return _several("\\{\\}", parts) if parts else EMPTY
    if len(parts) == 1 and opening + closing == "()":
        return _read(content)
    if len(parts) < 2:
        raise UnreadableError("brackets around one member")
    return _several(opening + closing, parts)


def _both_signs(text: str) -> list[str]:
    if text.count("\\pm") + text.count("\\mp") > MOST_SIGNS:
        raise UnreadableError("too many signs")
    return [
        re.sub(r"\\pm(?![A-Za-z])", first, re.sub(r"\\mp(?![A-Za-z])", second, text))
        for first, second in (("+", "-"), ("-", "+"))
    ]  # fmt: skip


def _relation(sides: Sequence[str], signs: Sequence[str]) -> Answer:
    if not set(signs) <= {"=", "<", ">", "<=", ">=", "!="}:
        raise UnreadableError("a sign that is not compared")
    name = plain_spaces(sides[0])
    named = signs[0] == "=" and _VARIABLE.fullmatch(name) is not None
    if named and len(sides) == 2:
        right = read(sides[1])
        if isinstance(right, Several):
            return replace(right, name=re.sub(r"[\s{}]", "", name))
        if not isinstance(right, Value):
            return right if not isinstance(right, Words) else _words("=".join(sides))
        return Related((_name(name), right), ("=",), name)
    values = tuple(value(side) for side in sides)
    if set(signs) == {"="} and len(values) > 2 and named:
        return (
            Related((values[0], values[-1]), ("=",), name)
            if _all_equal(values[1:])
            else Related(values, tuple(signs), "")
        )
    if set(signs) == {"="} and not any(v.expression.free_symbols for v in values) and _all_equal(values):
        return replace(values[-1], computed=re.sub(r"[\s{}]", "", name))
    return _interval(values, signs) or Related(
        values, tuple(signs), name if named and set(signs) == {"="} else ""
    )


def _name(name: str) -> Value:
    """Return the left side of `x=5` and of `f(x)=5`."""
    return Value(sympy.Symbol(re.sub(r"[\s{}]", "", name), real=True), "", False, name)


def _all_equal(values: Sequence[Value]) -> bool:
    return all(same_value(values[0], other) for other in values[1:])


def _interval(values: Sequence[Value], signs: Sequence[str]) -> Several | None:
    """Return the interval of `x>5` and `0<x\\le 1`, None of other relations."""
    infinite = Value(sympy.oo, "", False, "")
    sides = list(values)
    directed = list(signs)
    if len({sign[0] for sign in directed}) != 1 or directed[0][0] not in "<>":
        return None
    if directed[0][0] == ">":
        sides = sides[::-1]
        directed = [sign.replace(">", "<") for sign in directed[::-1]]
    where = [i for i, side in enumerate(sides) if side.expression.is_Symbol]
    others = [side for side in sides if side.expression.free_symbols]
    if len(sides) > 3 or len(where) != 1 or len(others) != 1 or (len(sides) == 3 and where != [1]):
        return None
    low = sides[where[0] - 1] if where[0] else replace(infinite, expression=-sympy.oo)
    high = sides[where[0] + 1] if where[0] + 1 < len(sides) else infinite
    opening = "[" if where[0] and directed[where[0] - 1] == "<=" else "("
    closing = "]" if where[0] + 1 < len(sides) and directed[where[0]] == "<=" else ")"
    return Several(opening + closing, (low, high), str(sides[where[0]].expression))


def value(text: str) -> Value:
    """Return an expression, without its unit and per cent sign. Raise UnreadableError if it is not
    one as a whole.
    """
    if _CLOCK.fullmatch(plain_spaces(text)):
        raise UnreadableError("a time of the day")
    if text.count(":") > 1:
        raise UnreadableError("a ratio of more than two numbers, or a time")
    # The angle of a function is no unit of its value.
    rest, unit = (text, "") if _TRIGONOMETRIC.search(text) and "\\circ" in text else cut_unit(text)
    rest = plain_spaces(rest.replace("\\$", "").replace("$", ""))
    percent = _PERCENT.search(plain_spaces(without_text_commands(rest))) is not None
    if percent:
        rest = _PERCENT.sub("", plain_spaces(without_text_commands(rest)))
    return Value(expression(rest), unit, percent, text)


def expression(text: str) -> Any:
    """Return the value of one expression in LaTeX, evaluated where that is exact. Raise
    UnreadableError if it is not one.
    """
    if "\\text" in text and has_text_command(text):
        raise UnreadableError("text within mathematics")
    if _NO_PRODUCT.search(text):
        raise UnreadableError("a product that does not commute, or a name of several letters")
    if _NO_ARITHMETIC.fullmatch(text):
        raise UnreadableError("a date, a version or a power of a power without brackets")
    text = _DOUBLE_FACTORIAL.sub(lambda m: str(sympy.factorial2(int(m[1]))), text)
    if "!!" in text.replace(" ", ""):
        raise UnreadableError("a double factorial of letters")
    text = _FUNCTION_BRACKETS.sub(lambda m: m[1] or {"[": "(", "]": ")"}[m[0]], text)
    text = _PLAIN_FUNCTION.sub(r"\\\1 ", text)
    text = _EXPONENT_T.sub(r"^{\1 g_{T}}", _DERIVATIVE.sub(_derivative, text))
    text = _MIXED.sub(lambda m: rf"\frac{{{int(m[1]) * int(m[3]) + int(m[2])}}}{{{m[3]}}}", text)
    if mixed := _MIXED_PLAIN.match(text):
        text = rf"{mixed[1]}\frac{{{int(mixed[2]) * int(mixed[4]) + int(mixed[3])}}}{{{mixed[4]}}}"
    if _BASE_WITHIN.search(text) or _index_of_a_group(text):
        raise UnreadableError("a base within an expression")
    for pattern, written in _REPLACED:
        text = pattern.sub(written, text)
    if "'" in text or "\\%" in text or _LONG_WORD.search(_NO_WORD.sub("", text)):
        raise UnreadableError("a prime, a per cent sign or a word within mathematics")
    if "\\int" not in text:
        text = _apart(text)
    reader = _Reader(
        is_real=True,
        convert_degrees=True,
        config=ConversionConfig(lowercase_symbols=False, interpret_contains_as_eq=False),
    )
    try:
        result = reader.parse(normalize_latex(text, _READS))
    except RecursionError:
        raise
    except Exception as error:
        # the library raises plain exceptions for what it cannot read
        raise UnreadableError(str(error)) from error
    if not isinstance(result, (sympy.Expr, sympy.MatrixBase, sympy.MatrixExpr)):
        raise UnreadableError(f"a {type(result).__name__}")
    imaginary = sympy.Symbol("i", real=True)
    if imaginary in result.free_symbols:
        result = result.subs(imaginary, sympy.I)
    return result.doit()


def _derivative(match: re.Match[str]) -> str:
    """Return the one letter that stands for `\\frac{dy}{dx}`."""
    letters = (re.sub(r"\W|_", "", letter) for letter in match.groups() if letter)
    return f" g_{{d{'d'.join(letters)}}} "


def _index_of_a_group(text: str) -> bool:
    """Return whether something is under a group in braces that is no letter in a font or with an
    accent: under a power, a fraction.
    """
    for match in _GROUP_WITH_INDEX.finditer(text):
        depth = 0
        for place in range(match.start(), -1, -1):
            depth += {"}": 1, "{": -1}.get(text[place], 0)
            if not depth:
                break
        if not _LETTER_COMMAND.search(text[:place]):
            return True
    return False


def _apart(text: str) -> str:
    """Return `text` with each letter d before another letter as a variable of its own: outside of
    integrals it is no differential.
    """
    pieces = list[str]()
    start = 0
    for subscript in _SUBSCRIPT.finditer(text):
        pieces.append(_DIFFERENTIAL.sub(" d_{d} ", text[start : subscript.start()]) + subscript.group())
        start = subscript.end()
    return "".join(pieces) + _DIFFERENTIAL.sub(" d_{d} ", text[start:])


def equal(answer: str, truth: str) -> bool:
    """Return whether an answer means the same as the truth.

    An integral, a sum, a product or a limit that the truth does not have is the question, not its
    answer.
    """
    if same_text(answer, truth):
        return True
    if _UNSOLVED.search(answer) and not _UNSOLVED.search(truth):
        return False
    return same(read(answer), read(truth))


def same(left: Answer, right: Answer) -> bool:
    """Return whether two answers mean the same."""
    if isinstance(left, Words) or isinstance(right, Words):
        return (
            isinstance(left, Words) and isinstance(right, Words) and _folded(left.text) == _folded(right.text)
        )
    if isinstance(left, Based) or isinstance(right, Based):
        return left == right
    if isinstance(left, Several) or isinstance(right, Several):
        return isinstance(left, Several) and isinstance(right, Several) and _same_members(left, right)
    if isinstance(left, Related) and isinstance(right, Related):
        return _same_relation(left, right)
    if isinstance(left, Related):
        return isinstance(right, Value) and bool(left.name) and same_value(left.sides[-1], right)
    if isinstance(right, Related):
        return bool(right.name) and same_value(left, right.sides[-1])
    return same_value(left, right)


def _folded(text: str) -> str:
    """Return words in small letters, but `ABC`, whose letters are names, and formulas that cannot
    be read, as they are.
    """
    if not _PLAIN_WORDS.fullmatch(text):
        return text
    return " ".join(
        word if (len(word) < 2 or word.isupper()) and word.lower() not in _TRUTH_VALUES else word.lower()
        for word in text.split()
    )


def _same_members(left: Several, right: Several) -> bool:
    if len(left.members) != len(right.members) or (left.name and right.name and left.name != right.name):
        return False
    kinds = {left.brackets, right.brackets}
    if (len(kinds) == 1 and left.brackets not in ("", "\\{\\}", "|")) or kinds == {"", "()"}:
        return all(map(same, left.members, right.members))
    if len(kinds) > 1 and kinds not in ({"", "\\{\\}"}, {"", "|"}):
        return False
    named = [[_left_side(member) for member in several.members] for several in (left, right)]
    belong = any(len({name for name in names if name}) > 1 for names in named)
    # The values of `x=1, y=0` belong to their names: without the names they have to be in the same
    # order.
    if belong and all(map(same, left.members, right.members)):
        return True
    others = list(zip(named[1], right.members, strict=True))
    for name, member in zip(named[0], left.members, strict=True):
        match = next(
            (
                i
                for i, other in enumerate(others)
                if same(member, other[1]) and (name == other[0] or not belong)
            ),
            None,
        )
        if match is None:
            return False
        del others[match]
    return True


def _left_side(answer: Answer) -> str:
    """Return what a value is the value of: `x` of `x=5`, `\\cos(0)` of `\\cos(0)=1`, nothing of
    `5`.
    """
    if isinstance(answer, Value):
        return answer.computed
    return re.sub(r"[\s{}]", "", answer.name) if isinstance(answer, (Related, Several)) else ""


def _same_relation(left: Related, right: Related) -> bool:
    """Return whether two relations differ by a constant factor, side by side for chains."""
    if left.name and right.name:
        return left.sides[0].expression == right.sides[0].expression and same_value(
            left.sides[-1], right.sides[-1]
        )
    if len(left.sides) != len(right.sides):
        return False
    if len(left.sides) > 2:
        return left.signs == right.signs and all(map(same_value, left.sides, right.sides))
    sign = _constant_factor(_apart_sides(left), _apart_sides(right))
    turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
    if not sign or any(side.unit or side.percent for side in (*left.sides, *right.sides)):
        return False
    expected = turned.get(right.signs[0], right.signs[0]) if sign < 0 else right.signs[0]
    return left.signs[0] == expected


def _apart_sides(related: Related) -> Any:
    first, second = (side.expression for side in related.sides)
    return first - second


def _constant_factor(left: Any, right: Any) -> int:
    """Return the sign of the number c with left = c * right, 0 if there is none, or if there are no
    letters.
    """
    if not left.free_symbols or left.free_symbols != right.free_symbols:
        return 0
    ratios = [left.xreplace(point) / right.xreplace(point) for point in _points(left.free_symbols)]
    usable_ratios = [ratio for ratio in ratios if ratio.is_finite and not ratio.is_zero]
    if len(usable_ratios) < 3 or not all(
        is_zero(ratio - usable_ratios[0], POINT_DIGITS) for ratio in usable_ratios[1:]
    ):
        return 0
    return 1 if usable_ratios[0].evalf().is_positive else -1 if usable_ratios[0].evalf().is_negative else 0


def same_value(left: Value, right: Value) -> bool:
    """Return whether two values are equal; units must be, unless one is left out, and `12%` is 12
    or 0.12, as the other side has it.
    """
    if left.unit and right.unit and left.unit != right.unit:
        return False
    if left.percent == right.percent:
        return same_expression(left.expression, right.expression)
    percent, plain = (left, right) if left.percent else (right, left)
    if percent.expression.free_symbols:
        return False
    return any(same_expression(percent.expression / part, plain.expression) for part in (1, 100))


def same_expression(left: Any, right: Any) -> bool:
    """Return whether two expressions are equal: exactly for rational numbers, to `DIGITS` for
    others, at points for letters.
    """
    if isinstance(left, sympy.MatrixBase) or isinstance(right, sympy.MatrixBase):
        if (
            not (isinstance(left, sympy.MatrixBase) and isinstance(right, sympy.MatrixBase))
            or left.shape != right.shape
        ):
            return False
        return all(map(same_expression, left, right))
    if any(x.has(sympy.zoo, sympy.nan) for x in (left, right)):
        return False  # no number: 1/0 and 2/0
    if left == right:
        return True
    if any(
        x.has(sympy.oo, -sympy.oo, sympy.zoo, sympy.nan) or isinstance(x, sympy.MatrixExpr)
        for x in (left, right)
    ):
        return False
    # Exact numbers that differ: no digits have to be computed.
    if left.is_Rational and right.is_Rational:
        return False
    left = _without_functions(left)
    right = _without_functions(right)
    letters = left.free_symbols | right.free_symbols
    if not letters:
        return is_zero(left - right, DIGITS)
    return _same_at_points(left, right, letters)


def _without_functions(expression: Any) -> Any:
    """Return an expression with functions that have no definition, as `f(x)`, as letters."""
    functions = {call: sympy.Symbol(str(call), real=True) for call in expression.atoms(AppliedUndef)}
    return expression.xreplace(functions) if functions else expression


def _points(letters: set[Any]) -> list[dict[Any, Any]]:
    names = sorted(letters, key=str)
    return [
        {name: POINTS[(i + j + i * j) % len(POINTS)] for i, name in enumerate(names)} for j in range(TRIES)
    ]


def _same_at_points(left: Any, right: Any, letters: set[Any]) -> bool:
    """Return whether two expressions agree at every point where both are real, as `2\\ln x` and
    `\\ln x^2` do.

    Of fewer than `REAL_POINTS` such points those where the second is real decide; where it is real
    nowhere, all points.
    """
    agreed: list[tuple[bool, bool, bool]] = []
    for point in _points(letters):
        answer = left.xreplace(point)
        truth = right.xreplace(point)
        apart = answer - truth
        # At least one side has no value there.
        if apart.has(sympy.oo, -sympy.oo, sympy.zoo, sympy.nan):
            continue
        agreed.append((is_zero(apart, POINT_DIGITS), _is_real(truth), _is_real(answer)))
    in_both = [same for same, truth_real, answer_real in agreed if truth_real and answer_real]
    in_truth = [same for same, truth_real, _ in agreed if truth_real]
    decisive = in_both if len(in_both) >= REAL_POINTS else in_truth or [same for same, _, _ in agreed]
    return len(decisive) >= 2 and all(decisive)


def _is_real(number: Any) -> bool:
    return number.is_real is not False and is_zero(sympy.im(number), POINT_DIGITS)


def is_zero(number: Any, digits: int) -> bool:
    """Return whether a number is 0: exactly if it is rational, else as far as `digits` digits show
    it, without rounding small parts.
    """
    if number.is_Rational:
        return bool(number == 0)
    approximation = number.evalf(15, maxn=digits)
    if approximation.free_symbols or not approximation.is_number:
        raise UnreadableError("no number")
    for part in approximation.as_real_imag():
        if not part.is_number or (not isinstance(part, (sympy.Float, sympy.Rational))):
            return False
        if part != 0 and getattr(part, "_prec", 53) > 1:
            return False
    return True


def approximately(truth: str, close: Callable[[Fraction], bool]) -> bool | None:
    """Return whether a printed number is close to the truth, None if that is no real number.

    Args:
        truth: the ground truth.
        close: takes the truth as a fraction, to 50 digits if it is irrational.
    """
    parsed_truth = read(truth)
    if isinstance(parsed_truth, Related) and parsed_truth.name:
        parsed_truth = parsed_truth.sides[-1]
    if (
        not isinstance(parsed_truth, Value)
        or not isinstance(parsed_truth.expression, sympy.Expr)
        or parsed_truth.expression.free_symbols
    ):
        return None
    number = parsed_truth.expression
    exact = sympy.Rational(number if number.is_Rational else number.evalf(50)) if number.is_real else None
    return None if exact is None else close(Fraction(int(exact.p), int(exact.q)))
