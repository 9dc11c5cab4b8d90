"""Short answers beside any truth that a paid policy may try, and a comparison of values that does not use the
grader's reader.
"""

from __future__ import annotations

import ast
import cmath
import math
import operator
import random
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from tests.agent_system.workflows.math.golds import EVERYTHING

UNITS = (
    r" \text{ km}",
    r" \text{ mm}",
    r" \mathrm{~kg}",
    " J",
    r" \text{ hours}",
    r" \text{ m}^2",
    "^\\circ",
    " dollars",
)
# Pairs of signs that change the value of an answer that has the first.
SIGNS = (
    ("+", "-"), ("-", "+"), ("<", ">"), (">", "<"), ("(", "["), (")", "]"), ("[", "("), ("]", ")"),
    (r"\cup", r"\cap"), (r"\leq", "<"),
    (r"\sin", r"\cos"), (r"\ln", r"\log"), ("^2", "^3"), ("^{2}", "^{3}"), (r"\sqrt", ""),
    (r"\frac", r"\binom"), ("!", ""),
    (r"\pi", ""), ("=", "<"), (r"\infty", "9"), (r"\pm", "+"), (r"\ge", r"\le"), (r"\neq", "="),
    (r"\cdot", "+"), ("/", "+"), ("'", ""),
    (".", ""), ("i", "j"),
)  # fmt: skip
_LETTER = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
_UNIT = re.compile(r"\s*(?:\\(?:text|mathrm)\s*\{\s*[~ ]*[A-Za-z /]+\}|\([a-z ]+\))")
# The ways to write that there is nothing.
_EMPTY = re.compile(
    r"\\emptyset|\\varnothing|\\\{\s*\\\}|(?:\\text\s*\{)?\s*(?:no (?:real )?solutions?|does not exist)\.?\s*\}?",
    re.IGNORECASE,
)
# A capital that begins no word: in a truth, letters whose case may mean something.
_CAPITALS = re.compile(r"(?<=[A-Za-z_\\\\])[A-Z]|(?<![A-Za-z])[A-Z](?![a-z])")
# A letter that stands for a choice, in brackets or without.
_CHOICE = re.compile(r"\(?([A-Z])\)?")
_SPLIT = re.compile(r"\\leqslant|\\geqslant|\\leq|\\geq|\\neq|\\le(?!ft)|\\ge|\\cup|[=<>,;:]| or | and ")


def attacks(truth: str, rng: random.Random) -> list[str]:
    """Return answers near a truth, and those that may fit everything."""
    found = [
        *EVERYTHING,
        *_parts(truth),
        *_digits(truth, rng),
        *_letters(truth, rng),
        *_signs(truth),
        *_lists(truth),
    ]
    found += [
        f"-({truth})",
        f"{truth}+1",
        f"2({truth})",
        f"{truth}_7",
        f"({truth})^2",
        f"1/({truth})",
        f"{truth} x",
        f"{truth}0",
    ]
    found += [f"{truth}, 1", rf"{truth} \text{{ or }} 1", rf"\sqrt{{{truth}}}", *_bases(truth)]
    if (unit := _UNIT.search(truth)) and unit.start():
        found += [truth[: unit.start()] + other + truth[unit.end() :] for other in rng.sample(UNITS, 4)]
    return [answer for answer in dict.fromkeys(found) if answer.strip() and answer != truth]


def _parts(truth: str) -> list[str]:
    letters = re.findall(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", truth)
    sides = [part.strip(" ()[]{}\\$") for part in re.split(r"[+-]|\\text|\\mathrm|" + _SPLIT.pattern, truth)]
    return [*re.findall(r"\d+(?:\.\d+)?", truth), *letters, *sides]


def _digits(truth: str, rng: random.Random) -> Iterator[str]:
    places = [match.start() for match in re.finditer(r"\d", truth)]
    for place in rng.sample(places, min(4, len(places))):
        yield f"{truth[:place]}{(int(truth[place]) + rng.choice([1, 9])) % 10}{truth[place + 1 :]}"
    swapped = [(a, b) for a, b in pairwise(places) if a + 1 == b and truth[a] != truth[b]]
    yield from (f"{truth[:a]}{truth[b]}{truth[a]}{truth[b + 1 :]}" for a, b in swapped[:1])


def _letters(truth: str, rng: random.Random) -> Iterator[str]:
    places = [match.start() for match in _LETTER.finditer(truth) if len(match.group()) == 1]
    if not places:
        return
    place = rng.choice(places)
    yield truth[:place] + truth[place].swapcase() + truth[place + 1 :]
    yield truth[:place] + ("q" if truth[place] != "q" else "w") + truth[place + 1 :]
    names = sorted({truth[place] for place in places})
    if len(names) > 1:
        one, other = rng.sample(names, 2)
        exchanged = {one: other, other: one}
        yield "".join(exchanged.get(c, c) if at in places else c for at, c in enumerate(truth))


def _signs(truth: str) -> Iterator[str]:
    for before, after in SIGNS:
        if before in truth:
            yield truth.replace(before, after, 1)
            yield after.join(truth.rsplit(before, 1))


def _lists(truth: str) -> list[str]:
    parts = truth.split(",")
    return [",".join(parts[:-1]), ",".join(parts[1:]), f"{truth},{parts[-1]}"] if len(parts) > 1 else []


def _bases(truth: str) -> Iterator[str]:
    if re.fullmatch(r"\d{1,7}", truth):
        for base in (2, 7, 8):
            digits = ""
            rest = int(truth)
            while rest:
                rest, digit = divmod(rest, base)
                digits = f"{digit}{digits}"
            yield digits or "0"
            yield f"{digits or '0'}_{base}"


def means_the_same(answer: str, truth: str) -> bool:
    """Return whether an answer has the values of a truth, side by side; a name before `=` and a unit may be
    left out.
    """
    left, right = _sides(answer), _sides(truth)
    if left == right or (_EMPTY.fullmatch(answer.strip()) and _EMPTY.fullmatch(truth.strip())):
        return True
    if _words(answer) and _words(answer) == _words(truth):
        return True
    # Capitals inside the words of a sentence or the names of functions.
    if (
        re.search(r"[a-z]{3}", truth)
        and answer.lower() == truth.lower()
        and _CAPITALS.sub("", truth) == truth
    ):
        return True
    if len({*left, *right}) > 1 and all(_same(side, right[-1]) for side in (*left, *right)):
        return True
    if (one := _CHOICE.fullmatch(answer)) and (other := _CHOICE.fullmatch(truth)):
        return one[1] == other[1]
    if len(left) == len(right) and _relations(answer) == _relations(truth):
        if len(left) == 2 and left[1:] == right[1:] and _same_limit(left[0], right[0]):
            return True
        others = list(right)
        for side in left:
            same = next((other for other in others if _same(side, other)), None)
            if same is None:
                return _same_relation(left, right)
            others.remove(same)
        return True
    return _same(left[-1], right[-1]) and "=" in answer + truth and 1 in (len(left), len(right))


def _same_relation(left: list[str], right: list[str]) -> bool:
    """Return whether two sides are equal up to a factor."""
    return len(left) == 2 and _same(
        f"(({left[0]})-({left[1]}))/(({right[0]})-({right[1]}))", "1", constant=True
    )


def _same_limit(left: str, right: str) -> bool:
    """Return whether two limits at infinity are equal, by their terms at a large number."""
    match = [
        re.fullmatch(r"\\lim\s*_\{\s*(\w)\s*\\rightarrow\s*\\infty\s*\}(.*)", side) for side in (left, right)
    ]
    terms = [re.sub(rf"(?<![A-Za-z\\]){m[1]}(?![A-Za-z])", "(10^9)", m[2]) for m in match if m]
    values = [_value(term, 0) for term in terms]
    return (
        len(values) == 2
        and None not in values
        and cmath.isclose(values[0] or 0, values[1] or 0, rel_tol=1e-8)
    )


def _relations(text: str) -> list[str]:
    """Return the signs between the sides of a text, without those between the members of a list."""
    return [sign for sign in _SPLIT.findall(_shown(text)) if sign not in (",", ";", " or ", " and ")]


def _sides(text: str) -> list[str]:
    sides = [_bare(side) for side in _SPLIT.split(_shown(text)) if side.strip()]
    return [side.replace("\\pm", sign) for side in sides for sign in ("+-" if "\\pm" in side else "+")]


def _shown(text: str) -> str:
    # Brackets around an array make one matrix, whatever they are.
    text = re.sub(r"[\[(]\s*(?=\\begin\{array\})|(?<=\\end\{array\})\s*(?:\\right)?[\])]", "", text)
    return re.sub(r"\\(?:left|right)(?![a-z])|\\[,;! ]|\\?%", " ", re.sub(r"\{,\}|\\?\$", "", text))


def _bare(side: str) -> str:
    """Return a side without its unit; words in small letters."""
    group = r"\\(?:text|mathrm)\s*\{[^{}]*\}(?:\s*\^\s*(?:\{[^{}]*\}|-?\d))?"
    side = (
        re.sub(rf"{group}|\^\s*\{{?\s*\\circ\s*\}}?|\((?:[A-Za-z]{{2,}}[ -]?)+\)$|\\mu\s*$", " ", side)
        .strip(" /")
        .rstrip(" .")
    )
    side = re.sub(
        r"(?:\s*\\cdot\s*)+$", "", re.sub(r"(?<=\d)\s+[A-Za-z][A-Za-z/]*(?:\s.*)?$", "", side)
    ).strip()
    return side.lower() if re.fullmatch(r"[A-Za-z' ]{3,}", side) else side


def _words(text: str) -> str:
    """Return an answer in words, in small letters and without punctuation; an empty text for another."""
    text = re.sub(r"\\(?:text|mathrm)\s*\{([^{}]*)\}", r"\1", text)
    is_text = re.fullmatch(r"[A-Za-z'., -]+", text) and re.search(r"[A-Za-z]{2}", text)
    return re.sub(r"[., ]+", " ", text).strip().lower() if is_text else ""


def _same(left: str, right: str, constant: bool = False) -> bool:
    if re.sub(r"[\s{}]", "", left) == re.sub(r"[\s{}]", "", right):
        return True
    ratios = []
    for seed in range(6):
        one, other = (_value(text, seed) for text in (left, right))
        if one is None or other is None:
            return False
        ratios.append((one, other))
    if constant:
        return all(cmath.isclose(one, ratios[0][0], rel_tol=1e-9) for one, _ in ratios)
    return all(cmath.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12) for one, other in ratios)


_CALLS: dict[str, Callable[..., complex]] = {
    "root": cmath.sqrt, "sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan, "ln": cmath.log,
    "exp": cmath.exp,
    "fac": lambda x: math.factorial(int(x.real)),
    "binom": lambda n, k: math.comb(int(n.real), int(k.real)),
}  # fmt: skip
_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip


def _value(text: str, seed: int) -> complex | None:
    """Return the value of an expression, each letter with a value of its own; None for what is no such
    expression.
    """
    try:
        return complex(_evaluated(ast.parse(_python(text), mode="eval").body, seed))
    except (SyntaxError, ValueError, ArithmeticError, KeyError, TypeError, RecursionError, AttributeError):
        return None


def _python(text: str) -> str:
    """Return LaTeX as an expression of Python."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", re.sub(r"\\[dtc]frac", r"\\frac", text))
    text = re.sub(r"(?<![\d.])0+(?=\d)", "", text)
    text = re.sub(r"(\d)[eE]([+-]?\d+)", r"\1*10**(\2)", text)
    text = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    before = ""
    while before != text:
        before = text
        text = re.sub(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"((\1)/(\2))", text)
        text = re.sub(r"\\[dt]?binom\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r" binom(\1,\2) ", text)
        text = re.sub(r"\\sqrt\s*\[([^]]*)\]\s*\{([^{}]*)\}", r"((\2)**(1/(\1)))", text)
        text = re.sub(r"\\sqrt\s*\{([^{}]*)\}", r" root(\1)", text)
        text = re.sub(r"\^\s*\{([^{}]*)\}", r"**(\1)", text)
        text = re.sub(r"([A-Za-z])_\s*(?:\{(\w+)\}|(\w))", r" v\1\2\3 ", text)
    text = re.sub(r"\\(?:cdot|times)(?![A-Za-z])", "*", text.replace("^", "**"))
    text = re.sub(r"(\d+)!", r"fac(\1)", text)
    text = re.sub(
        r"\\(sin|cos|tan|ln|exp)\s*([A-Za-z\d]|\\[a-z]+)?(?![A-Za-z(])",
        lambda m: f" {m[1]}({m[2]})" if m[2] else f" {m[1]}",
        text,
    )
    text = (
        re.sub(r"\\([A-Za-z]+)", r" v\1 ", text)
        .replace("{", "(")
        .replace("}", ")")
        .replace("[", "(")
        .replace("]", ")")
    )
    tokens = re.findall(r"\d+\.?\d*|\.\d+|v\w+|root|sin|cos|tan|ln|exp|fac|binom|[A-Za-z]|\*\*|\S", text)
    return "".join(f"{a}*" if _factor(a, b) else a for a, b in pairwise([*tokens, ""]))


def _factor(before: str, after: str) -> bool:
    begins = re.match(r"[\w.(]", after) is not None
    return begins and re.match(r"[\w.)]", before[-1:]) is not None and before not in _CALLS


def _evaluated(node: ast.expr, seed: int) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return {"vpi": math.pi, "e": math.e, "i": 1j, "vinfty": math.inf}.get(node.id) or random.Random(
            f"{node.id}{seed}"
        ).uniform(0.5, 3.0)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _CALLS[node.func.id](*(complex(_evaluated(argument, seed)) for argument in node.args))
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_evaluated(node.operand, seed))
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_evaluated(node.left, seed), _evaluated(node.right, seed))
    raise ValueError(type(node).__name__)
