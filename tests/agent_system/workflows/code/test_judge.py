import pytest

from agent_system.workflows.code.world.judge import same_kind, same_output, same_value

TOLERANCE = 1e-6


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ("1 2\n3\n", "1 2\r\n3"),
        ("1 2\n", "  1\t2 \n\n"),
        ("0.5\n", "0.50000001"),
        ("3.0", "3"),
        ("3", "3.000"),
        ("1e6", "1000000"),
        ("1000000.5", "1000000.6"),
        ("YES", "YES"),
        ("", "\n"),
        ("-0.0", "0"),
        ("12345678901234567890", "12345678901234567890.0"),
        ("10.0", "10"),
        ("0010", "0010"),
        ("0010", "0010.0"),
        ("-5", "-5."),
        ("0.99999999", "1"),
        ("0.5", "+0.5"),
        ("9" * 399, "9" * 399 + "."),
    ],
)
def test_the_same_output(expected: str, found: str) -> None:
    assert same_output(expected, found, TOLERANCE)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ("1 2", "12"),
        ("1 2", "2 1"),
        ("1", "1 1"),
        ("YES", "yes"),
        ("10000000", "10000001"),
        ("10000000", "10000000.5"),
        ("12345678901234567890", "1.2345678901234567890e19"),
        ("0.5", "0.51"),
        ("1.5", "nan"),
        ("nan", "1.5"),
        ("0.5", ""),
        ("1", "9" * 5000),
        ("1.5", "9" * 399),
        ("9" * 390 + ".5", "8" * 390 + ".5"),
        ("1.5", "__import__('os')"),
        ("٣", "3"),
        ("0010", "10"),
        ("10", "0010"),
        ("10.0", "0010"),
        ("0010", "10.0"),
        ("007 +5", "7 5"),
        ("5", "+5"),
        ("5.0", "+5"),
        ("0", "00"),
        ("0", "-0"),
    ],
)
def test_another_output(expected: str, found: str) -> None:
    assert not same_output(expected, found, TOLERANCE)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (1, 1),
        (1, 1.0),
        (0.1 + 0.2, 0.3),
        ([1, [2.0]], [1, [2.0000001]]),
        ({"a": 1.0}, {"a": 1.0000001}),
        (None, None),
        (True, True),
        ("", ""),
    ],
)
def test_the_same_value(expected: object, found: object) -> None:
    assert same_value(expected, found, TOLERANCE)


@pytest.mark.parametrize(
    ("expected", "found"),
    [(1, True), (True, 1), (1, 1.0000001), (None, False), (0, None), ([1, 2], [1]), ("1", 1), ({"a": 1}, {"b": 1}), (float("nan"), 1.0),
     (float("inf"), 1e308), (1.5, 10**400), ([], {}), ("a", "A")],
)  # fmt: skip
def test_another_value(expected: object, found: object) -> None:
    assert not same_value(expected, found, TOLERANCE)


def test_no_tolerance_is_equality() -> None:
    assert not same_output("0.5", "0.5000001", 0.0) and same_output("0.5", "0.50", 0.0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(1, 2.5, True), ([], [1], True), (True, False, True), (None, None, True), ("1", "a", True), (1, True, False), (0.0, False, False),
     (None, 0, False), ("1", 1, False), ([], {}, False)],
)  # fmt: skip
def test_the_same_kind(one: object, other: object, same: bool) -> None:
    assert same_kind(one, other) is same_kind(other, one) is same
