"""Ground truths of the forms of public mathematics sets, with answers that differ from them by
construction.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

# Answers that a policy may find to fit everything: none equals a truth made here, unless it has the truth's
# own text.
EVERYTHING = (
    "0", "1", "-1", "1=1", "0=0", "x=x", "2+3=5", "1<2", r"\emptyset", r"\{\}", "x", "i", "e", r"\pi",
    r"\infty", "A", r"\text{no}", "()",
    "0.5", "0,1", r"\pm 1", r"\mathbb{R}", r"x \in \mathbb{R}",
)  # fmt: skip
LETTERS = ["xyz", "abc", "rRs", "mMv", "nkt", "pqh", "ghl", "dsc", "uUw"]


# Truths as public sets of mathematics, physics and word problems write them.
WRITTEN = (
    "72", "1,450", "0.125", "-3", r"\$18.90", "4.4e7", "3.61e-10", r"\frac{17}{50}", r"-\frac{5}{3}", "2 / 3",
    r"2\frac{1}{4}", "15\\%",
    r"12\pi", r"\frac{3\sqrt{7}}{2}", r"\sqrt[3]{12}", r"2^{10}-1", r"\frac{12!}{4!8!}", r"\binom{9}{4}",
    "43_5", r"\log_3 14", r"\ln 6",
    r"3+4i", r"2 e^{i \pi / 6}", r"-2+2 \sqrt{3} i", "(2,-5)", r"\left(\frac{1}{2}, 3\right)", "[-2,7)",
    r"(-\infty, 2) \cup (5, \infty)",
    r"\{1, 4, 9\}", "3, 7, 12", r"1 \pm \sqrt{6}", r"a \le 6", "x > -3", r"2 < x \leq 9", "k = 4",
    r"y = 2x - 7", r"x^2 + y^2 = 25",
    "f(x) = 3x + 1", r"n = 5, m = 8", "x^2 - 5x + 6", r"b ^ { 2 } - 9 a ^ { 2 }", r"\frac{m v^2}{2 r}",
    r"I(0) e^{-\frac{t}{R C}}",
    r"E_{1} + 2 E_{2}", r"\frac{n(n+1)}{2}", r"\frac{1}{s^2 + 4}", r"A \sin(\omega t) + B \cos(\omega t)",
    r"c x^{-2} - \ln x", r"2 \tau",
    r"\begin{pmatrix} 2 & 0 \\ 1 & 5 \end{pmatrix}",
    r"\left[\begin{array}{rr}1 & 2 \\ 3 & 4\end{array}\right]", "9 (apples)",
    r"35 \mathrm{~N}", r"-114.4 \mathrm{~kJ} \mathrm{~mol}^{-1}", "0.123 nm",
    r"9.8 \mathrm{~m} / \mathrm{s}^2", r"18.8^{\circ}",
    r"6.6 \times 10^{-23} \mathrm{~J}", "5 dm", "LRAC = MC", "Monday", r"\text{no solution}", "(B)", "7:45",
)  # fmt: skip


@dataclass(frozen=True)
class Form:
    """A truth made from numbers and letters, another one for other numbers, and where it is `lettered` for
    other letters.
    """

    make: Callable[[Sequence[int], Sequence[str]], str]
    lettered: bool = False


FORMS = {
    "integer": Form(lambda n, _: str(n[0] * 1000 + n[1])),
    "thousands": Form(lambda n, _: f"{n[0] * 1000 + n[1]:,}".replace(",", r",\!")),
    "fraction": Form(lambda n, _: rf"\dfrac{{{n[0] * 7 + 1}}}{{{n[1] * 7}}}"),
    "root": Form(lambda n, _: rf"{n[0]}\sqrt{{{n[1]}+\pi}}"),
    "pi": Form(lambda n, _: rf"{n[0]}\pi + {n[1]}"),
    "base": Form(lambda n, _: f"{n[0]}{n[1]}_{{{11 + n[2]}}}"),
    "unit": Form(lambda n, _: rf"{n[0] * 100 + n[1]} \text{{ {['cm', 'km', 'kJ', 'kg', 'hours'][n[2] % 5]}}}"),
    "root unit": Form(lambda n, _: rf"{n[0]}\sqrt{{2}} \text{{ {['cm', 'km', 'm', 'ft'][n[1] % 4]}}}"),
    "tuple": Form(lambda n, _: f"({n[0]}, {n[1]}, -{n[2]})"),
    "interval": Form(lambda n, _: f"[{n[0]}, {n[0] + n[1]})"),
    "union": Form(lambda n, _: rf"(-\infty, -{n[0]}) \cup ({n[1]}, \infty)"),
    "set": Form(lambda n, _: rf"\{{{n[0]}, {n[0] + n[1]}, {n[0] + n[1] + n[2]}\}}"),
    "choose": Form(lambda n, _: rf"\frac{{{20 + n[0]}!}}{{{n[0]}!\,{20 + n[0] + n[1]}!}}"),
    "power": Form(lambda n, _: rf"1-\left(\frac{{5}}{{6}}\right)^{{{200 + 101 * n[0] + n[1]}}}"),
    "tiny": Form(lambda n, _: rf"\frac{{\sqrt{{{[2, 3, 5, 7, 11][n[0] % 5]}}}}}{{2^{{{100 + n[1]}}}}}"),
    "complex": Form(lambda n, _: f"{n[0]}+{n[1]}i"),
    "matrix": Form(lambda n, _: rf"\begin{{pmatrix}} {n[0]} & {n[1]} \\ -{n[2]} & 3 \end{{pmatrix}}"),
    "time": Form(lambda n, _: rf"{1 + n[0] % 12}:{10 + n[1] % 50} \text{{ {['a.m.', 'p.m.'][n[2] % 2]}}}"),
    "percent": Form(lambda n, _: rf"{n[0] * 100 + n[1]}\%"),
    "log": Form(lambda n, _: rf"\log_{{{1 + n[0]}}} {[2, 3, 5, 7, 11][n[1] % 5] * 13}"),
    "polynomial": Form(lambda n, a: f"{n[0]}{a[0]}^2-{n[1]}{a[1]}+{n[2]}", True),
    "trailing letter": Form(lambda n, a: f"{n[0]}+{n[1]}{a[0]}", True),
    "monomial": Form(lambda n, a: f"{n[0]}{a[0]}_0 {a[1]}", True),
    "formula": Form(lambda n, a: rf"\frac{{{n[0]}{a[0]}{a[1]}^2}}{{{a[0]}+{n[1]}{a[1]}}}", True),
    "difference": Form(lambda n, a: f"{a[0]}^{n[0]}-{a[1]}^{n[0]}", True),
    "equation": Form(lambda n, a: f"{n[0]}{a[0]}^2-{n[1]}{a[1]}+{n[2]}=0", True),
    "assignment": Form(lambda n, a: rf"{a[0]}=\frac{{{a[1]}}}{{{n[0]}{a[2]}}}", True),
    "inequality": Form(lambda n, a: rf"{n[0]}{a[0]}+{n[1]}{a[1]} \le {n[2]}", True),
    "arithmetic": Form(lambda n, _: rf"{n[0]} \cdot {n[1]} = {n[0] * n[1]}"),
    "exponential": Form(lambda n, a: rf"{n[0]}e^{{-{n[1]}{a[0]}}}", True),
    "trigonometric": Form(lambda n, a: rf"{n[0]}\sin({n[1]}{a[0]})+\cos {a[1]}", True),
    "name": Form(lambda n, a: "ABCDEFGH"[n[0] % 5 : n[0] % 5 + 3]),
}  # fmt: skip


@dataclass(frozen=True)
class Gold:
    """A truth of a form, and answers that differ from it."""

    form: str
    truth: str
    different: tuple[str, ...]


def golds(count: int, seed: int = 0) -> Iterator[Gold]:
    """Yield so many truths, every form in turn."""
    rng = random.Random(seed)
    for i in range(count):
        name = list(FORMS)[i % len(FORMS)]
        numbers = [ten * 10 + rng.choice([1, 3, 7, 9]) for ten in rng.sample(range(2, 10), 3)]
        letters = rng.choice(LETTERS)
        yield Gold(name, FORMS[name].make(numbers, letters), tuple(_different(name, numbers, letters, rng)))


def _different(name: str, numbers: list[int], letters: str, rng: random.Random) -> list[str]:
    form = FORMS[name]
    truth = form.make(numbers, letters)
    others: list[str] = []
    for place in range(3):  # one digit off
        changed = list(numbers)
        changed[place] += rng.choice([-1, 1])
        others.append(form.make(changed, letters))
    if form.lettered:
        swapped = letters[1] + letters[0] + letters[2]
        others += [
            form.make(numbers, swapped),
            form.make(numbers, letters[0].swapcase() + letters[1:]),
            form.make(numbers, "zyx"),
        ]
    parts = [
        *re.findall(r"\d+", truth),
        *re.findall(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", truth),
        *re.split(r"[+=,<-]|\\le|\\cup", truth),
    ]
    others += [part.strip(" ()[]{}\\") for part in parts if part.strip()]
    others += [
        f"{truth}+1",
        f"-({truth})",
        f"{truth}_7",
        f"2({truth})",
        f"{truth} \\text{{ or }} 1",
        f"{truth}, 1",
    ]
    return [other for other in dict.fromkeys([*others, *EVERYTHING]) if _differs(name, other, truth)]


def _differs(name: str, other: str, truth: str) -> bool:
    """Return whether an answer made from a truth's parts or numbers is another one: not where only its
    spelling differs.
    """
    if not other or _spelling(other) == _spelling(truth):
        return False
    result = truth.rsplit("=", 1)[-1].strip()
    if name in ("arithmetic", "assignment") and (other == result or truth.startswith(f"{other} = ")):
        return False  # the value of the letter; the computation and its result
    if name in ("unit", "percent", "time") and other == re.match(r"[\d:]+", truth)[0]:  # type: ignore[index]
        return False  # a unit may be left out
    return not (name == "root unit" and truth.startswith(other) and "sqrt" in other)


def _spelling(text: str) -> str:
    return re.sub(r"[\s,!{}\\]", "", text)
