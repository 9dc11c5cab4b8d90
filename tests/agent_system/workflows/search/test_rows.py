import pytest

from agent_system import AgentSystemError
from agent_system.workflows.search.world.answers import AnswerError
from agent_system.workflows.search.world.rows import find_answers, find_question, make_row


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"question": "q", "golden_answers": ["a", "b", "a"]}, ["a", "b"]),
        ({"question": "q", "answer": ["a"]}, ["a"]),
        ({"question": "q", "answer": "a"}, ["a"]),
        ({"question": "q", "answers": {"text": ["a"], "answer_start": [3]}}, ["a"]),
        ({"question": "q", "answer": {"value": "a", "aliases": ["b"]}}, ["a", "b"]),
        ({"question": "q", "golden_answers": [], "answer": "a"}, ["a"]),
        (
            {
                "prompt": [{"role": "user", "content": "Answer it.\nQuestion: q"}],
                "reward_model": {"ground_truth": {"target": ["a"]}},
            },
            ["a"],
        ),
        (
            {"question": "q", "possible_answers": '["politician", "political leader"]'},
            ["politician", "political leader"],
        ),
        ({"question": "q", "answers": {"text": "abc", "answer_start": [3]}}, ["abc"]),
        ({"question": "q", "answer": {"value": 7, "aliases": '["seven"]'}}, ["7", "seven"]),
        ({"question": "q"}, []),
    ],
)
def test_rows_of_every_set_are_read(row, answers):
    assert (find_question(row), find_answers(row)) == ("q", answers)


def test_a_row_without_question_is_empty_and_one_without_answer_refused():
    assert find_question({"answer": "a"}) == ""
    with pytest.raises(AgentSystemError, match="nq train row 3"):
        make_row("q?", [" "], data_source="nq", split="train", index=3)
    with pytest.raises(
        AgentSystemError,
        match=r"nq train row 3: .* an answer with a word other than an article, found 'q.' and .'A'",
    ):
        make_row("q?", ["A"], data_source="nq", split="train", index=3)
    assert make_row(" q? ", ["x"], data_source="nq", split="test", index=0)["reward_model"][
        "ground_truth"
    ] == {"target": ["x"]}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"answers": [{"text": "x"}]}, "answers: an accepted answer is {'text': 'x'}"),
        ({"answers": {"text": [["x"]]}}, r"answers: an accepted answer is \['x'\]"),
        ({"reward_model": "x"}, "reward_model is 'x', expected"),
        ({"reward_model": {"ground_truth": [True]}}, "reward_model.ground_truth: an accepted answer is True"),
    ],
)
def test_a_row_that_cannot_be_read_names_its_column(row, words):
    with pytest.raises(AnswerError, match=words):
        find_answers(row)
