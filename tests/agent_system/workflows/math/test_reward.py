import asyncio
import json
from pathlib import Path

import pytest

from agent_system.workflows.math import SolverAgent
from agent_system.workflows.math.world.grade import grade, quick_grade
from agent_system.workflows.math.world.grader_pool import Verdict

GSM8K = Path(__file__).parents[5] / "shared" / "data" / "gsm8k" / "train.jsonl"


@pytest.mark.parametrize(
    ("answer", "truth", "equal"),
    [
        ("2^{10}", "1024", True), (r"12\%", "0.12", True), ("204", "205", False),
        (r"204+\frac{1}{10^{9}}", "204", False),
        ("10^{20}+1", "1" + "0" * 20, False), ("x^2+2x+1", "(x+1)^2", True), (r"1\frac{1}{2}", "1.5", True),
        ("x=5", "5", True),
        (r"\sqrt{18}", r"3\sqrt{2}", True), ("5,6", "6,5", True), (r"\text{(B)}", "B", True),
        ("2 pi", "6", False), ("18, 19", "18", False),
        (r"18 \text{ or } 19", "18", False), ("5 apples and 3 pears", "5", False),
        ("}{", "5", False), ("", "5", False), ("9" * 5000, "5", False),
    ],
)  # fmt: skip
async def test_answers_that_mean_the_same_are_equal(pool, answer, truth, equal):
    assert (await grade(answer, truth, pool) is Verdict.EQUAL) is equal


@pytest.mark.parametrize(
    ("answer", "truth", "equal"),
    [
        ("12 a", "12 c", False), ("2 a", "2", False), (r"\frac{1}{2} ab", r"\frac{1}{2}", False),
        ("2.5 ab", "2.5", False),
        ("5 sin", "5", False), ("3 m", "3 km", False), ("3m", "3km", False),
        ("10 dollars", "10 cents", False), ("$10", "10 cents", False),
        (r"10 \text{dollars}", r"10\text{ cents}", False), ("5 minutes", "5 hours", False),
        ("7 a.m.", "7 p.m.", False),
        (r"90^\circ", "90 cm", False), ("£5", "$5", False), ("3 sq. feet", "3 feet", False),
        ("60 mph", "60 miles per hour", True), ("£5", "5 pounds", True), ("5 a day", "5", True),
        ("$5 a day", "5 dollars/day", True),
        ("3 m", "3", True), ("5 ft", "5 feet", True), ("7 am", "7 a.m.", True), ("$10", "10 dollars", True),
        ("18 widgets", "18", True),
        ("1 box", "1 boxes", True), ("2 xy", "2 yx", True), (r"90^\circ", "90 degrees", True),
        ("3 dozen eggs", "36 eggs", True),
        ("60 km/h", "60 kilometers per hour", True), ("$5 million", "5000000 dollars", True),
        (r"\$18.00", "18", True),
    ],
)  # fmt: skip
async def test_a_unit_may_be_left_out_but_not_exchanged(pool, answer, truth, equal):
    assert (await grade(answer, truth, pool) is Verdict.EQUAL) is equal
    assert (await grade(truth, answer, pool) is Verdict.EQUAL) is equal


@pytest.mark.parametrize(
    ("printed", "truth", "equal"),
    [
        (repr(2**0.5), r"\sqrt{2}", True), ("1.41421", r"\sqrt{2}", False),
        (repr(2**0.5 * 1e-9), r"\sqrt{2} \cdot 10^{-9}", True),
        ("1.4143e-09", r"\sqrt{2} \cdot 10^{-9}", False), (repr(3.0**0.5 * 1e9), r"10^9\sqrt{3}", True),
        (repr(2.0**100), "2^{100}", True),
        ("1025", "2^{10}", False), (str(10**20), "10^{20}+1", False), (str(10**20 + 1), "10^{20}+1", True),
        (repr(5 / 3), "x=5/3", True),
        (repr(1 / 3), "(1/3)", True), ("2.5", "x", False), ("0.0", r"\sin(\pi)", True),
    ],
)  # fmt: skip
async def test_a_printed_number_is_compared_with_a_truth_that_is_not_a_plain_number(
    pool, printed, truth, equal
):
    assert (await grade(printed, truth, pool, 1e-6) is Verdict.EQUAL) is equal


@pytest.mark.parametrize("answer", ["42", "1,080", "12%", r"\frac{1}{2}", "43 apples"])
def test_plain_numbers_need_no_grader(answer):
    assert quick_grade(answer, "42") is not None


@pytest.mark.parametrize(
    "answer", ["__import__('os').system('touch {0}')", "().__class__", r"\input{{{0}}}", "open('{0}','w')"]
)
async def test_answer_is_never_executed(pool, tmp_path, answer):
    target = tmp_path / "executed"
    assert await grade(answer.format(target), "5", pool) is not Verdict.EQUAL
    assert not target.exists()


@pytest.mark.needs_shared
@pytest.mark.skipif(not GSM8K.is_file(), reason="no ../shared/data/gsm8k")
async def test_every_gsm8k_answer_is_right_against_itself(pool):
    solver = SolverAgent()
    rows = [json.loads(line)["answer"] for line in GSM8K.open(encoding="utf-8")]
    truths = [row.rsplit("####", 1)[1].strip() for row in rows]
    replies = [
        f"{row.rsplit('####', 1)[0]}\n\\boxed{{{truth}}}" for row, truth in zip(rows, truths, strict=True)
    ]
    boxed = await asyncio.gather(
        *(
            grade(solver.project(r).action, t.replace(",", ""), pool)
            for r, t in zip(replies, truths, strict=True)
        )
    )
    assert len(truths) == 7473 and set(boxed) == {Verdict.EQUAL}
    for tolerance in (0.0, 1e-6):
        raw = await asyncio.gather(*(grade(truth, truth, pool, tolerance) for truth in truths))
        wrong = await asyncio.gather(
            *(grade(str(int(t.replace(",", "")) + 1), t, pool, tolerance) for t in truths)
        )
        assert set(raw) == {Verdict.EQUAL} and set(wrong) == {Verdict.DIFFERENT}
