"""Programs on tests, in the sandbox of this process; the answers are judged here, outside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from agent_system.sandbox import Call, Reason, RunResult, shared_sandbox
from agent_system.workflows.code.judge import same_kind, same_output, same_value
from agent_system.workflows.code.problem import Case, Problem

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
        tolerance: see `judge`.
        truth: the expected answers are right (golden tests), the program's are (the reference on the Tester's tests), or neither are (a
            program on the Tester's tests). A special judge must then approve of both, each held against the other: one that never reads
            the expected answer would else agree with any. It is not asked about answers to the Tester's tests that are of another kind:
            `assert f(x)` approves of a text where the value is True.
    """
    results = await shared_sandbox().run_tests(program, [case.test(problem.function) for case in cases])
    written = sum(len(result.stdout) + len(result.value or "") for result in results)
    work = partial(_judged, results, cases, problem.function, tolerance, truth)
    answers, passed = await asyncio.to_thread(work) if written > JUDGED_AT_ONCE else work()
    if problem.checker:
        asked = [i for i, answer in enumerate(answers) if answer is not None and not passed[i] and _may_be(cases[i], answer, truth)]
        for i, verdict in zip(asked, await _ask(problem, [(cases[i], answers[i]) for i in asked], truth), strict=True):
            passed[i] = verdict
    return [
        Checked(ok, result.reason, _told(result, answer, problem.function), _is_silent(answer, problem.function))
        for ok, result, answer in zip(passed, results, answers, strict=True)
    ]


def _judged(
    results: Sequence[RunResult], cases: Sequence[Case], function: str, tolerance: float, truth: Truth
) -> tuple[list[tuple[Any] | None], list[bool]]:
    """The answers, and whether they are those expected."""
    same = same_value if function else same_output
    answers = [_answer(result, function) for result in results]
    pairs = [None if answer is None else (case.expected, answer[0]) for case, answer in zip(cases, answers, strict=True)]
    if truth is Truth.FOUND:
        pairs = [pair and pair[::-1] for pair in pairs]
    return answers, [pair is not None and same(*pair, tolerance) for pair in pairs]


def _may_be(case: Case, answer: tuple[Any], truth: Truth) -> bool:
    return truth is Truth.EXPECTED or same_kind(case.expected, answer[0])


async def _ask(problem: Problem, answers: Sequence[tuple[Case, Any]], truth: Truth) -> list[bool]:
    """The special judge's verdicts; a judge that fails approves of nothing."""
    if not answers:
        return []
    asked: list[Call] = []
    if truth is not Truth.FOUND:
        asked += [Call("judge", [case.given, case.expected, answer[0]]) for case, answer in answers]
    if truth is not Truth.EXPECTED:
        asked += [Call("judge", [case.given, answer[0], case.expected]) for case, answer in answers]
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
        return result.failure(LONGEST_ERROR)
    return json.dumps(answer[0]) if function else str(answer[0])


def _is_silent(answer: tuple[Any] | None, function: str) -> bool:
    return answer is None or answer[0] is None or not (function or answer[0].strip())
