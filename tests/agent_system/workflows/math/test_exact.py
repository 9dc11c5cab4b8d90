from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_system.workflows.math.world.exact import exact_number
from agent_system.workflows.math.world.latex import same_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", 18), ("-18", -18), ("\u221218", -18), ("- 5", -5), ("+5", 5), ("18.", 18), ("18.00", 18),
        (".5", "1/2"),
        ("1,080", 1080), ("109,200,000", 109200000), ("1{,}080", 1080), (r"1\,080", None),
        ("$1,250.50", "2501/2"), (r"-\$18", -18),
        (r"\$-18", -18), ("$18$", 18), ("18 dollars", 18), (r"18\text{ dollars}", 18),
        (r"18 \mathrm{cm}", 18), ("5cm", 5),
        ("2,125 sq. feet", 2125), (r"90^\circ", 90), (r"90^{\circ}", 90), ("5 million", 5000000),
        ("1e3", 1000),
        (r"2.5 \times 10^{3}", 2500), (r"\frac{1}{2}", "1/2"), (r"\frac12", "1/2"),
        (r"-\dfrac{3}{4}", "-3/4"),
        ("3/4", "3/4"), ("1/2 cup", "1/2"), ("1.1*10**11", 110000000000), ("1.1*10^11", 110000000000),
        ("1e-07", "1/10000000"),
        ("2e+300", 2 * 10**300),
    ],
)  # fmt: skip
def test_number_is_read_exactly(text, value):
    number = exact_number(text)
    assert number is None if value is None else number is not None and number.value == Fraction(value)


@pytest.mark.parametrize(
    "text",
    ["", "$", "%", "five", "5x", "2 pi", r"2\pi", "2 e", "1,2", "1,0800", "12,34", "--5", "1/0", "2^{10}", "99999999!", 
     "5 apples and 3 pears", "5 factorial", "5 squared", "2 a", "2 ab", "12 c", "5 sin", r"\frac{1}{2} ab",
     "18, 19", "9" * 201, "\uff15", "1e999", "__import__('os')", "nan", "inf"],
)  # fmt: skip
def test_answers_that_are_not_plain_numbers_are_left_to_the_grader(text):
    assert exact_number(text) is None


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (r"12\%", "0.12", True), ("12%", "12", True), ("12 percent", r"\frac{3}{25}", True),
        ("0.12", "12", False),
        ("12%", "0.12%", False), ("3 dozen", "36", True), ("3 dozen eggs", "3", True), ("204", "205", False),
        ("0.333", "1/3", False), ("100000000", "100000001", False),
        ("123456789012345678", "123456789012345679", False),
        ("204.9999999", "205", False), ("5 million", "5", False),
    ],
)  # fmt: skip
def test_numbers_are_compared_without_tolerance(left, right, equal):
    a, b = exact_number(left), exact_number(right)
    assert a is not None and b is not None
    assert a.equals(b) is b.equals(a) is equal


@pytest.mark.parametrize(
    ("printed", "truth", "equal"),
    [
        (repr(1 / 3), "1/3", True), (repr(0.1 + 0.2), "0.3", True), ("0.33333", "1/3", False),
        ("0.3333333", "1/3", True),
        (repr(1.1 * 10**11), "1.1*10**11", True), ("110000000001", "1.1*10**11", False),
        ("110000000001.0", "110000000000", False),
        ("100000001", "100000000", False), ("100000000.6", "100000000", False),
        ("2.9999999999999996", "3", True),
        ("123456789012345678", "123456789012345679", False), (repr(2.0**100), str(2**100), True),
        (str(2**100 + 1), str(2**100), False),
        (repr(1e300 / 3), "3.333333333e299", True), (repr(6.62607015e-34), "6.626e-34", False),
        ("1e-300", "1.0000001e-300", True),
        (repr(0.1 + 0.2 - 0.3), "0", True), ("0", "1e-13", False), ("1e-7", "0", False),
        (repr(0.07 * 100) + "%", "0.07", True),
        (repr(1 / 3) + " m", "1/3 km", False), ("-" + repr(1 / 3), "1/3", False),
    ],
)  # fmt: skip
def test_a_number_that_a_program_prints_may_be_off_by_what_floats_lose_and_integers_may_not(
    printed, truth, equal
):
    a, b = exact_number(printed), exact_number(truth)
    assert a is not None and b is not None
    assert a.equals(b, 1e-6) is equal
    assert a.equals(b) is (a.value == b.value)


@given(st.integers(1, 10**40), st.sampled_from([-1, 1]))
def test_an_integer_off_by_one_is_wrong_at_any_tolerance(value, by):
    truth = exact_number(str(value))
    for printed in (str(value + by), *([f"{value + by}.0"] if value < 2**53 else [])):
        number = exact_number(printed)
        assert number is not None and truth is not None and not number.equals(truth, 0.1)


@given(st.integers(-(10**30), 10**30))
def test_thousands_commas_and_currency_change_nothing(value):
    number = exact_number(f"${value:,}" if value >= 0 else f"-${-value:,}")
    assert number is not None and number.value == value


@given(st.text(max_size=60))
def test_any_text_is_survived(text):
    exact_number(text)
    same_text(text, text)


def test_same_text_ignores_spaces_and_delimiters():
    assert same_text(r"\text{Evelyn}", "Evelyn") and same_text("$( 1, 2 )$", "(1,2)")
    assert not same_text("", "") and not same_text("AB", "A")
