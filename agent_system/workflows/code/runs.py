"""Programs on tests, in the sandbox of this process; the answers are judged here, outside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agent_system.sandbox import Call, Reason, RunResult, SandboxError, shared_sandbox
from agent_system.workflows.code.judge import same_output, same_value
from agent_system.workflows.code.problem import Case, Problem

LONGEST_ERROR = 200
# Characters of answers that are judged at once; more of them are judged in a thread, so that other episodes go on.
JUDGED_AT_ONCE = 16_384


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of a program on one test.

    Attributes:
        passed: its answer is right.
        reason: how the run ended.
        found: its answer as text, or how it failed: the reason and the last line of stderr.
    """

    passed: bool
    reason: Reason
    found: str


async def check_program(program: str, cases: Sequence[Case], problem: Problem, tolerance: float) -> list[Checked]:
    """Run a program on tests; a result for each, in order. A test that was not tried because earlier ones ran out of time is not passed.

    Raises:
        SandboxError: the sandbox failed; nobody is to blame and nothing must be scored.
    """
    results = await _run(program, [case.test(problem.function) for case in cases])
    written = sum(len(result.stdout) + len(result.value or "") for result in results)
    work = partial(_judged, results, cases, problem.function, tolerance)
    answers, passed = await asyncio.to_thread(work) if written > JUDGED_AT_ONCE else work()
    if problem.checker:
        asked = [i for i, answer in enumerate(answers) if answer is not None and not passed[i]]
        for i, verdict in zip(asked, await _ask(problem, [(cases[i], answers[i]) for i in asked]), strict=True):
            passed[i] = verdict
    return [
        Checked(
            ok, result.reason, result.failure(LONGEST_ERROR) if answer is None else json.dumps(answer[0]) if problem.function else answer[0]
        )
        for ok, result, answer in zip(passed, results, answers, strict=True)
    ]


def _judged(
    results: Sequence[RunResult], cases: Sequence[Case], function: str, tolerance: float
) -> tuple[list[tuple[Any] | None], list[bool]]:
    """The answers, and whether they are those expected."""
    answers = [_answer(result, function) for result in results]
    passed = [
        answer is not None and _same(case.expected, answer[0], function, tolerance) for case, answer in zip(cases, answers, strict=True)
    ]
    return answers, passed


async def _run(program: str, tests: Sequence[Any]) -> list[RunResult]:
    results = await shared_sandbox().run_tests(program, tests)
    for result in results:
        if result.reason is Reason.SANDBOX:
            raise SandboxError(f"a program could not be run: {result.message}")
    return results


async def _ask(problem: Problem, answers: Sequence[tuple[Case, Any]]) -> list[bool]:
    """The special judge's verdicts; a judge that fails approves of nothing."""
    if not answers:
        return []
    results = await _run(problem.checker, [Call("judge", [case.given, case.expected, answer[0]]) for case, answer in answers])
    return [(answer := _answer(result, "judge")) is not None and answer[0] is True for result in results]


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


def _same(expected: Any, found: Any, function: str, tolerance: float) -> bool:
    return same_value(expected, found, tolerance) if function else same_output(expected, found, tolerance)
