"""Rows of the data sets, in miniature: read, and refused or counted where something is missing. Nothing is
run here.
"""

import base64
import json
import pickle
import zlib
from typing import Any

import pytest

from agent_system.workflows.code.world.prepare import UNREADABLE, read_set
from agent_system.workflows.code.world.problem import Case
from agent_system.workflows.code.world.sets import (
    RowError,
    apps,
    code_contests,
    human_eval,
    live_code_bench,
    mbpp,
)
from tests.agent_system.workflows.code.rows_of_sets import (
    APPS,
    CODE_CONTESTS,
    HUMAN_EVAL,
    LIVE_CODE_BENCH,
    MBPP,
    ROWS,
)


def packed(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_apps_on_standard_input_and_by_calls() -> None:
    raw = apps(APPS)
    assert raw.readings == (("", (Case("1 2\n", "3\n"), Case("4\n5", "9"))),) and len(raw.references) == 2
    truth = {"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]}
    starter = "class Solution:\n    def add(self, a, b):"
    raw = apps(APPS | {"input_output": json.dumps(truth), "starter_code": starter})
    assert [(function, cases[0].expected) for function, cases in raw.readings] == [
        ("Solution.add", [3]),
        ("Solution.add", 3),
    ]
    assert starter in raw.question


def test_code_contests_takes_hidden_tests_first_and_python_3_only() -> None:
    raw = code_contests(CODE_CONTESTS)
    assert [case.given for case in raw.readings[0][1]] == ["2 3\n", "7 8\n", "1 1\n"] and len(
        raw.references
    ) == 1


def test_live_code_bench_unpacks_hidden_tests_as_text() -> None:
    tests = [{"input": "2 2", "output": "4", "testtype": "stdin"}]
    for private in (json.dumps(tests), packed(json.dumps(tests))):
        raw = live_code_bench(LIVE_CODE_BENCH | {"private_test_cases": private})
        assert raw.readings == (("", (Case("2 2", "4"), Case("1 2", "3"))),) and raw.references == ()
    calls = {
        "starter_code": "class Solution:",
        "metadata": '{"func_name": "add"}',
        "public_test_cases": '[{"input": "[1]\\n2", "output": "[3]"}]',
    }
    assert live_code_bench(LIVE_CODE_BENCH | calls).readings == (("Solution.add", (Case([[1], 2], [3]),)),)


class Escape:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('ran')",)


@pytest.mark.parametrize(
    "private",
    [
        packed(Escape()),
        packed(7),
        "no base64!",
        base64.b64encode(b"no zlib").decode(),
        packed("{"),
        packed('{"a": 1}'),
    ],
)
def test_hidden_tests_that_are_not_text_are_refused_and_nothing_of_them_is_run(private: str) -> None:
    with pytest.raises(ValueError, match="private_test_cases"):
        live_code_bench(LIVE_CODE_BENCH | {"private_test_cases": private})


def test_human_eval_asks_for_the_function() -> None:
    raw = human_eval(HUMAN_EVAL[0])
    assert (
        raw.function == "double"
        and "def double(x: int)" in raw.question
        and "check" not in raw.question
        and "x * 2" not in raw.question
    )


def test_mbpp_tells_the_signature_and_wraps_its_assertions() -> None:
    raw = mbpp(MBPP)
    assert raw.question.endswith("The function is `def common(a, b)`.") and "assert" not in raw.question
    assert raw.function == "common" and raw.check.count("    assert") == 2


@pytest.mark.parametrize("name", ROWS)
def test_a_row_without_a_column_is_named(name: str) -> None:
    row = dict(ROWS[name])
    required = {
        "apps": "input_output",
        "code_contests": "description",
        "live_code_bench": "question_content",
        "human_eval": "test",
        "mbpp": "code",
    }
    del row[required[name]]
    with pytest.raises(
        RowError, match=rf"here\.jsonl, row 1 is not a row of {name}: no column '{required[name]}'"
    ):
        read_set(name, [ROWS[name], row], "here.jsonl")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("apps", {"input_output": ""}),
        ("apps", {"input_output": "{"}),
        ("apps", {"input_output": '{"inputs": [], "outputs": []}'}),
        ("apps", {"input_output": '{"inputs": ["1"], "outputs": ["1", "2"]}'}),
        (
            "code_contests",
            {"private_tests": None, "generated_tests": None, "public_tests": {"input": [], "output": []}},
        ),
        ("code_contests", {"private_tests": {"input": ["1"], "output": []}}),
        ("live_code_bench", {"public_test_cases": "[1]"}),
        ("live_code_bench", {"public_test_cases": "[]", "private_test_cases": "[]"}),
        (
            "live_code_bench",
            {"metadata": '{"func_name": "f"}', "public_test_cases": '[{"input": "x + 1", "output": "2"}]'},
        ),
        ("apps", {"input_output": '{"inputs": ["1"], "outputs": [2]}'}),
        ("apps", {"input_output": '{"inputs": 3, "outputs": ["1"]}'}),
        (
            "apps",
            {
                "input_output": '{"inputs": [[1]], "outputs": [1], "fn_name": 7}',
                "starter_code": "class Solution:",
            },
        ),
        ("code_contests", {"public_tests": ["1", "2"]}),
        ("code_contests", {"private_tests": {"input": "12", "output": "34"}}),
        ("code_contests", {"solutions": []}),
        ("live_code_bench", {"public_test_cases": "null"}),
        ("live_code_bench", {"public_test_cases": 3}),
        ("mbpp", {"test_list": 3}),
        ("mbpp", {"test_list": "assert common((1,), (1,)) == (1,)"}),
        ("mbpp", {"test_imports": 3}),
        ("mbpp", {"test_list": ["assert True"]}),
        ("mbpp", {"code": "def f(:"}),
    ],
)
def test_tests_that_cannot_be_read_are_counted(name: str, change: dict[str, Any]) -> None:
    tasks, counts = read_set(name, [ROWS[name] | change, ROWS[name]], "here")
    assert [index for index, _ in tasks] == [1] and counts == {UNREADABLE: 1}


def test_a_row_of_another_form_says_what_was_found_and_expected() -> None:
    with pytest.raises(ValueError, match=r"public_tests must be an object, found \['1'\]"):
        code_contests(CODE_CONTESTS | {"public_tests": ["1"]})
    with pytest.raises(ValueError, match="outputs, unless it is text, must be a list, found 2"):
        apps(APPS | {"input_output": '{"inputs": ["1"], "outputs": [2]}'})


JUNK: tuple[Any, ...] = (
    None,
    True,
    3,
    "",
    "x",
    "3",
    "null",
    "[3]",
    "{}",
    [],
    [3],
    [None],
    [[1]],
    {},
    {"input": 3, "output": [1]},
    {"a": 1},
)


@pytest.mark.parametrize("name", ROWS)
def test_any_value_in_a_column_is_accepted_counted_or_an_error_that_names_the_row(name: str) -> None:
    nested = {
        "apps": [
            {"input_output": {"inputs": [["1"]], "outputs": ["1"], "fn_name": "f"} | {key: value}}
            for key in ("inputs", "outputs", "fn_name") for value in JUNK
        ],
        "code_contests": [
            {column: CODE_CONTESTS[column] | {key: value}}
            for column in ("public_tests", "solutions") for key in CODE_CONTESTS[column] for value in JUNK
        ],
        "live_code_bench": [{"public_test_cases": [{"input": value, "output": value}], "metadata": {"func_name": value}} for value in JUNK],
    }  # fmt: skip
    columns = (*ROWS[name], "starter_code", "private_test_cases", "test_imports", "prompt")
    for change in [*({column: value} for column in columns for value in JUNK), *nested.get(name, [])]:
        try:
            read_set(name, [ROWS[name] | change], "here")
        except RowError as error:
            assert "row 0" in str(error)
