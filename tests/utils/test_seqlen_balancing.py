import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions


@given(st.lists(st.integers(0, 500), min_size=1, max_size=40), st.integers(1, 8))
def test_every_index_is_in_one_part_and_no_part_is_empty(lengths: list[int], k: int) -> None:
    if len(lengths) < k:
        with pytest.raises(ValueError, match="cannot split"):
            get_seqlen_balanced_partitions(lengths, k, equal_size=False)
        return
    parts = get_seqlen_balanced_partitions(lengths, k, equal_size=False)
    assert len(parts) == k and all(parts)
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))


@given(st.lists(st.integers(0, 500), min_size=4, max_size=40))
def test_equal_size_parts_have_as_many_sequences(lengths: list[int]) -> None:
    lengths = lengths[: len(lengths) // 4 * 4]
    parts = get_seqlen_balanced_partitions(lengths, 4, equal_size=True)
    assert {len(part) for part in parts} == {len(lengths) // 4}


def test_sums_are_nearly_equal() -> None:
    lengths = [(37 * i) % 501 + 1 for i in range(256)]
    for equal_size in (False, True):
        sums = [
            sum(lengths[i] for i in part) for part in get_seqlen_balanced_partitions(lengths, 8, equal_size)
        ]
        assert max(sums) - min(sums) <= 5


def test_a_count_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="5 sequences do not divide into 2"):
        get_seqlen_balanced_partitions([1] * 5, 2, equal_size=True)
