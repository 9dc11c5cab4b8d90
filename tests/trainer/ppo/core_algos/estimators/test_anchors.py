"""Grouping of steps by the state they began in."""

import numpy as np
import pytest

from tests.cpu_time import cpu_seconds
from verl.trainer.ppo.core_algos import build_step_group
from verl.trainer.ppo.core_algos.estimators.anchors import similarity


def objects(values: list) -> np.ndarray:
    return np.fromiter(values, dtype=object, count=len(values))


def partition(groups: np.ndarray) -> list[list[int]]:
    return sorted(np.flatnonzero(groups == g).tolist() for g in np.unique(groups))


def test_equal_observations_of_a_group_meet() -> None:
    anchors, index = objects(["a", "b", "a", "a", "b"]), objects(["g", "g", "g", "h", "h"])
    assert partition(build_step_group(anchors, index)) == [[0, 2], [1], [3], [4]]


def test_observations_may_be_tuples() -> None:
    anchors = objects([(1, 2), (1, 2), (2, 1)])
    assert partition(build_step_group(anchors, np.zeros(3))) == [[0, 1], [2]]


class Colliding:
    """Values with one and the same hash."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Colliding) and self.name == other.name


def test_colliding_hashes_do_not_join_states() -> None:
    anchors = objects([Colliding("a"), Colliding("b"), Colliding("a")])
    assert partition(build_step_group(anchors, np.zeros(3))) == [[0, 2], [1]]


def test_similarity_by_hand() -> None:
    assert similarity("abcd", "abcd") == 1.0
    assert similarity("", "") == 1.0
    assert similarity("abc", "xyz") == 0.0
    # "kitten" and "sitting" share the subsequence i, t, t, n
    assert similarity("kitten", "sitting") == similarity("sitting", "kitten") == pytest.approx(8 / 13)
    # "ABCBDAB" and "BDCABA" share four letters in order, at both ends none
    assert similarity("ABCBDAB", "BDCABA") == pytest.approx(8 / 13)


def test_similar_observations_of_a_group_meet_whatever_their_order() -> None:
    texts = ["room 1 with a lamp", "room 2 with a lamp", "a street in the rain", "a street in the rains"]
    for order in ([0, 1, 2, 3], [3, 1, 2, 0], [2, 0, 3, 1]):
        anchors, index = objects([texts[i] for i in order] * 2), np.repeat([0, 1], 4)
        found = partition(build_step_group(anchors, index, enable_similarity=True, similarity_thresh=0.9))
        lamps, streets = sorted(order.index(i) for i in (0, 1)), sorted(order.index(i) for i in (2, 3))
        assert found == sorted([lamps, streets, [i + 4 for i in lamps], [i + 4 for i in streets]])
    alone = build_step_group(objects(texts), np.zeros(4), enable_similarity=True, similarity_thresh=1.0)
    assert len(np.unique(alone)) == 4


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"1 of 2 rows have no anchor observation \(first: row 1\)"):
        build_step_group(objects(["a", None]), np.zeros(2))
    with pytest.raises(TypeError, match="unhashable"):
        build_step_group(objects([["a"], ["b"]]), np.zeros(2))
    with pytest.raises(TypeError, match="compares strings"):
        build_step_group(objects([1, 2]), np.zeros(2), enable_similarity=True)
    with pytest.raises(ValueError, match="similarity_thresh=0"):
        build_step_group(objects(["a"]), np.zeros(1), enable_similarity=True, similarity_thresh=0)


def test_fifty_thousand_rows_are_no_loop_over_rows() -> None:
    rng = np.random.default_rng(0)
    anchors = objects([f"You are in room {room}." for room in rng.integers(0, 500, 50_000)])
    index = np.repeat(np.arange(250), 200)
    build_step_group(anchors[:100], index[:100])
    start = cpu_seconds()
    groups = build_step_group(anchors, index)
    assert cpu_seconds() - start < 0.5
    assert len(np.unique(groups)) == len(set(zip(index.tolist(), anchors.tolist(), strict=True)))


def test_rows_that_do_not_count_stand_for_no_state_and_may_hold_anything() -> None:
    # "room x" alone would stand for both others at 0.9; "room xxx" is too far from it, but not from "room xx"
    texts, valid = (
        objects(["room x", "room xx", "room xxx", None, ["unhashable"]]),
        np.array([False, True, True, False, False]),
    )
    found = build_step_group(texts, np.zeros(5), enable_similarity=True, similarity_thresh=0.9, valid=valid)
    assert similarity("room x", "room xxx") < 0.9 <= similarity("room xx", "room xxx")
    assert found.tolist() == [-1, 0, 0, -1, -1]
    assert build_step_group(texts, np.zeros(5), valid=valid).tolist() == [-1, 0, 1, -1, -1]
    for similar in (False, True):
        assert (
            build_step_group(texts, np.zeros(5), similar, valid=np.zeros(5, dtype=bool)).tolist() == [-1] * 5
        )
    with pytest.raises(ValueError, match=r"1 of 2 rows have no anchor observation \(first: row 3\)"):
        build_step_group(texts, np.zeros(5), valid=np.array([False, True, False, True, False]))
