"""Answers as text: one spelling for what LaTeX and models write in several ways, and the parts of
lists, tuples and relations.

Nothing is evaluated here; the standard library suffices.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction

TEXT_COMMANDS = "text|textbf|textit|textrm|textnormal|mathrm|mathit|mathsf|mbox|operatorname"
_TEXT = re.compile(rf"\\(?:{TEXT_COMMANDS})\s*\{{([^{{}}]*)\}}")
_SPACE = re.compile(r"\\[,;:! ]|~|\\q?quad(?![A-Za-z])|[\s\u00a0\u2009\u202f]+")
# Tables of quantities give a number and, with the unit, its power of ten: `3.5 10^{-19} J`.
_POWER_OF_TEN = re.compile(
    r"(?<![\\\w^_{.}])([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:\s|~)+(?=10\s*\^\s*(?:\{\s*[+-]?\d+\s*\}|\d+))"
)
_TEN_IN_TEXT = re.compile(r"\\(?:mathrm|text)\s*\{\s*(10\s*\^\s*(?:\{\s*[+-]?\d+\s*\}|\d+))\s*\}")
_INNER_MATH = re.compile(r"(?<!\\)\$([^$]*[\\^_{][^$]*|(?<=[0-9.] \$)[^\W\d][^$]*)(?<!\\)\$")
_FINAL = re.compile(r"(?<=[^\s\\.])\s*[.,;]$|\\$")
_NEGATIVE_SPACE = re.compile(r"\\!\s*")
_SIZE = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?)\s*(?=[()\[\]|.\\])|\\(?:displaystyle|textstyle|limits)(?![A-Za-z])"
)
_FRACTIONS = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_ARRAY = re.compile(
    r"(?:\\left)?\s*[\[(]\s*\\begin\{array\}\s*\{[lcr ]*\}(.*?)\\end\{array\}\s*(?:\\right)?\s*[\])]",
    re.DOTALL,
)
_CHOOSE = re.compile(r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}|^([^{}\\]*)\\choose(?![A-Za-z])([^{}\\]*)$")
_EMPTY_GROUP = re.compile(r"(?<!\\)\{\s*\}(?=\s*[\^_])")
_REPEATING = re.compile(
    r"(?<![\d.])(\d*)\.(\d*)(?:\\(?:overline|bar|dot)\s*\{\s*(\d+)\s*\}|\\(?:overline|bar|dot)\s*(\d)(?!\d))"
)
_SPELLINGS = {
    "\u2212": "-", "\u2013": "-", "{,}": ",", "\\%": "%", "\\$": "$", "\\lbrace": "\\{", "\\rbrace": "\\}",
    "\\leqslant": "\\le",
    "\\geqslant": "\\ge", "\\leq": "\\le", "\\geq": "\\ge", "\\neq": "\\ne", "≤": "\\le ", "≥": "\\ge ",
    "≠": "\\ne ", "∞": "\\infty ",
    "\\lt": "<", "\\gt": ">", "×": "\\times ", "·": "\\cdot ", "÷": "/", "√": "\\sqrt ", "∪": "\\cup ",
    "∈": "\\in ", "±": "\\pm ",
    "π": "\\pi ", "°": "^\\circ", "\\mleft": "", "\\mright": "", "⋅": "\\cdot ", "∙": "\\cdot ",
    "⁄": "/", "∕": "/", "∅": "\\emptyset ",
    "∓": "\\mp ", "′": "'", "，": ",", "、": ",", "；": ";",
    "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", "ℚ": "\\mathbb{Q}",
    "ℕ": "\\mathbb{N}", "ℂ": "\\mathbb{C}",
}  # fmt: skip
_SPELLING = re.compile(
    "|".join(re.escape(k) + (r"(?![A-Za-z])" if k[-1].isalpha() and k[0] == "\\" else "") for k in _SPELLINGS)
)
# Digits and signs above and below the line; a number before a fraction in one character is a mixed number.
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ]+")
_LOWERED = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙ]+")
_VULGAR = re.compile("[¼½¾⅐-⅞↉]")
_FULL_WIDTH = re.compile("[０-９（）＋－＝＜＞％／＊＾．Ａ-Ｚａ-ｚ｛｝［］]")
_ROOT = re.compile(r"√\s*(\d+(?:\.\d+)?|[A-Za-z])")
_OVER = re.compile(r"\\over(?![A-Za-z])")
_BRACKETS = {"(": ")", "[": "]", "{": "}", "\\{": "\\}"}
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)
_OR = re.compile(
    rf"\\(?:{TEXT_COMMANDS})\s*\{{\s*(?:,?\s*(?:and|or))\s*\}}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
)
_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "\\le": "<=", "\\ge": ">=", "\\ne": "!=", "\\approx": "~", "\\in": "in",
    "\\equiv": "==",
    "\\to": "->", "\\mid": "|", "\\sim": "~", "\\Rightarrow": "=>", "\\implies": "=>",
}  # fmt: skip


_BLANKS = re.compile(r"(?<!\d)\s+|\s+(?!\d)|(?<=\d)\s+(?=\d{3}(?![\d/]))")


def spelled(text: str) -> str:
    r"""Return LaTeX with one spelling for signs, fractions, sizes of brackets and repeating
    decimals; spaces and `\text{}` stay.

    Delimiters of mathematics around the whole, and punctuation after it, are removed.
    """
    text = _in_ascii(text.strip().replace("\ufe0f", ""))
    for start, end in (("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("$", "$")):
        if len(text) > len(start) + len(end) and text.startswith(start) and text.endswith(end):
            text = text[len(start) : -len(end)].strip()
    # Dollars around a part that is LaTeX are no currency.
    text = _INNER_MATH.sub(r" \1 ", text)
    text = _ARRAY.sub(r"\\begin{pmatrix}\1\\end{pmatrix}", _EMPTY_GROUP.sub("", text))
    text = _SPELLING.sub(lambda match: _SPELLINGS[match.group()], text)
    text = _CHOOSE.sub(r"\\binom{\1\3}{\2\4}", text)
    if "\\over" in text:
        text = _over_as_fractions(text)
    text = _FRACTIONS.sub(r"\\frac", _SIZE.sub("", _NEGATIVE_SPACE.sub("", text)))
    text = _POWER_OF_TEN.sub(r"\1\\times ", _TEN_IN_TEXT.sub(r" \1", _REPEATING.sub(_fraction, text))).strip()
    while (shorter := _ungrouped(_FINAL.sub("", text).strip())) != text:
        text = shorter
    return text


def _ungrouped(text: str) -> str:
    """Return `text` without braces around the whole, which LaTeX does not print."""
    return text[1:-1].strip() if text[:1] == "{" and _edge(text, 1, 1) == len(text) - 1 else text


def _in_ascii(text: str) -> str:
    """Return LaTeX for roots, powers, indices and fractions that are characters."""
    if text.isascii():
        return text
    text = _ROOT.sub(r"\\sqrt{\1}", text).replace("√(", "sqrt(")
    text = _RAISED.sub(lambda match: f"^{{{_compatible(match.group())}}}", text)
    text = _LOWERED.sub(lambda match: f"_{{{_compatible(match.group())}}}", text)
    return _VULGAR.sub(
        lambda match: "\\frac{{{}}}{{{}}}".format(*_compatible(match.group()).split("⁄")), text
    )


def half_width(text: str) -> str:
    """Return digits, letters and signs of full width as those of ASCII."""
    return _FULL_WIDTH.sub(lambda match: _compatible(match.group()), text)


def _compatible(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("\u2212", "-")


def _over_as_fractions(text: str) -> str:
    r"""Return `text` with `\frac{a}{b}` for `{a \over b}`, and for a whole text that is `a \over b`."""
    start = 0
    while match := _OVER.search(text, start):
        first = _edge(text, match.start() - 1, -1)
        last = _edge(text, match.end(), 1)
        # Braces of one side only: no fraction.
        if (first < 0) != (last == len(text)):
            start = match.end()
            continue
        above = text[first + 1 : match.start()].strip()
        below = text[match.end() : last].strip()
        text = f"{text[: max(first, 0)]}{{\\frac{{{above}}}{{{below}}}}}{text[last + 1 :]}"
    return text


def _edge(text: str, place: int, step: int) -> int:
    """Return the place of the brace that opens (`step` -1) or closes the group around a place; one
    outside of the text if there is none.
    """
    depth = 0
    while 0 <= place < len(text):
        if text[place] in "{}" and text[place - 1 : place] != "\\":
            depth += 1 if (text[place] == "{") == (step > 0) else -1
            if depth < 0:
                return place
        place += step
    return -1 if step < 0 else len(text)


def normalise(text: str) -> str:
    r"""Return `text` in one spelling, without `\text{}` and with single blanks for all kinds of
    space.
    """
    text = spelled(text)
    return spelled(_SPACE.sub(" ", _TEXT.sub(r" \1 ", text)))


def same_text(answer: str, truth: str) -> bool:
    r"""Return whether two answers are equal up to spaces, \text{} and math delimiters.

    Spaces between digits count, unless they separate thousands: `1 1/2` is not `11/2`.
    """
    left, right = (_BLANKS.sub("", normalise(text)) for text in (answer, truth))
    return bool(left) and left == right


def plain_spaces(text: str) -> str:
    """Return `text` with single blanks for all kinds of space."""
    return _SPACE.sub(" ", text).strip()


def without_text_commands(text: str) -> str:
    r"""Return `text` with the content of `\text{}` and of its relatives in their place."""
    return _TEXT.sub(r" \1 ", text)


def has_text_command(text: str) -> bool:
    r"""Return whether `text` has a `\text{}` of more than one letter, which is no variable."""
    return any(len(match.group(1).strip()) != 1 for match in _TEXT.finditer(text))


def _fraction(match: re.Match[str]) -> str:
    whole = match.group(1) or "0"
    before = match.group(2)
    repeated = match.group(3) or match.group(4)
    value = Fraction(
        int(whole + before + repeated) - int(whole + before), (10 ** len(repeated) - 1) * 10 ** len(before)
    )
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def tokens(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield position, token and depth of brackets (that of the bracket's outside for brackets);
    ValueError if they do not match.

    An interval may open with `(` and close with `]`, and the reverse.
    """
    stack: list[str] = []
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in _BRACKETS:
            yield match.start(), token, len(stack)
            stack.append(_BRACKETS[token])
            continue
        if token in (")", "]", "}", "\\}"):
            if not stack or (stack[-1] != token and not {stack[-1], token} <= {")", "]"}):
                raise ValueError(f"brackets of {text!r:.80} do not match")
            stack.pop()
        yield match.start(), token, len(stack)
    if stack:
        raise ValueError(f"brackets of {text!r:.80} do not match")


def elements(text: str, thousands: bool = True) -> list[str]:
    """Return the elements of a list: parts between commas, semicolons, `and` and `or` outside of
    brackets.

    With `thousands` a comma as in `1,234` is part of a number, which it is not in the tuple
    `(1,234)`.
    """
    text = _OR.sub(",", text)
    cuts = [-1]
    for place, token, depth in tokens(text):
        if depth == 0 and token in (",", ";") and not (thousands and _in_number(text, place)):
            cuts.append(place)
    parts = [text[start + 1 : end].strip() for start, end in zip(cuts, [*cuts[1:], len(text)], strict=True)]
    return [part for part in parts if part]


def _in_number(text: str, comma: int) -> bool:
    """Return whether a comma separates thousands: `1,234`, but not `1, 234`, `12,34`, `1,2345`,
    `0,245`.
    """
    before = re.search(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})*$", text[:comma])
    return (
        text[comma] == "," and before is not None and re.match(r"\d{3}(?!\d)", text[comma + 1 :]) is not None
    )


def in_brackets(text: str) -> tuple[str, str, str] | None:
    """Return opening bracket, content and closing bracket if one pair is around the whole, else
    None. Braces of LaTeX are no brackets.
    """
    latex_tokens = list(tokens(text))
    if (
        len(latex_tokens) < 2
        or latex_tokens[0][1] not in ("(", "[", "\\{")
        or latex_tokens[-1][1] not in (")", "]", "\\}")
    ):
        return None
    if any(depth == 0 for _, _, depth in latex_tokens[1:-1]):
        return None
    return (
        latex_tokens[0][1],
        text[len(latex_tokens[0][1]) : latex_tokens[-1][0]].strip(),
        latex_tokens[-1][1],
    )


def split_at(text: str, separator: str) -> list[str]:
    """Return the parts of `text` between a token outside of brackets."""
    cuts = [
        (place, place + len(token))
        for place, token, depth in tokens(text)
        if depth == 0 and token == separator
    ]
    starts = [0, *(end for _, end in cuts)]
    ends = [*(start for start, _ in cuts), len(text)]
    return [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]


def relation(text: str) -> tuple[list[str], list[str]]:
    """Return the sides and the signs of a chain such as `0<x<1`; one side and no sign for an
    expression.
    """
    sides = list[str]()
    signs = list[str]()
    start = 0
    for place, token, depth in tokens(text):
        if depth == 0 and token in _RELATIONS:
            sides.append(text[start:place].strip())
            signs.append(_RELATIONS[token])
            start = place + len(token)
    return [*sides, text[start:].strip()], signs
