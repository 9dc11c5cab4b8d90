import json

import pytest

from agent_system import AgentSystemError, Task
from agent_system.options import build_options
from agent_system.sandbox import FunctionCall
from agent_system.workflows.code import CodeEnv, CodeEnvOptions, CodeOptions
from agent_system.workflows.code.world.problem import Case, read_problem
from agent_system.workflows.code.world.rows import make_row


def test_a_row_says_what_the_world_needs() -> None:
    cases = [Case([1, "a"], [None])]
    row = make_row(
        "Solve it. ",
        cases,
        function="solve",
        reference="R",
        checker="C",
        data_source="d",
        split="s",
        index=3,
        level="easy",
    )
    assert row["prompt"][0]["content"] == "Solve it." and row["extra_info"]["level"] == "easy"
    problem = read_problem(
        Task("t", "", ground_truth=row["reward_model"]["ground_truth"], extra=row["extra_info"])
    )
    assert problem.cases == tuple(cases) and (problem.function, problem.reference, problem.checker) == (
        "solve",
        "R",
        "C",
    )
    assert (
        problem.cases[0].test("solve") == FunctionCall("solve", [1, "a"])
        and Case("1\n", "").test("") == "1\n"
    )


@pytest.mark.parametrize(
    ("truth", "says"),
    [
        (None, "not an object"),
        ("", "Expecting value"),
        ("{", "Expecting"),
        ("[" * 5000, "nested|Expecting"),
        ("[1]", "not an object"),
        ({}, "must be lists"),
        ({"inputs": "12", "outputs": "34"}, "must be lists"),
        ({"inputs": [], "outputs": []}, "at least one"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ({"inputs": [1], "outputs": ["1"]}, "text for stdin"),
        ({"inputs": ["1"], "outputs": [1]}, "output must be text"),
        ({"inputs": ["1"], "outputs": ["1"], "fn_name": "f"}, "list of arguments"),
        ({"inputs": [[1]], "outputs": [1], "fn_name": 7}, "fn_name"),
    ],
)
def test_tests_that_cannot_be_read_name_the_task_and_the_form(truth: object, says: str) -> None:
    text = truth if isinstance(truth, str) or truth is None else json.dumps(truth)
    with pytest.raises(AgentSystemError, match=says) as error:
        CodeEnv().reset(Task("apps:7", "?", ground_truth=text))
    assert "'apps:7'" in str(error.value) and '"inputs"' in str(error.value)


def test_a_row_without_task_or_tests_is_refused() -> None:
    for question, cases in ((" ", [Case("", "")]), ("What?", [])):
        with pytest.raises(AgentSystemError, match="needs a task and a test"):
            make_row(question, cases, data_source="d", split="s", index=0)


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (CodeOptions, {"order": "coderfirst"}, "did you mean 'coder_first'"),
        (CodeOptions, {"prompt_style": "long"}, "full, short"),
        (CodeEnvOptions, {"stop": "never"}, "env.params.stop"),
        (CodeEnvOptions, {"max_tests": 0}, "1 or more"),
        (CodeEnvOptions, {"min_tests": 0}, "from 1 to max_tests"),
        (CodeEnvOptions, {"min_tests": 9}, r"max_tests \(8\), found 9"),
        (CodeEnvOptions, {"pass_reward": -1.0}, "finite number, 0 or more"),
        (CodeEnvOptions, {"passreward": 1.0}, "did you mean 'pass_reward'"),
    ],
)
def test_bad_option_names_the_key(cls: type, options: dict, message: str) -> None:
    with pytest.raises(AgentSystemError, match=message):
        build_options(cls, options, "env.params" if cls is CodeEnvOptions else "agent.orchestra.code")
