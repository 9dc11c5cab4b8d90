import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_system.workflows.code import team
from agent_system.workflows.code.world.problem import Case
from agent_system.workflows.code.world.replies import Suite, read_pairs, read_tests
from tests.cpu_time import cpu_seconds


def pair(given: str, expected: str) -> str:
    return f"<input>{given}</input>\n<output>{expected}</output>"


def test_tests_stand_anywhere_in_a_reply() -> None:
    text = f"First\n{pair('1', '2')}\nthen <INPUT>\n3\n</Input> gives <output >\n4\n</output>"
    assert read_pairs(text) == [("1", "2"), ("\n3\n", "\n4\n")]


@pytest.mark.parametrize(
    "text",
    ["", "<input>1</input>", "<output>1</output><input>1</input>", "<input>1<output>2</output>", "<input>1</input><output>2", "<in>1</in>",
     "<input></output><output></input>", "</input></output>", "<input></input><output></output>",
     "<input>1</input><output> \n</output>"],
)  # fmt: skip
def test_incomplete_pairs_are_not_tests(text: str) -> None:
    assert read_pairs(text) == []
    said = team.TesterAgent().project(text)
    assert not said.valid and said.action == ""


def test_an_unfinished_test_does_not_swallow_the_next_one() -> None:
    assert read_pairs(f"<input>1</input> no: {pair('2', '3')} <input>4") == [("2", "3")]


@given(
    st.lists(st.sampled_from(["<input>", "</input>", "<output>", "</output>", "1", "\n", "<"]), max_size=30)
)
def test_any_mixture_of_tags_is_read(parts: list[str]) -> None:
    for one, other in read_pairs("".join(parts)):
        assert "<input>" not in one and "<output>" not in other


def test_a_long_reply_is_read_in_no_time() -> None:
    start = cpu_seconds()
    read_pairs("<input>" * 100_000 + "<output>" * 100_000)
    assert cpu_seconds() - start < 5


def test_tests_in_the_thinking_do_not_count_and_only_tests_are_the_action() -> None:
    said = team.TesterAgent().project(f"<think>{pair('1', '1')}</think>Secret. {pair('2', '2')}")
    assert said.valid and read_pairs(said.action) == [("2", "2")] and "Secret" not in said.action


def test_tests_for_stdin_are_text_and_each_counts_once() -> None:
    tests = read_tests(pair(" 1 2 ", "3") + pair("1 2", "3\n") + pair("4", "5") + pair("6", "7"), "", 2)
    assert tests == Suite((Case("1 2\n", "3\n"), Case("4\n", "5\n")), 0, 2) and len(tests) == 2


def test_inputs_that_differ_in_white_space_are_one_test() -> None:
    variants = "".join(
        pair(given, expected) for given in ("1 2", "1  2", "1\n2", "\t1 2") for expected in ("3 4", "3\n4")
    )
    assert read_tests(pair("5", "6") + variants, "", 8) == Suite(
        (Case("5\n", "6\n"), Case("1 2\n", "3 4\n")), 0, 7
    )
    assert len(read_tests(pair('"a b"', "1") + pair('"a  b"', "2"), "solve", 8).cases) == 2


@pytest.mark.parametrize(
    ("function", "one", "other"),
    [("", "3", "03"), ("", "3", "4"), ("solve", "3", '"3"'), ("solve", '{"a": 1}', "{}")],
)
def test_outputs_that_contradict_each_other_are_one_wrong_test(function: str, one: str, other: str) -> None:
    tests = read_tests(
        pair("1", one) + pair(" 1", other) + pair("1", one + " ") + pair("2", one), function, 8
    )
    assert [len(tests), len(tests.cases), tests.contradictory, tests.surplus] == [2, 1, 1, 2]


def test_values_that_are_written_in_two_ways_are_one() -> None:
    tests = read_tests(pair('{"a": 1, "b": [2]}', "[1,2]") + pair('{"b":[2],"a":1}', "[1, 2]"), "solve", 8)
    assert tests == Suite((Case([{"a": 1, "b": [2]}], [1, 2]),), 0, 1)


@pytest.mark.parametrize(
    "same", [("1", "1.0", "true", "1e0"), ('{"a": [0]}', '{"a": [false]}'), ("[[]]", " [ [] ]")]
)
def test_values_that_python_calls_equal_are_one_input(same: tuple[str, ...]) -> None:
    tests = read_tests("".join(pair(given, str(i)) for i, given in enumerate(same)), "solve", 8)
    assert (len(tests.cases), tests.surplus) == (1 - tests.contradictory, len(same) - 1)


def test_inputs_that_are_other_texts_do_not_contradict_each_other() -> None:
    tests = read_tests(pair("010", "3") + pair("10", "2"), "", 8)
    assert tests == Suite((Case("010\n", "3\n"),), 0, 1)


@pytest.mark.parametrize(
    "given",
    ['{"$dict": 5}', '{"$dict": [[1]]}', '{"$changed": []}', '{"$set": {"$tuple": 3}}', '{"$x": 1, "y": 2}'],
)
def test_objects_with_any_key_are_inputs(given: str) -> None:
    assert len(read_tests(pair(given, given) + pair("[]", "0"), "solve", 8).cases) == 2


def test_tests_for_a_function_are_json() -> None:
    tests = read_tests(
        pair('[1, 2]\n"x"', '{"a": null}') + pair("1 +", "2") + pair("1", "f(x)") + pair("", "0"), "solve", 8
    )
    assert tests == Suite((Case([[1, 2], "x"], {"a": None}), Case([], 0)), 0, 2)
    assert read_tests(pair("[" * 10_000, "1"), "solve", 8).cases == ()


def test_the_last_python_block_is_the_program() -> None:
    agent = team.CoderAgent()
    assert (
        agent.project("```python\nprint(1)\n```\nor\n```py\nprint(2)\n```\n```\n3\n```").action == "print(2)"
    )
    for text in ("", "print(1)", "```\nprint(1)\n```", "<think>```python\nprint(1)\n```"):
        assert not agent.project(text).valid
    assert agent.project("```python\nprint(1)").action == "print(1)", (
        "Markdown ends an open block with the text"
    )
