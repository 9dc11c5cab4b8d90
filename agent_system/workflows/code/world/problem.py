"""A programming task: golden tests, interface of the program, reference solution, special judge."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_system.environment import Task
from agent_system.errors import AgentSystemError
from agent_system.json_text import parse_json
from agent_system.sandbox import FunctionCall, Test


@dataclass(frozen=True)
class Case:
    """One test.

    Attributes:
        given: text for stdin, or the list of arguments of a call.
        expected: text on stdout, or the return value of the call, as plain JSON or encoded as in
            `assertions`.
    """

    given: Any
    expected: Any

    def test(self, function: str) -> Test:
        """Return the test for the sandbox."""
        return FunctionCall(function, self.given) if function else str(self.given)


@dataclass(frozen=True)
class Problem:
    """The data that determines whether a program is right. Agents may see `function` only.

    Attributes:
        cases: the golden tests.
        function: the function to call, `name` or `Class.method`; empty for a program that reads
            stdin and prints.
        reference: a program that passes all golden tests; empty when there is none.
        checker: source of a special judge, empty for none: it defines
            `judge(given, expected, found) -> bool`, which is run in the sandbox for answers that do
            not equal the expected ones.
        helpers: source of functions that the task gives beside the one that is asked for; a program
            may leave them out.
        python_values: the golden tests come from assertions (`assertions`): arguments and answers
            keep Python's types and equality, and the checker also defines `judge_answers()`, which
            reads `[arguments, answer]` pairs on stdin and substitutes all of them.
    """

    cases: tuple[Case, ...]
    function: str = ""
    reference: str = ""
    checker: str = ""
    helpers: str = ""
    python_values: bool = False


def read_problem(task: Task) -> Problem:
    """Return the problem of a task whose row was made by `rows.make_row`.

    Raises:
        AgentSystemError: `reward_model.ground_truth` holds no tests; the message names the task and
            what is wrong.
    """
    try:
        function, cases = read_ground_truth(task.ground_truth)
    except ValueError as error:
        raise AgentSystemError(
            f"task {task.task_id!r}, reward_model.ground_truth: {error}; expected JSON such as "
            '{"inputs": ["1 2\\n"], "outputs": ["3\\n"]}, with "fn_name" for tests by function calls'
        ) from error
    extra = task.extra
    reference, checker, helpers = (str(extra.get(name) or "") for name in ("reference", "checker", "helpers"))
    return Problem(cases, function, reference, checker, helpers, bool(extra.get("python_values")))


def read_ground_truth(truth: Any) -> tuple[str, tuple[Case, ...]]:
    """Return the function's name (empty for stdin) and the tests of the
    `inputs`/`outputs`/`fn_name` form of APPS and verl.

    Raises:
        ValueError: `truth` does not have this form, or holds no test.
    """
    tests = parse_json(truth) if isinstance(truth, str) else truth
    if not isinstance(tests, Mapping):
        raise ValueError(f"found {str(tests)[:80]!r}, which is not an object")
    inputs = tests.get("inputs")
    outputs = tests.get("outputs")
    function = tests.get("fn_name") or ""
    if (
        not isinstance(inputs, Sequence)
        or not isinstance(outputs, Sequence)
        or isinstance(inputs, str)
        or isinstance(outputs, str)
    ):
        raise ValueError("inputs and outputs must be lists")
    if len(inputs) != len(outputs) or not inputs:
        raise ValueError(
            f"needs as many outputs as inputs and at least one, found {len(inputs)} inputs and "
            f"{len(outputs)} outputs"
        )
    if not isinstance(function, str):
        raise ValueError(f"fn_name must be a name, found {function!r:.80}")
    for value in inputs:
        if not isinstance(value, list if function else str):
            raise ValueError(
                f"an input must be {'a list of arguments' if function else 'text for stdin'}, "
                f"found {value!r:.80}"
            )
    if not function and not all(isinstance(value, str) for value in outputs):
        raise ValueError("an output must be text")
    return function, tuple(
        Case(test_input, expected) for test_input, expected in zip(inputs, outputs, strict=True)
    )


def write_ground_truth(function: str, cases: Sequence[Case]) -> str:
    """Return the JSON text that `read_ground_truth` reads."""
    truth: dict[str, Any] = {
        "inputs": [case.given for case in cases],
        "outputs": [case.expected for case in cases],
    }
    return json.dumps(truth | ({"fn_name": function} if function else {}))
