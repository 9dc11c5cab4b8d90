"""Equality of answers: over kinds of answers, against answers that a paid policy would find, and beside
math-verify.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from agent_system.workflows.math.world import algebra
from agent_system.workflows.math.world.grade import quick_grade
from agent_system.workflows.math.world.grader_pool import GraderPool, Verdict
from agent_system.workflows.math.world.units import cut_unit
from tests.agent_system.workflows.math.adversary import attacks, means_the_same
from tests.agent_system.workflows.math.golds import EVERYTHING, FORMS, WRITTEN, golds
from tests.cpu_time import cpu_seconds
from tests.house.source import ROOT
from verl.utils.dataset import read_rows

GSM8K = ROOT.parent / "shared" / "data" / "gsm8k" / "test.jsonl"
EQUAL = [
    ("10 000", "10000"), (r"\{100,1\}", r"\{1,100\}"), ("1:2:4", "1 : 2 : 4"), ("1 1/2", "3/2"),
    (r"0.\overline{3}", r"\frac{1}{3}"), (r"0.1\overline{6}", r"\frac{1}{6}"), (r"e^{i\pi}", "-1"),
    ("1 1/2", r"\frac{3}{2}"), (r"\text{no solution}", r"\emptyset"), ("x>5", r"(5,\infty)"),
    (r"\frac{g}{2}", r"\frac{1}{2}g"), ("6+9c", "9c+6"), (r"5 \text{ kJ}", "5"), (r"300 \mathrm{~K}", "300"),
    (r"-167 \mathrm{~J}", "-167"), (r"\frac{2469}{20000}", r"\dfrac{2469}{20,\!000}"), ("43_{5}", "43_5."),
    ("n^2-n-1", r"m_{\max }=n^{2}-n-1"), (r"\text{No}.", "No"), ("(3,5].", "(3,5]"), ("9", "9 (apples)"),
    (r"9 \text{ apples}", "9 (apples)"), (r"\sqrt{18}", r"3\sqrt{2}"), (r"\pm 2", "2,-2"),
    (r"\frac{1\pm\sqrt5}{2}", r"\frac{1+\sqrt5}{2},\frac{1-\sqrt5}{2}"), (r"x=2 \text{ or } x=3", "2,3"),
    (r"\{1,2\}", "2,1"), ("y=2x+1", "2x-y+1=0"), (r"\frac{x^2}{9}+\frac{y^2}{4}=1", "4x^2+9y^2=36"),
    (r"(-\infty,2)\cup(3,\infty)", r"x<2 \text{ or } x>3"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1.0\\\frac42\end{pmatrix}"),
    (r"\sqrt[3]{-8}", "-2"), (r"\sqrt{5+2\sqrt6}", r"\sqrt2+\sqrt3"), ("x(x+1)", "x^2+x"),
    (r"0<x\le 1", "(0,1]"), (r"x \in [0,1]", "[0,1]"), (r"33\frac13\%", r"\frac13"), ("2^{10}", "1024"),
    ("3 m", "3"), (r"\binom{10}{5}", "252"), (r"30^\circ", "30"), (r"k\pi", r"\pi k"),
    (r"\frac{n(n+1)}{2}", r"\frac{n^2+n}{2}"), (r"3\sqrt{13}\text{ cm}", r"3\sqrt{13}"), (r"2 \cdot 3", "6"),
    (r"4\pi \text{ square meters}", r"4\pi\text{ m}^2"), ("f(x)=x^2", "x^2"), ("Yes", "yes"),
    (r"\textbf{(B)}", "B"), ("(1,2)", "1,2"), (r"\text{Evelyn}", "Evelyn"), (r"1,\!234,\!567", "1234567"),
    (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^{n}k"), (r"-\frac{1}{2}", r"\frac{-1}{2}"),
    (r"\sin 30^\circ", r"\frac12"), ("a^2+b^2", "b^2+a^2"), ("3+4i", "4i+3"), ("(1+i)^2", "2i"),
    ("x^{2}y", "y x^2"), (r"2\frac{1}{2}", "2.5"), ("x=5", "5"), (r"\frac{\pi}{2}+k\pi", r"\pi(k+\frac12)"),
    (r"10,000 \text{ dollars}", r"\$10000"), (r"\log_2 8", "3"), ("0.5x", r"\frac{x}{2}"),
    (r"\text{odd}", "odd"), (r"(2,\frac{\pi}{3})", r"\left( 2, \frac{2\pi}{6} \right)"),
    ("3:2", r"\frac{3}{2}"), (r"x \ge 3", r"[3,\infty)"), (r"\frac{3}{2}", r"1\frac12"), ("5!", "120"),
    ("C=2", "2"), (r"\frac{1}{3}n^3", r"\frac{n^3}{3}"), ("e^{2x}", "(e^x)^2"), (r"6!\cdot 2", "1440"),
    (r"\tan^2 x+1", r"\sec^2 x"), ("0.5", r"\frac{1}{2}"), ("1e3", "1000"), ("x^{-1}", "1/x"),
    (r"\|v\|", r"\|v\|"), (r"35 \mathrm{~N}", "35"), (r"2.72 \mathrm{~L}", "2.72"), ("4.0 J", "4.0"),
    ("9.832 m/s^2", "9.832"),
    ("-114.4 kJ mol^{-1}", r"-114.4 \mathrm{~kJ} \mathrm{~mol}^{-1}"), ("5 kJ/mol", "5 kJ mol^{-1}"),
    (r"5 \text{ dm}", "5 dm"),
    (r"3.5 \times 10^{-19} J", r"3.5 \times 10^{-19}"), (r"35.91 { }^{\circ} \mathrm{C}", "35.91"),
    ("123", "123 (third graders)"),
    ("71", "71 (times)"), ("13", "13 (first-aid kits)"), (r"2\ln x", r"\ln x^2"), (r"\ln x^2", r"2\ln x"),
    ("(E_1+2E_2)/3", r"\frac{E_{1}+2 E_{2}}{3}"),
    (r"\left[\begin{array}{rr}1&2\\3&4\end{array}\right]", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    ("x>5", "x > 5"),
    (r"3.52 \times 10^{-19} \mathrm{~J}", r"3.52 $10^{-19} \mathrm{~J}$"), ("2.7e6", "2.7 10^6"),
    (r"-3.0 \cdot 10^{-6}", r"-3.0 $10^{-6} \mathrm{C}$"),
    (r"4 \cdot 10^7", r"4 $\mathrm{10^7} \mathrm{~km}$"),
    (r"1.07 \times 10^{16} photons", r"1.07 $10^{16}$ photons"),
    ("152.67", r"152.67 $\mathrm{J} \mathrm{K}^{-1}$"),
    (r"\log_2 10^2", r"\log_2 100"), (r"6\log_2 10", r"\log_2 10^6"), (r"\log_5 10^3", r"3\log_5 10"),
    ("300", r"\sum_{i=1}^3 10^2"), ("100", r"\int_0^1 10^2 dx"), ("10^6", r"\prod_{k=1}^2 10^3"),
    (r"\sin^2 10^2", r"\sin^2 {100}"), ("x=2 10^3", "2000"), ("2. 10^3", "2000"),
    ("M_1=(1,2)", "(1,2)"), ("(1,2)", "M_{1}=(1,2)"), ("M_1=(1,2)", "M_{1}=(1,2)"), (r"S=\{1,2\}", "2,1"),
    ("1,0", r"\cos(0)=1, \sin(0)=0"), (r"\sin(0)=0, \cos(0)=1", r"\cos(0)=1, \sin(0)=0"),
    ("1,0", "x=1, y=0"), ("y=0, x=1", "x=1, y=0"), ("x=1, 0", "x=1, y=0"), ("3,2", "x=2, x=3"),
    ("C_1=2, C_2=3", "C_{2}=3, C_{1}=2"), ("3=3, 2=2", "3,2"), ("2,3", "1+1=2, 1+2=3"),
    (r"\langle 1,2\rangle", "(1,2)"), (r"\langle 1, \frac12\rangle", r"\langle 1,0.5 \rangle"),
    (r"n \choose k", r"\binom{n}{k}"), (r"2{10 \choose 3}", "240"), (r"2\frac{dy}{dx}", r"dy/dx \cdot 2"),
    (r"\frac{dy}{dx}=2x", "dy/dx=x+x"), ("(1+r)^T-1", "(r+1)^{T}-1"), (r"2\vec{a}", r"\vec{a}\cdot 2"),
    (r"92 \mathrm{~J}", r"92 $\mathrm{J}$"), ("12 Å", "12 $Å$"), ("6.2 kg", r"6.2 $\text{kg}$"),
    ("x²+2x", "x^2+2x"), ("10⁻³", "0.001"), ("½", "0.5"), ("2½", r"\frac{5}{2}"), ("¾", "0.75"),
    ("a₁+a₁₂", "a_{12}+a_1"),
    ("（１，２）", "(1,2)"), ("３，５", "5,3"), ("12⋅x", "12x"), ("3⁄4", "3/4"), ("∅", r"\text{no solution}"),
    ("√12", r"2\sqrt{3}"), ("√(12)", r"2\sqrt{3}"), ("e^(2x)", "e^{2x}"), ("x**(1/2)", r"\sqrt{x}"),
    (r"{2 \over 6}", r"\frac13"), (r"2 \over 6", r"\frac13"), (r"{1+{1\over 2} \over 3}x", r"\frac{x}{2}"),
    (r"\sqrt{1 \over 4}", "0.5"), ("2pi", r"2\pi"), ("sin(x)+1", r"1+\sin x"),
    ("2*sqrt(3)/pi", r"\frac{2\sqrt3}{\pi}"),
    (r"n \bmod 4", r"n \mod 4"), (r"\sin[2x]", r"\sin(2x)"), (r"\sqrt[3]{x}[x+1]", r"x^{1/3}(x+1)"),
    ("105", "7!!"), ("48", "6!!"),
    (r"x \equiv 3 \pmod 7", r"3 \pmod{7}"), (r"10 \pmod 7", "3 (mod 7)"),
    (r"x\equiv 10\ (\text{mod } 7)", r"x \equiv 3 \mod{7}"),
    ("3", r"7 \bmod 4"), ("3 mod 7", "3"), (r"\mathbb{R}", r"(-\infty,\infty)"),
    (r"x \in \mathbb R", r"\text{all real numbers}"),
    ("(x,y)=(1,2)", "(1,2)"), ("(a, b, c) = (1, 2, 3)", "(1,2,3)"), (r"\vec{v}=(1,2)", "(1,2)"),
    (r"\mathbf{v}=(1,2)", r"\langle 1,2 \rangle"),
    ("{1,2}", "2,1"), ("{5}.", "5"), (r"{\{1,2\}}", "2,1"), ("TRUE", "true"),
    (r"\log_2(8)", "3"), ("log_2(8)", "3"), (r"\log_2(x)+1", r"\log_2 x+1"),
    (r"\frac{pi}{2}", r"\frac{\pi}{2}"),
    (r"\operatorname{ln}(2)", r"\ln 2"), (r"\mathrm{arctan}\,2", r"\arctan(2)"), (r"\text{exp}(2)", "e^2"),
    (r"\text{YES}", "Yes"), ("-α", r"-\alpha"), ("α+β", r"\beta+\alpha"),
]  # fmt: skip

DIFFERENT = [
    ("11/2", "1 1/2"), ("1 1/2", "11/2"), ("23/4", "2 3/4"), ("34", "3 4"), ("1/8", "1:2:4"),
    ("1:3:2", "1:2:3"), ("3100", "(3,100)"), ("(2,345)", "2345"), (r"\{1100\}", r"\{1,100\}"),
    (r"3 \text{ fourths}", "3"), ("3", r"3 \text{ tenths}"), ("5", r"5 \text{ below zero}"),
    ("2 dozens", "2"), (r"\frac{2}{0}", r"\frac{1}{0}"), (r"\frac00", r"\frac00+1"),
    (r"\frac{30!}{15!15!}", r"\frac{30!}{15!14!}"), (r"\frac{26!}{25!}", r"\frac{27!}{25!}"),
    (r"\left(\frac{5}{6}\right)^{200}", r"\left(\frac{5}{6}\right)^{201}"),
    (r"1-\left(\frac{5}{6}\right)^{200}", r"1-\left(\frac{5}{6}\right)^{201}"),
    (r"1-\frac{365!}{335!365^{30}}", r"1-\frac{365!}{340!365^{25}}"),
    (r"\frac{2^{98}+1}{2^{100}}", r"\frac{1}{2^{100}}"), (r"\frac{5^{30}}{6^{30}}", r"\frac{1}{6^{30}}"),
    (r"\frac{\sqrt{3}}{2^{100}}", r"\frac{\sqrt{2}}{2^{100}}"), ("2516_8", "2516_7"), (r"\{1,2\}", "(1,2)"),
    ("ABC", "CAB"), (r"\sqrt{2}", "1.414214"), ("15", "6+9c"), ("v_0", "v_0 t"), ("6", "6m"),
    ("0", "R^2-r^2"), (r"2\pi r", r"\pi(R+r)"), (r"\frac{m}{2}", r"\frac{Mm}{M+m}"), ("1=1", "x^2-2x+10=0"),
    ("2+3=5", r"5 \cdot 3 = 15"), (r"I=\frac{V}{R}", "I=VR"), (r"x+\frac{1}{3},", r"\frac{1}{3}"),
    (r"\frac{1}{5}", r"\frac{7}{5} + \frac{1}{5} i."), (r"5 \text{ (or 7)}", "5"),
    (r"7:30 \text{ a.m.}", r"7:30 \text{ p.m.}"), (r"\sqrt{3} \text{ m}", r"\sqrt{3} \text{ km}"),
    ("2(3)", "5"), ("3 4", "7"), ("no", "on"), ("x=3", "y=3"), ("43", "43_5"), (r"\gamma", r"\Gamma"),
    ("x'", "x"), ("2,1", "(1,2)"), (r"x\ge3", r"(3,\infty)"), ("0=0", "y=2x+1"), ("x<5", r"(5,\infty)"),
    (r"5 \text{ mW}", r"5 \text{ MW}"), ("1-e^{-1000}", "1"), (r"\sqrt{2}(1-e^{-1000})", r"\sqrt{2}"),
    ("i", "1"), ("|x|", "x"),
    ("1.41421356237309504880168872420969807856967187537694807317667973799", r"\sqrt2"), ("x^2=4", "x=2"),
    ("2^{100}", "2^{100}+1"), ("E", "e"), ("I", "i"), ("5 or 6", "5"), (r"\infty", r"-\infty"),
    (r"\frac{1}{0}", "5"), ("6", "3!!"), ("1:30", "2:60"), ("x^2y", "xy^2"), (r"2\frac{1}{2}", "1"),
    ("", "5"), ("18, 19", "18"), ("2 pi", "6"), ("A", "a"), ("AB", "BA"), (r"\text{even}", "odd"),
    ("[1,2]", "(1,2)"), ("3 a", "3"), ("5x", "5"), ("1<2", "2<3"), ("0<1", "x<1"), ("x=x", "x=1"),
    (r"\emptyset", "0"), (r"\{0\}", r"\emptyset"), ("3n", "3"), ("3^n", "3"),
    (r"I(0) e^{-\frac{t}{R C}}_7", r"I(0) e^{-\frac{t}{R C}}"),
    (r"q \le 6", r"a \le 6"), ("X>5", "x>5"), ("x=1<2", "x=1=2"), (r"2\tau\%", r"2\tau"),
    (r"y=2x\%", "y=2x"), ("5 J", "5 N"), ("5 km", r"5 \text{ m}"),
    (r"\frac{dM}{dt}=l_\odot M^6 \text{x}", r"\frac{dM}{dt}=L_\odot M^6 \text{x}"),
    ("9/4", "9 (quarters)"), ("5", "5 (or 7)"), (r"\sqrt{x^2}", "x"), ("E_1", "E_2"), ("no", "no solution"),
    (r"\emptyset", "No"), ("none", r"\text{No}"), ("E_1", "e_1"),
    ("245", "0,245"), ("0.245", "245"), ("q=(1,2)", "M=(1,2)"), (r"d=3, m=(1,2)", r"d=3, M=(1,2)"),
    ("0,1", r"\cos(0)=1, \sin(0)=0"), ("0,1", "x=1, y=0"), (r"\{0,1\}", "x=1, y=0"),
    ("0 and 1", "x=1 and y=0"), ("2,5,3", "A=2, B=3, C=5"), ("x=0, y=1", "x=1, y=0"),
    (r"\cos(0)=0, \sin(0)=1", r"\cos(0)=1, \sin(0)=0"), ("3, 1+1=2", "1+1=2, 1+2=3"),
    ("3.52", r"3.52 $10^{-19} \mathrm{~J}$"), ("2.7 10^5", "2.7 10^6"),
    (r"3.52 \times 10^{-18}", r"3.52 $10^{-19}$"),
    ("A", "A^T"), ("A+1", r"A^{\top}+1"), ("A^{-1}+1", "A^{-T}+1"), ("x", "x^T"), ("AB^T", "B^TA"),
    ("B^{-1}A", "AB^{-1}"), ("A", "P^{-1}AP"), ("D", "PDP^{-1}"),
    (r"\mathbf{B}\mathbf{A}", r"\mathbf{A}\mathbf{B}"),
    (r"\frac{y}{x}", r"\frac{dy}{dx}"), ("y/x", "dy/dx"), (r"\frac{2y}{x}", r"2\frac{d y}{d x}"),
    (r"\frac{dx}{dy}", r"\frac{dy}{dx}"), (r"\angle ACB", r"\angle ABC"), (r"2\angle ACB", r"2\angle ABC"),
    (r"\vec{b}\times\vec{a}", r"\vec{a}\times\vec{b}"), (r"\langle 2,1\rangle", r"\langle 1,2\rangle"),
    ("1.2", r"\langle 1,2\rangle"),
    (r"x^2", r"\langle x^2\rangle"), (r"{n \choose 2}", r"{2 \choose n}"), ("2", r"2\frac{dy}{dx}"),
    ("2017", "2020-01-02"), (r"\frac{1}{4040}", "1/2/2020"), ("-679", "555-1234"), ("1.24", "3.1.4"),
    ("64", "2^3^2"),
    ("720", "3!!"), ("(n!)!", "n!!"), (r"3 \pmod 5", r"3 \pmod 7"), (r"3 \mod 5", r"3 \mod 7"),
    (r"1 \pmod 5", "1 (mod 4)"),
    (r"n\equiv 1\pmod 4", r"n\equiv 3\pmod 4"), (r"m\equiv 1\pmod 4", r"n\equiv 1\pmod 4"),
    ("4", r"3 \pmod 7"), ("n", r"n \bmod 4"),
    ("x²", "x^3"), ("a₁", "a_2"), ("½", "1/3"), ("12½", r"\frac{12}{2}"), ("√12", r"2\sqrt2"),
    (r"{1 \over x+1}", r"\frac1x+1"),
    (r"\mathbb{R}", r"\mathbb{Z}"), (r"\mathbb{R}", r"(-\infty,0)"), ("(x,y)=(2,1)", "(1,2)"),
    (r"\vec{v}=(1,2)", r"\vec{u}=(1,2)"),
    ("{1,2}", "(2,1)"), ("TRUE", "FALSE"), (r"\log_2(8)", "16"), (r"\log_2(9)", r"\log_3(9)"),
    ("ABC", "abc"), ("pi", "ip"), ("sin x", "cos x"),
    (r"\pm 3", "3"), ("α", "a"),
    ("10^6", "2.7 10^6"), ("5", r"\$5 and \$6"), ("92 \\mathrm{~J}", r"92 $\mathrm{N}$"),
]  # fmt: skip

# Letters behind a number are a unit in an answer to a number, and in a truth that has the symbol of one; else
# they are variables.
DIFFERENT_FROM_A_TRUTH = [
    ("5 md", "5 dm"),
    ("5", "5 dm"),
    ("5 kJ", "5 J mol^{-1}"),
    ("3", "3 K"),
    ("3 Kb", "3 K"),
]

# math-verify takes another truth of these forms for equal: it ignores bases, the result of an equation and
# the size of small numbers.
PEER_ACCEPTS = {"base", "power", "tiny", "arithmetic", "root unit"}
PEER_REJECTS = {"integer", "fraction", "tuple", "interval", "complex", "pi"}


def is_equal(answer: str, truth: str) -> bool:
    """Compare in this process, without the time limit of a grader process."""
    verdict = quick_grade(answer, truth)
    return algebra.equal(answer, truth) if verdict is None else verdict is Verdict.EQUAL


@pytest.mark.parametrize(("answer", "truth"), EQUAL)
def test_answers_that_mean_the_same_are_equal(answer: str, truth: str) -> None:
    assert is_equal(answer, truth)


@pytest.mark.parametrize(
    ("question", "result"), [(r"\int_0^1 x^2 dx", r"\frac13"), (r"\sum_{k=1}^{100} k", "5050")]
)
def test_the_question_is_no_answer_but_may_be_a_truth(question: str, result: str) -> None:
    assert is_equal(result, question) and not is_equal(question, result)


@pytest.mark.parametrize(("answer", "truth"), DIFFERENT)
def test_answers_that_differ_are_not_equal(answer: str, truth: str) -> None:
    assert not is_equal(answer, truth) and not is_equal(truth, answer)


@pytest.mark.parametrize(("answer", "truth"), DIFFERENT_FROM_A_TRUTH)
def test_letters_behind_a_number_are_not_left_out_of_a_truth_nor_exchanged(answer: str, truth: str) -> None:
    assert not is_equal(answer, truth)


def test_no_short_answer_parts_letters_digits_bases_or_units_of_a_truth_is_accepted_for_it(
    request: pytest.FixtureRequest,
) -> None:
    """Without `--all-levels` one truth of each form, and a sixth of the answers."""
    everything = request.config.getoption("--all-levels")
    rng = random.Random(1)
    for gold in golds(300 if everything else len(FORMS), seed=1):
        assert is_equal(gold.truth, gold.truth)
        tried = gold.different if everything else rng.sample(gold.different, len(gold.different) // 6)
        accepted = [answer for answer in tried if is_equal(answer, gold.truth)]
        assert not accepted, (gold.form, gold.truth)


def test_no_short_answer_beside_a_truth_as_sets_write_them_is_accepted_and_different(
    request: pytest.FixtureRequest,
) -> None:
    """Without `--all-levels` a twentieth of the answers.

    With it, by a grader process and its time limit, also 2,000 answers of GSM8K and of `MATH_TRUTHS`, a file
    with one a line.
    """
    everything = request.config.getoption("--all-levels")
    pool: GraderPool | None = request.getfixturevalue("pool") if everything else None

    def accepts(answer: str, truth: str) -> bool:
        if pool is None:
            return is_equal(answer, truth)
        return (quick_grade(answer, truth) or pool.compare_now(answer, truth)) is Verdict.EQUAL

    rng = random.Random(6)
    truths = list(WRITTEN)
    if everything:
        public = (
            [row["answer"].rpartition("####")[2].strip() for row in read_rows(GSM8K)]
            if GSM8K.exists()
            else []
        )
        public += (
            Path(listed).read_text(encoding="utf-8").splitlines()
            if (listed := os.environ.get("MATH_TRUTHS"))
            else []
        )
        truths += rng.sample(sorted(set(public)), min(len(set(public)), 2000))
    accepted: list[tuple[str, str]] = []
    for truth in truths:
        tried = attacks(truth, rng)
        tried = tried if everything else rng.sample(tried, len(tried) // 20)
        accepted += [
            (answer, truth)
            for answer in tried
            if accepts(answer, truth) and not means_the_same(answer, truth)
        ]
        assert is_equal(truth, truth)
    shown = "\n".join(f"{answer!r} for {truth!r}" for answer, truth in accepted)
    assert not accepted, f"{len(accepted)} for {len(truths)} truths:\n{shown}"


def test_every_form_of_truth_is_read_so_that_other_spellings_count() -> None:
    for gold in golds(len(FORMS), seed=2):
        spaced = gold.truth.replace("+", " + ").replace("=", " = ").replace(r"\dfrac", r"\tfrac")
        spaced = (
            re.sub(r"(?<!\\left)\(", r"\\left(", spaced)
            .replace(")", r"\right)")
            .replace(r"\right\right", r"\right")
        )
        assert is_equal(f"${spaced}$.", gold.truth), gold
        assert algebra.readable(gold.truth) or gold.form == "time", gold


def test_where_math_verify_and_the_grader_differ_the_form_is_listed() -> None:
    from math_verify import parse, verify

    def peer(answer: str, truth: str) -> bool:
        read = [parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (truth, answer)]
        return bool(verify(*read, timeout_seconds=None))

    compared = [gold for gold in golds(len(FORMS), seed=3) if gold.form in PEER_ACCEPTS | PEER_REJECTS]
    assert {
        gold.form for gold in compared if any(peer(other, gold.truth) for other in gold.different[:3])
    } == PEER_ACCEPTS
    assert not any(is_equal(other, gold.truth) for gold in compared for other in gold.different[:3])
    assert all(peer(gold.truth, gold.truth) and is_equal(gold.truth, gold.truth) for gold in compared)
    assert peer("1=1", "2+3=5") and not is_equal("1=1", "2+3=5")


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        (r"5 \mathrm{~kJ} \mathrm{~mol}^{-1}", "5", "kilojoul mol^-1"),
        (r"5 \text{ kJ/mol}", "5", "kilojoul mol^-1"),
        (r"9.8 \mathrm{~m} / \mathrm{s}^2", "9.8", "meter second^-2"),
        (r"9.8 \frac{\mathrm{m}}{\mathrm{s}^2}", "9.8", "meter second^-2"),
        (r"4 \cdot 10^{-10} \mathrm{~m}", r"4 \cdot 10^{-10}", "meter"),
        (r"3 \mu\mathrm{m}", "3", "micrometer"),
        (r"\sqrt{3} \text{ square feet}", r"\sqrt{3}", "foot^2"),
        (r"5 \text{ (or 7)}", r"5 \text{ (or 7)}", ""),
        (r"x \text{ or } y", r"x \text{ or } y", ""), (r"\text{No}", r"\text{No}", ""),
        (r"3 \text{ if } x", r"3 \text{ if } x", ""),
    ],
)  # fmt: skip
def test_units_are_cut_whole_and_compared_in_one_spelling(text: str, value: str, unit: str) -> None:
    assert cut_unit(text) == (value, unit)


@pytest.mark.parametrize("truth", ["proof", r"\text{see the figure} + 1", r"\begin{tikzpicture}", "x + "])
def test_a_truth_that_only_its_own_text_matches_is_told(truth: str) -> None:
    assert algebra.readable(truth) is (truth == "proof")
    assert not any(is_equal(answer, truth) for answer in EVERYTHING)


@pytest.mark.parametrize(
    ("answer", "truth", "equal"),
    [
        ("(y,x)=(1,2)", "(x,y)=(1,2)", False),
        ("(a,c,b)=(1,2,3)", "(a,b,c)=(1,2,3)", False),
        ("(x, y) = (1,2)", "(x,y)=(1,2)", True),
        ("(x,y)=(1,2)", "(1,2)", True),
        (r"x=5\text{ sec}", "x=5", True),
        (r"\sqrt{2}\text{ sec}", r"\sqrt{2}", True),
        (r"2\sqrt{5}\mathrm{ sec}", r"2\sqrt{5}", True),
        (r"\text{sec}^2 x", r"\sec^2 x", True),
        ("555-123-4567", "-4135", False),
    ],
)
def test_names_of_a_tuple_and_seconds(answer: str, truth: str, equal: bool) -> None:
    assert algebra.equal(answer, truth) is equal


def test_letters_of_any_number_are_read_at_once() -> None:
    started = cpu_seconds()
    algebra.equal("(" + "a" * 900 + "+1) = 4", "4")
    assert cpu_seconds() - started < 2
