"""Runs of programs on tests in the sandbox of this process; answers are judged outside of the
sandbox.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

from agent_system.sandbox import FunctionCall, Reason, RunResult, Test, shared_sandbox
from agent_system.workflows.code.world.assertions import ANSWER, ANSWER_NAME
from agent_system.workflows.code.world.judge import (
    as_json,
    no_extra_non_finite,
    same_kind,
    same_output,
    same_python,
    same_value,
    with_sorted_sets,
)
from agent_system.workflows.code.world.problem import Case, Problem
from verl.trainer.config.sandbox import SandboxLimitsConfig

LONGEST_ERROR = 200
# Bytes that a program may print for each character that is expected: it may have four, and a
# program may print other blanks and forms of numbers.
SPACE = 4
# Characters of answers that are judged on the event loop; more of them are judged in a thread, so
# that other episodes continue.
JUDGED_INLINE = 16_384


class Truth(Enum):
    """The answer of a test that is known to be right, the expected one or the one found; the other
    is judged by it.
    """

    EXPECTED = "expected"
    FOUND = "found"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Result of a program on one test.

    Attributes:
        passed: the answer is right.
        reason: how the run ended.
        found: the answer as text, or the kind of failure and the last line of stderr.
        silent: there is no answer: the run failed, nothing was printed, or the call returned None.
    """

    passed: bool
    reason: Reason
    found: str
    silent: bool


async def check_program(
    program: str, cases: Sequence[Case], problem: Problem, tolerance: float, truth: Truth = Truth.EXPECTED
) -> list[CaseResult]:
    """Run a program on tests and return a result for each, in order. A test skipped because earlier
    ones timed out is not passed.

    Args:
        program: Python source.
        cases: the tests.
        problem: interface of the program and special judge for answers that are not equal.
        tolerance: see `judge`; answers that keep Python's types are compared by Python's equality
            on golden tests.
        truth: EXPECTED for golden tests, FOUND for the reference on the Tester's tests, NEITHER for
            a program on the Tester's tests. With NEITHER a special judge must approve of both
            answers, each with the other as the expected one, because a judge that ignores the
            expected answer would approve of any. On the Tester's tests it is not asked about
            answers of different types: `assert f(x)` approves of a text where the value is True.
    """
    exact = problem.python_values and truth is Truth.EXPECTED
    limits = _limits(cases)
    if problem.python_values:
        tests: list[Test] = [
            FunctionCall(ANSWER_NAME, [problem.function, case.given, exact]) for case in cases
        ]
        results = await shared_sandbox().run_tests(program + ANSWER + problem.helpers, tests, limits=limits)
    else:
        tests = [case.test(problem.function) for case in cases]
        results = await shared_sandbox().run_tests(program, tests, limits=limits)
    written = sum(len(result.stdout) + len(result.value or "") for result in results)
    work = (
        partial(_judged_exactly, results, cases, problem)
        if exact
        else partial(_judged, results, cases, problem, tolerance, truth)
    )
    answers, passed = await asyncio.to_thread(work) if written > JUDGED_INLINE else work()
    if problem.checker:
        open_cases = [
            i
            for i, answer in enumerate(answers)
            if answer is not None and not passed[i] and _can_be_judged(cases[i], answer, truth)
        ]
        pairs = [(cases[i], answers[i]) for i in open_cases]
        others = len(cases) == len(open_cases) + sum(passed)
        verdicts = await (
            _check_assertions(problem, pairs, others) if exact else _ask_judge(problem, pairs, truth)
        )
        for i, verdict in zip(open_cases, verdicts, strict=True):
            passed[i] = verdict
    return [
        CaseResult(
            ok, result.reason, _found(result, answer, problem.function), _is_silent(answer, problem.function)
        )
        for ok, result, answer in zip(passed, results, answers, strict=True)
    ]


def _limits(cases: Sequence[Case]) -> SandboxLimitsConfig | None:
    """Return limits of a run for answers that are expected and too long for those of the sandbox,
    else None.
    """
    limits = shared_sandbox().settings.limits
    answers = [
        case.expected if isinstance(case.expected, str) else json.dumps(case.expected, default=str)
        for case in cases
    ]
    output_kb = max(map(len, answers), default=0) * SPACE // 1024
    return replace(limits, output_kb=output_kb) if output_kb > limits.output_kb else None


def _judged(
    results: Sequence[RunResult], cases: Sequence[Case], problem: Problem, tolerance: float, truth: Truth
) -> tuple[list[tuple[Any] | None], list[bool]]:
    """Return the answers, and whether they are the expected ones."""
    same = same_value if problem.function else same_output
    answers = [_answer(result, problem.function) for result in results]
    expected = [case.expected for case in cases]
    if problem.python_values:
        expected = [
            one if answer is None else with_sorted_sets(one, answer[0])
            for one, answer in zip(expected, answers, strict=True)
        ]
        answers = [_as_json(answer) for answer in answers]
    pairs = [
        None if answer is None else (one, answer[0]) for one, answer in zip(expected, answers, strict=True)
    ]
    if truth is Truth.FOUND:
        pairs = [pair and pair[::-1] for pair in pairs]
    return answers, [pair is not None and same(*pair, tolerance) for pair in pairs]


def _judged_exactly(
    results: Sequence[RunResult], cases: Sequence[Case], problem: Problem
) -> tuple[list[tuple[Any] | None], list[bool]]:
    """Return the answers, and whether they equal the reference's; with a special judge for the
    others, the types must be identical too.
    """
    answers = [_answer(result, problem.function) for result in results]
    same = (lambda one, other: json.dumps(one) == json.dumps(other)) if problem.checker else same_python
    return answers, [
        answer is not None and same(case.expected, answer[0])
        for case, answer in zip(cases, answers, strict=True)
    ]


def _as_json(answer: tuple[Any] | None) -> tuple[Any] | None:
    try:
        return answer and (as_json(answer[0]),)
    except ValueError:
        return None


def _can_be_judged(case: Case, answer: tuple[Any], truth: Truth) -> bool:
    """Return whether the special judge may be asked: not about additional non-finite values, since
    `not abs(x - y) > 1` approves of NaN.
    """
    if truth is Truth.EXPECTED:
        return no_extra_non_finite(answer[0], case.expected)
    finite = no_extra_non_finite(case.expected, answer[0]) and (
        truth is Truth.FOUND or no_extra_non_finite(answer[0], case.expected)
    )
    return finite and same_kind(case.expected, answer[0])


async def _check_assertions(
    problem: Problem, answers: Sequence[tuple[Case, Any]], others: bool
) -> list[bool]:
    """Return whether the assertions hold with answers substituted for the reference's: all
    together, otherwise each alone.

    Args:
        others: the answers to the other tests are right. Answers that are right one by one but not
            together are then all wrong.
    """

    async def hold(*groups: Sequence[tuple[Case, Any]]) -> list[bool]:
        calls = [
            FunctionCall(
                "judge_answers", stdin=json.dumps([[case.given, answer[0]] for case, answer in group])
            )
            for group in groups
        ]
        return [_approves(result) for result in await shared_sandbox().run_tests(problem.checker, calls)]

    if not answers:
        return []
    if others or len(answers) == 1:
        (together,) = await hold(answers)
        if together or len(answers) == 1:
            return [together] * len(answers)
    alone = await hold(*([pair] for pair in answers))
    return [one and not (others and all(alone)) for one in alone]


async def _ask_judge(problem: Problem, answers: Sequence[tuple[Case, Any]], truth: Truth) -> list[bool]:
    """Return the special judge's verdicts; a judge that fails approves of no answer."""
    if not answers:
        return []
    calls: list[FunctionCall] = []
    if truth is not Truth.FOUND:
        calls += [FunctionCall("judge", [case.given, case.expected, answer[0]]) for case, answer in answers]
    if truth is not Truth.EXPECTED:
        calls += [FunctionCall("judge", [case.given, answer[0], case.expected]) for case, answer in answers]
    verdicts = [_approves(result) for result in await shared_sandbox().run_tests(problem.checker, calls)]
    return [all(verdicts[i :: len(answers)]) for i in range(len(answers))]


def _approves(result: RunResult) -> bool:
    verdict = _answer(result, "judge")
    return verdict is not None and verdict[0] is True


def _answer(result: RunResult, function: str) -> tuple[Any] | None:
    """Return the answer, in a tuple because it may be None; None for a run without an answer."""
    if not result.ok:
        return None
    if not function:
        return (result.stdout,)
    try:
        return (result.returned(),)
    except ValueError:
        return None


def _found(result: RunResult, answer: tuple[Any] | None, function: str) -> str:
    """Return `CaseResult.found`."""
    if answer is None:
        return (
            f"failed ({Reason.ERROR}) the value has no JSON form"
            if result.ok
            else result.failure(LONGEST_ERROR)
        )
    return json.dumps(answer[0]) if function else str(answer[0])


def _is_silent(answer: tuple[Any] | None, function: str) -> bool:
    return answer is None or answer[0] is None or not (function or answer[0].strip())
