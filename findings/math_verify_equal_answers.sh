#!/usr/bin/env bash
# math-verify 0.9.0 with latex2sympy2-extended 1.11.0 and sympy 1.14.0 takes these different answers for equal, at its defaults. A policy
# that is rewarded by it can find them:
#
#   gold                        answer                      why
#   1.6 \times 10^{-19}         9.1 \times 10^{-31}         numbers are rounded to six places behind the point, not to six digits
#   R^2-r^2                     0                           letters are made small: -r**2 + r**2
#   6+9c                        15                          the last letter is taken for a unit, here that of cents
#   2516_8                      2516_7                      the base of a number is left out
#   2+3=5                       1=1                         relations without variables are compared by their truth
#   (5/6)^{200}                 (5/6)^{201}                 as the first
#   A^T                         A                           letters are real numbers, which transposing does not change
#   \angle ABC                  \angle ACB                  the name of an angle is a product of letters, \angle one of them
#   \vec{a}\times\vec{b}        \vec{b}\times\vec{a}        \times between vectors is the product of numbers
#   \langle 1,2\rangle          1.2                         the brackets are left out, and the comma is a decimal one
#
# And a number in the form of programs is another one: 3.61e-10 is read as 3.61 times Euler's number less 10, so that 3.61 \times 10^{-10}
# is not equal to it, and -0.187002599262847 is.
#
# Each of them in both directions; the script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check math-verify==0.9.0 latex2sympy2-extended==1.11.0 sympy==1.14.0 \
    antlr4-python3-runtime==4.13.2
"$folder/venv/bin/python" - <<'PYTHON'
import sys

from math_verify import parse, verify

EQUAL = [
    (r"1.6 \times 10^{-19}", r"9.1 \times 10^{-31}"),
    ("R^2-r^2", "0"),
    ("6+9c", "15"),
    ("2516_8", "2516_7"),
    ("2+3=5", "1=1"),
    ("3.61e-10", "-0.187002599262847"),
    (r"\left(\frac{5}{6}\right)^{200}", r"\left(\frac{5}{6}\right)^{201}"),
    ("A^T", "A"),
    (r"\angle ABC", r"\angle ACB"),
    (r"\vec{a}\times\vec{b}", r"\vec{b}\times\vec{a}"),
    (r"\langle 1,2\rangle", "1.2"),
]
DIFFERENT = [("3.61e-10", r"3.61 \times 10^{-10}"), ("R^2-s^2", "0"), ("6+9k", "15")]


def are_equal(gold, answer):
    found = bool(verify(parse(rf"\boxed{{{gold}}}"), parse(rf"\boxed{{{answer}}}")))
    left, right = (parse(rf"\boxed{{{text}}}")[0] for text in (gold, answer))
    print(f"gold {gold}, answer {answer}: {left!r}, {right!r}: {found}")
    return found


as_described = [are_equal(*pair) and are_equal(*pair[::-1]) for pair in EQUAL] + [not are_equal(*pair) for pair in DIFFERENT]
sys.exit(0 if all(as_described) else 1)
PYTHON
