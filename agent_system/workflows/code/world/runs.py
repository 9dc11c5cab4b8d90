"""Programs on tests, in the sandbox of this process; the answers are judged here, outside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from agent_system.sandbox import FunctionCall, Reason, RunResult, Test, shared_sandbox
from agent_system.workflows.code.world.assertions import ANSWER, ANSWER_NAME
from agent_system.workflows.code.world.judge import as_json, in_order, is_as_finite, same_kind, same_output, same_python, same_value
from agent_system.workflows.code.world.problem import Case, Problem

LONGEST_ERROR = 200
# Characters of answers that are judged at once; more of them are judged in a thread, so that other episodes go on.
JUDGED_AT_ONCE = 16_384


class Truth(Enum):
    """Which of the two answers of a test is known to be right, the expected one or the one found; the other is judged by it."""

    EXPECTED = "expected"
    FOUND = "found"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of a program on one test.

    Attributes:
        passed: its answer is right.
        reason: how the run ended.
        found: its answer as text, or how it failed: the reason and the last line of stderr.
        silent: there is no answer: the run failed, nothing was printed, or the call returned None.
    """

    passed: bool
    reason: Reason
    found: str
    silent: bool


async def check_program(
    program: str, cases: Sequence[Case], problem: Problem, tolerance: float, truth: Truth = Truth.EXPECTED
) -> list[Checked]:
    """Run a program on tests; a result for each, in order. A test that was not tried because earlier ones ran out of time is not passed.

    Args:
        program: Python source.
        cases: the tests.
        problem: says how the program is called, and which special judge is asked about answers that are not equal.
        tolerance: see `judge`; answers that keep Python's types are equal as Python says on golden tests.
        truth: the expected answers are right (golden tests), the program's are (the reference on the Tester's tests), or neither are (a
            program on the Tester's tests). A special judge must then approve of both, each held against the other: one that never reads
            the expected answer would else agree with any. It is not asked about answers to the Tester's tests that are of another kind:
            `assert f(x)` approves of a text where the value is True.
    """
    exact = problem.python_values and truth is Truth.EXPECTED
    if problem.python_values:
        tests: list[Test] = [FunctionCall(ANSWER_NAME, [problem.function, case.given, exact]) for case in cases]
        results = await shared_sandbox().run_tests(program + ANSWER, tests)
    else:
        results = await shared_sandbox().run_tests(program, [case.test(problem.function) for case in cases])
    written = sum(len(result.stdout) + len(result.value or "") for result in results)
    work = partial(_judged_exactly, results, cases, problem) if exact else partial(_judged, results, cases, problem, tolerance, truth)
    answers, passed = await asyncio.to_thread(work) if written > JUDGED_AT_ONCE else work()
    if problem.checker:
        asked = [i for i, answer in enumerate(answers) if answer is not None and not passed[i] and _may_be(cases[i], answer, truth)]
        pairs = [(cases[i], answers[i]) for i in asked]
        others = len(cases) == len(asked) + sum(passed)
        for i, verdict in zip(asked, await (_put_in(problem, pairs, others) if exact else _ask(problem, pairs, truth)), strict=True):
            passed[i] = verdict
    return [
        Checked(ok, result.reason, _told(result, answer, problem.function), _is_silent(answer, problem.function))
        for ok, result, answer in zip(passed, results, answers, strict=True)
    ]


def _judged(
    results: Sequence[RunResult], cases: Sequence[Case], problem: Problem, tolerance: float, truth: Truth
) -> tuple[list[tuple[Any] | None], list[bool]]:
    """The answers, and whether they are those expected."""
    same = same_value if problem.function else same_output
    answers = [_answer(result, problem.function) for result in results]
    expected = [case.expected for case in cases]
    if problem.python_values:
        expected = [one if answer is None else in_order(one, answer[0]) for one, answer in zip(expected, answers, strict=True)]
        answers = [_as_json(answer) for answer in answers]
    pairs = [None if answer is None else (one, answer[0]) for one, answer in zip(expected, answers, strict=True)]
    if truth is Truth.FOUND:
        pairs = [pair and pair[::-1] for pair in pairs]
    return answers, [pair is not None and same(*pair, tolerance) for pair in pairs]


def _judged_exactly(results: Sequence[RunResult], cases: Sequence[Case], problem: Problem) -> tuple[list[tuple[Any] | None], list[bool]]:
    """The answers, and whether they are the reference's: to the last type where a special judge is asked about others."""
    answers = [_answer(result, problem.function) for result in results]
    same = (lambda one, other: json.dumps(one) == json.dumps(other)) if problem.checker else same_python
    return answers, [answer is not None and same(case.expected, answer[0]) for case, answer in zip(cases, answers, strict=True)]


def _as_json(answer: tuple[Any] | None) -> tuple[Any] | None:
    try:
        return answer and (as_json(answer[0]),)
    except ValueError:
        return None


def _may_be(case: Case, answer: tuple[Any], truth: Truth) -> bool:
    """Whether the special judge is asked: `not abs(x - y) > 1` would approve of a number that is none."""
    if truth is Truth.EXPECTED:
        return is_as_finite(answer[0], case.expected)
    known = is_as_finite(case.expected, answer[0]) and (truth is Truth.FOUND or is_as_finite(answer[0], case.expected))
    return known and same_kind(case.expected, answer[0])


async def _put_in(problem: Problem, answers: Sequence[tuple[Case, Any]], others: bool) -> list[bool]:
    """Whether the assertions hold with answers in the place of the reference's: with all of them, else with each alone.

    Args:
        others: the answers to the other tests are right. Answers that are right one by one but not together are then all wrong.
    """

    async def hold(*groups: Sequence[tuple[Case, Any]]) -> list[bool]:
        calls = [FunctionCall("judge_answers", stdin=json.dumps([[case.given, answer[0]] for case, answer in group])) for group in groups]
        return [
            (said := _answer(result, "judge")) is not None and said[0] is True
            for result in await shared_sandbox().run_tests(problem.checker, calls)
        ]

    if not answers:
        return []
    if others or len(answers) == 1:
        (together,) = await hold(answers)
        if together or len(answers) == 1:
            return [together] * len(answers)
    alone = await hold(*([pair] for pair in answers))
    return [one and not (others and all(alone)) for one in alone]


async def _ask(problem: Problem, answers: Sequence[tuple[Case, Any]], truth: Truth) -> list[bool]:
    """The special judge's verdicts; a judge that fails approves of nothing."""
    if not answers:
        return []
    asked: list[FunctionCall] = []
    if truth is not Truth.FOUND:
        asked += [FunctionCall("judge", [case.given, case.expected, answer[0]]) for case, answer in answers]
    if truth is not Truth.EXPECTED:
        asked += [FunctionCall("judge", [case.given, answer[0], case.expected]) for case, answer in answers]
    results = await shared_sandbox().run_tests(problem.checker, asked)
    verdicts = [(said := _answer(result, "judge")) is not None and said[0] is True for result in results]
    return [all(verdicts[i :: len(answers)]) for i in range(len(answers))]


def _answer(result: RunResult, function: str) -> tuple[Any] | None:
    """The answer, in a tuple because it may be None; None for a run that gave none."""
    if not result.ok:
        return None
    if not function:
        return (result.stdout,)
    try:
        return (result.returned(),)
    except ValueError:
        return None


def _told(result: RunResult, answer: tuple[Any] | None, function: str) -> str:
    """See `Checked.found`."""
    if answer is None:
        return f"failed ({Reason.ERROR}) the value has no JSON form" if result.ok else result.failure(LONGEST_ERROR)
    return json.dumps(answer[0]) if function else str(answer[0])


def _is_silent(answer: tuple[Any] | None, function: str) -> bool:
    return answer is None or answer[0] is None or not (function or answer[0].strip())
