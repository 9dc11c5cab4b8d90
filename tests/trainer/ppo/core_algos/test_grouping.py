"""Group keys and statistics by hand, and that both are functions of the set of rows."""

from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from verl.trainer.ppo.core_algos import group_index, group_stats
from verl.trainer.ppo.core_algos.grouping import first_rows


def column(values: list) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def test_a_group_is_a_tuple_of_values_numbered_as_it_appears() -> None:
    index = group_index([column(["b", "a", "b", "a"]), column([2, 2, 2, 1])])
    assert index.tolist() == [0, 1, 0, 2]
    assert first_rows(index).tolist() == [0, 1, 3]


@pytest.mark.parametrize("rows", [[], ["a"], ["a", "a"], ["a", "a", "a"]])
def test_columns_of_few_rows_or_none(rows: list) -> None:
    assert group_index([column(rows)]).tolist() == [0] * len(rows)


def test_values_that_look_alike_stay_apart() -> None:
    assert group_index([column(["1", 1, "1 ", None, "None"])]).tolist() == [0, 1, 2, 3, 4]
    joined = [column(["a,b", "a", "a_b", "a"]), column(["c", "b,c", "c", "b_c"])]
    assert group_index(joined).tolist() == [0, 1, 2, 3]
    assert group_index([column([None, float("nan"), "x"])]).tolist() == [0, 0, 1]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rows_that_share_an_object_are_as_rows_with_equal_ones(data) -> None:
    # Two objects for each text, so that equal values lie at two places.
    texts = [text for n in range(3) for text in ("".join(["task-", str(n)]), "".join(["task-", str(n)]))]
    things = [*texts, None, float("nan"), 1, 1.0, True, 2**70, -5, (1, 2)]
    rows = [things[i] for i in data.draw(st.lists(st.integers(0, len(things) - 1), min_size=1, max_size=60))]
    names = ["none" if thing is None or thing != thing else thing for thing in rows]
    expected = [list(dict.fromkeys(names)).index(name) for name in names]
    assert group_index([column(rows)]).tolist() == expected
    assert group_index([column(rows)[::-1]]).tolist() == group_index([column(rows[::-1])]).tolist(), (
        "a view that runs backwards"
    )
    assert group_index([column(rows), column([0] * len(rows))]).tolist() == expected


def test_many_wide_columns_do_not_run_into_each_other() -> None:
    rng = np.random.default_rng(0)
    columns = [rng.permutation(5000) for _ in range(8)]
    assert len(np.unique(group_index(columns))) == 5000, "5000^8 is far beyond 64 bits"


def test_columns_that_cannot_be_a_key_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[2, 3\]"):
        group_index([np.zeros(2), np.zeros(3)])
    with pytest.raises(ValueError, match="at least one column"):
        group_index([])


def test_statistics_by_hand() -> None:
    # group 0: 1, 2, 6 -> mean 3, variance (4 + 1 + 9) / 2 = 7; group 1: the padding row 99 does not count;
    # group 2 is a constant.
    stats = group_stats(
        np.array([1.0, 5.0, 2.0, 99.0, 6.0, 4.0, 4.0]),
        np.array([0, 1, 0, 1, 0, 2, 2]),
        np.array([1, 1, 1, 0, 1, 1, 1], dtype=bool),
    )
    assert stats.count.tolist() == [3, 1, 2]
    assert stats.mean.tolist() == [3.0, 5.0, 4.0]
    assert stats.std.tolist() == [pytest.approx(7**0.5), 0.0, 0.0]
    assert stats.constant.tolist() == [False, True, True]


def test_the_mean_of_equal_scores_is_that_score_however_many_there_are() -> None:
    index = np.repeat(np.arange(40), np.arange(1, 41))
    for weights in (None, 1 / (index + 1)):
        assert (group_stats(np.full(len(index), 0.1), index, weights=weights).mean == 0.1).all()


def test_weighted_statistics_by_hand() -> None:
    # W = 1 + 1/2 + 1/2 = 2, mean = (2 + 2 + 3) / 2 = 3.5, sum w d^2 = 2.25 + 0.125 + 3.125 = 5.5, W - sum w^2
    # / W = 2 - 1.5 / 2 = 1.25
    scores, weights = np.array([2.0, 4.0, 6.0, 50.0]), np.array([1.0, 0.5, 0.5, 0.0])
    stats = group_stats(scores, np.zeros(4, dtype=int), weights=weights)
    assert stats.mean[0] == 3.5
    assert stats.std[0] ** 2 == pytest.approx(5.5 / 1.25)
    assert stats.weight[0] == 2.0
    assert stats.count[0] == 3, "a row of weight 0 is in no statistic"


def test_weights_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 0, found -1"):
        group_stats(np.zeros(2), np.zeros(2, dtype=int), weights=np.array([1.0, -1.0]))


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.floats(-1e3, 1e3), st.integers(0, 3)), min_size=1, max_size=40
)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.randoms(), st.booleans(), st.booleans())
@example([(0, 0.0, 0), (0, 0.0, 0), (0, 0.0, 0), (1, 0.0, 1), (1, -0.0, 1)], Random(0), False, True)
@example([(1, 0.1, 1), (1, 0.0, 1), (0, -0.0, 1), (0, 0.0, 2)], Random(1), False, False)
def test_the_order_of_rows_changes_no_bit(rows, random, narrow: bool, weighted: bool) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)

    def stats(rows: list) -> tuple:
        scores = np.array([s for _, s, _ in rows])
        scores = scores.astype(np.float32).astype(np.float64) if narrow else scores
        weights = np.array([w / 3 for _, _, w in rows]) if weighted else None
        result = group_stats(scores, np.array([g for g, _, _ in rows]), weights=weights)
        return tuple(
            x.tobytes() for x in (result.count, result.mean, result.std, result.constant, result.weight)
        )

    assert stats(rows) == stats(shuffled)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.floats(0.1, 10))
def test_packed_sorting_and_equal_weights_change_nothing(rows, weight: float) -> None:
    groups = np.array([g for g, _, _ in rows])
    scores = np.array([s for _, s, _ in rows]).astype(np.float32).astype(np.float64)
    plain = group_stats(scores, groups)
    for g in set(groups.tolist()):
        members = np.sort(scores[groups == g])
        assert plain.mean[g] == pytest.approx(members.mean(), abs=1e-9)
        assert plain.std[g] == pytest.approx(members.std(ddof=1) if len(set(members)) > 1 else 0.0, abs=1e-6)
    equal = group_stats(scores, groups, weights=np.full(len(scores), weight))
    assert np.allclose(equal.mean, plain.mean, atol=1e-9)
    assert np.allclose(equal.std, plain.std, rtol=1e-6, atol=1e-6)
    assert (equal.constant == plain.constant).all()


def test_weights_that_are_copies_give_the_statistics_of_the_copies() -> None:
    # 1 twice, 4 three times, 0 once: mean 14 / 6, and the deviation of six rows
    stats = group_stats(
        np.array([1.0, 4.0, 0.0, 9.0]),
        np.array([0, 0, 0, 1]),
        weights=np.array([2.0, 3.0, 1.0, 4.0]),
        copies=True,
    )
    six = np.array([1.0, 1.0, 4.0, 4.0, 4.0, 0.0])
    assert stats.mean.tolist() == pytest.approx([six.mean(), 9.0])
    assert stats.std.tolist() == pytest.approx([six.std(ddof=1), 0.0])
    assert stats.count.tolist() == [3, 1] and stats.weight.tolist() == [6.0, 4.0]
