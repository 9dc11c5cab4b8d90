import json

import numpy as np
import pytest

from agent_system import AgentSystemError, Task
from agent_system.workflows.math.world.truth import truth_text
from agent_system.workflows.search.world.answers import (
    AnswerError,
    accepted_answers,
    can_be_matched,
    contains,
    exact_match,
    f1_score,
    normalize,
    searchable,
)


def test_case_articles_punctuation_and_spaces_do_not_count():
    assert normalize("  The  U.S. of a-Team! ") == "us of ateam"
    assert exact_match("the Beatles.", ["Beatles"]) == 1
    assert exact_match("Beatles band", ["Beatles"]) == 0
    assert exact_match("Beyonce\u0301", ["Beyonc\u00e9"]) == exact_match("\u00e9", ["e\u0301"]) == 1
    assert exact_match("Beyonce", ["Beyonc\u00e9"]) == 0


@pytest.mark.parametrize("answer", ["", "  ", "the", "..."])
def test_an_answer_without_a_word_is_wrong(answer):
    assert exact_match(answer, ["The", ""]) == 0
    assert f1_score(answer, ["The", "x"]) == 0


def test_the_best_accepted_answer_counts():
    assert exact_match("NYC", ["New York", "nyc"]) == 1
    assert f1_score("New York City", ["London", "New York"]) == pytest.approx(0.8)
    assert f1_score("york york", ["New York"]) == pytest.approx(0.5), (
        "a word counts as often as the other side has it"
    )
    assert f1_score("x", []) == 0


def test_yes_and_no_are_right_or_wrong_as_a_whole():
    assert f1_score("yes", ["yes"]) == 1
    assert f1_score("yes of course", ["yes"]) == 0
    assert f1_score("no", ["no way"]) == 0


@pytest.mark.parametrize(
    ("truth", "expected"),
    [
        ("Dena", ["Dena"]),
        ("['a', \"b's\"]", ["a", "b's"]),
        ("{'target': ['a', 'b']}", ["a", "b"]),
        (["['a']"], ["['a']"]),
        ("[a]", ["[a]"]),
        ("['a', open('x')]", ["['a', open('x')]"]),
        ("{'a'}", ["{'a'}"]),
        (["Dena", " ", "Dena Town"], ["Dena", "Dena Town"]),
        ({"target": ["a", 7]}, ["a", "7"]),
        ({"target": "a"}, ["a"]),
        ({"other": "a"}, []),
        (None, []),
        ("  ", []),
        (1984, ["1984"]),
        (("a", None), ["a"]),
        ('["politician", "lord mayor", 7]', ["politician", "lord mayor", "7"]),
        ({"target": '["a"]'}, ["a"]),
        ("[sic]", ["[sic]"]),
    ],
)
def test_ground_truths_of_all_sets_are_read(truth, expected):
    assert accepted_answers(truth) == expected


@pytest.mark.parametrize("shown", [json.dumps, str, repr])
@pytest.mark.parametrize(
    "container", [list, np.array, lambda texts: np.array(texts, dtype=object)], ids=range(3)
)
@pytest.mark.parametrize("is_target", [False, True])
@pytest.mark.parametrize(
    "texts",
    [["Paris"], ["Paris", "London"], ["It's", 'the "Hague"', "St. John's, N.B."], ["a, b", "c] d", "e\\f", "1"],
     ["New York City and the counties around it", "NYC"] * 4],
    ids=range(5),
)  # fmt: skip
def test_answers_are_read_however_they_were_printed(texts, container, shown, is_target):
    """By JSON, Python and numpy, which prints no commas."""
    value = container(texts)
    value = {"target": value} if is_target else value
    if shown is json.dumps:
        value = {"target": texts} if is_target else texts
    assert accepted_answers(shown(value)) == texts


@pytest.mark.parametrize("missing", [None, float("nan"), np.float64("nan"), [None, float("nan")]])
def test_a_missing_number_is_no_answer(missing):
    assert accepted_answers(missing) == [] == accepted_answers({"target": missing})
    with pytest.raises(AgentSystemError, match="no ground truth"):
        truth_text(Task("t", "q", "", missing))


@pytest.mark.parametrize(
    "truth",
    [[{"text": "x"}], '[{"text": "x"}]', {"target": [["x"]]}, b"x", True, ["x", False], {"target": {"a": 1}}],
)
def test_a_ground_truth_that_is_neither_text_nor_number_is_refused(truth):
    with pytest.raises(
        AnswerError, match=r"an accepted answer is .* expected a text or a number; write a text, a list"
    ):
        accepted_answers(truth)


def test_an_answer_needs_a_word_to_be_matched():
    assert can_be_matched(["the", "x"])
    assert not can_be_matched(["A", "the.", "?"]) and not can_be_matched([])


def test_yes_and_no_are_not_searchable():
    assert searchable(["Yes", "no.", "NoAnswer", "the", "no way"]) == ["no way"]


def test_an_answer_is_found_in_a_text_as_whole_words():
    assert contains(["She was born in the New York!"], ["new york"])
    assert not contains(["Newark and Yorkshire"], ["york"])
    assert not contains(["anything"], ["", "the"])
