import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl.workers.engine.micro_batch import MicroBatchRule, plan_micro_batches

LENGTHS = st.lists(st.integers(1, 60), min_size=0, max_size=40)


@given(LENGTHS, st.integers(1, 120), st.booleans())
def test_budget_holds_for_every_row_once(lengths: list[int], budget: int, packed: bool) -> None:
    plan = plan_micro_batches(lengths, MicroBatchRule(budget, 1, packed))
    assert sorted(i for part in plan for i in part) == list(range(len(lengths)))
    for part in plan:
        sizes = [lengths[i] for i in part]
        assert sizes == sorted(sizes, reverse=True)
        assert len(part) == 1 or (sum(sizes) if packed else len(sizes) * max(sizes)) <= budget


@given(LENGTHS, st.integers(1, 9))
def test_without_a_budget_rows_are_counted(lengths: list[int], rows: int) -> None:
    plan = plan_micro_batches(lengths, MicroBatchRule(None, rows, packed=True))
    assert sorted(i for part in plan for i in part) == list(range(len(lengths)))
    assert len(plan) == -(-len(lengths) // rows) and all(len(part) <= rows for part in plan)


def test_packed_micro_batches_hold_about_equally_many_tokens() -> None:
    plan = plan_micro_batches(list(range(1, 101)), MicroBatchRule(1300, 1, packed=True))
    sums = [sum(i + 1 for i in part) for part in plan]
    assert len(plan) == 4 and max(sums) - min(sums) <= 2


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="micro-batch limit 0"):
        MicroBatchRule(None, 0, packed=True)
