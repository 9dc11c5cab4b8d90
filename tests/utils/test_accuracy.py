"""Accuracies are means over tasks, held against numbers worked out by hand."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl.utils.accuracy import (
    bootstrap_interval,
    estimate,
    estimate_avg,
    estimate_pass,
    pass_at_k,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("num_samples", "num_correct", "k", "expected"),
    [
        (4, 1, 1, 0.25),
        (4, 1, 2, 0.5),
        (4, 2, 2, 5 / 6),
        (5, 2, 3, 0.9),
        (4, 0, 4, 0.0),
        (4, 3, 2, 1.0),
        (1, 1, 1, 1.0),
    ],
)
def test_pass_at_k_equals_hand_computed_values(
    num_samples: int, num_correct: int, k: int, expected: float
) -> None:
    assert pass_at_k(num_samples, num_correct, k) == pytest.approx(expected, abs=1e-12)


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(
    num_samples: int, data: st.DataObject
) -> None:
    num_correct = data.draw(st.integers(0, num_samples))
    k = data.draw(st.integers(1, num_samples))
    subsets = list(combinations([True] * num_correct + [False] * (num_samples - num_correct), k))
    assert pass_at_k(num_samples, num_correct, k) == pytest.approx(
        np.mean([any(s) for s in subsets]), abs=1e-12
    )


def test_pass_at_k_is_exact_for_many_samples() -> None:
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01, rel=1e-9)


def test_pass_at_k_refuses_more_draws_than_samples() -> None:
    with pytest.raises(ValueError, match=r"pass@5 .*found 4"):
        pass_at_k(4, 1, 5)


def test_average_is_over_tasks_not_rows() -> None:
    result = estimate_avg([1, 1, 1, 1, 1, 1, 0, 0], ["easy"] * 6 + ["hard"] * 2)
    assert result.value == 0.5  # rows would say 0.75
    assert result.num_tasks == 2


def test_rows_of_tasks_may_be_interleaved() -> None:
    assert estimate_avg([1, 0, 1, 0, 0, 1], ["a", "b", "a", "b", "a", "b"]).value == pytest.approx(
        (2 / 3 + 1 / 3) / 2
    )


def test_more_rows_of_the_same_tasks_do_not_narrow_the_interval() -> None:
    once = estimate_avg([1, 0, 1, 0], ["a", "b", "c", "d"])
    often = estimate_avg([1, 0, 1, 0] * 50, ["a", "b", "c", "d"] * 50)
    assert (once.low, once.high) == (often.low, often.high)


def test_pass_at_2_over_two_tasks() -> None:
    result = estimate_pass([1, 0, 0, 0, 0, 0, 0, 0], ["a"] * 4 + ["b"] * 4, k=2)
    assert result.value == pytest.approx(0.25)
    assert result.num_tasks == 2


def test_pass_names_the_task_with_too_few_rows() -> None:
    with pytest.raises(ValueError, match="task 'b' has 1 rows"):
        estimate_pass([1, 0, 1], ["a", "a", "b"], k=2)


def test_pass_refuses_partial_credit() -> None:
    with pytest.raises(ValueError, match="needs 0/1 outcomes"):
        estimate_pass([0.5, 1.0], ["a", "a"], k=1)


def test_wilson_interval_equals_published_example() -> None:
    # 81 of 263: Newcombe 1998, table I, method 3.
    low, high = wilson_interval(81 / 263, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)


def test_wilson_interval_of_all_failures_is_not_empty() -> None:
    low, high = wilson_interval(0.0, 10)
    assert low == 0.0
    assert high == pytest.approx(0.2775, abs=1e-4)


def test_bootstrap_covers_the_mean_and_is_repeatable() -> None:
    values = np.linspace(-1, 3, 50)
    low, high = bootstrap_interval(values)
    assert low < values.mean() < high
    assert (low, high) == bootstrap_interval(values)
    standard_error = values.std() / np.sqrt(50)
    assert high - low == pytest.approx(2 * 1.96 * standard_error, rel=0.15)


def test_values_outside_the_unit_interval_take_the_bootstrap() -> None:
    result = estimate([-2.0, 0.0, 2.0, 4.0])
    assert result.low < result.value == 1.0 < result.high


@pytest.mark.parametrize("values", [[], [float("nan")]])
def test_no_rows_and_nan_are_errors(values: list[float]) -> None:
    with pytest.raises(ValueError):
        estimate_avg(values, ["a"] * len(values))
