"""Conversion of raw tasks to rows: references are run on their tests in the sandbox; invalid tasks
and tests are left out and counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_system.workflows.code.world.assertions import record
from agent_system.workflows.code.world.problem import Problem
from agent_system.workflows.code.world.rows import make_row
from agent_system.workflows.code.world.runs import check_program
from agent_system.workflows.code.world.sets import SETS, RawTask, RowError, dump

KEPT = "kept"
UNREADABLE = "dropped: tests cannot be read"
NO_REFERENCE = "dropped: no reference solution"
FAILING = "dropped: the reference fails its own tests"
NO_JSON = "dropped: no test has a JSON form"
CALLS = "tests left out: no JSON form"
CHUNK_SIZE = 64


@dataclass(frozen=True)
class Preparation:
    """Options of the preparation.

    Attributes:
        max_tests: maximum number of golden tests per task; the rest is left out.
        max_references: maximum number of solutions that are tried until one passes.
        without_reference: keep tasks without a solution; the Tester is then rewarded for the form
            of its tests only.
        tolerance: see `CodeEnvOptions`.
    """

    max_tests: int = 30
    max_references: int = 5
    without_reference: bool = False
    tolerance: float = 1e-6


def read_set(
    name: str, rows: Sequence[Mapping[str, Any]], where: str, first: dict[str, str] | None = None
) -> tuple[list[tuple[int, RawTask]], Counter[str]]:
    """Return the tasks of a data set with their row numbers, and the number of unreadable ones;
    `first` as for `prepare`.

    Raises:
        RowError: a row lacks a column; the message names the row.
    """
    tasks: list[tuple[int, RawTask]] = []
    counts: Counter[str] = Counter()
    for index, row in enumerate(rows):
        try:
            tasks.append((index, SETS[name][1](row)))
        except RowError as error:
            raise RowError(
                f"{where}, row {index} is not a row of {name}: {error}; it begins with {dump(row)}"
            ) from error
        except ValueError as error:
            counts[UNREADABLE] += 1
            if first is not None:
                first.setdefault(UNREADABLE, f"row {index}: {error}")
    return tasks, counts


async def prepare(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    path: Path,
    preparation: Preparation,
    first: dict[str, str] | None = None,
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Return rows in verl's schema, in order, and the numbers of tasks kept and dropped by reason.

    Args:
        name: a key of `sets.SETS`.
        rows: rows of the data set.
        path: source of the rows; its stem is the split.
        preparation: options.
        first: gets the first row that was dropped for each reason, and what went wrong with it.

    Raises:
        RowError: a row lacks a column.
        SandboxError: the sandbox failed.
    """
    tasks, counts = read_set(name, rows, str(path), first)
    verl_rows: list[dict[str, Any]] = []
    for start in range(0, len(tasks), CHUNK_SIZE):
        chunk = tasks[start : start + CHUNK_SIZE]
        solved = await asyncio.gather(*(solve(raw, preparation) for _, raw in chunk))
        for (index, raw), (problem, task_counts, cause) in zip(chunk, solved, strict=True):
            counts.update(task_counts)
            if first is not None and problem is None:
                first.setdefault(next(iter(+task_counts)), f"row {index}: {cause}")
            if problem is not None:
                verl_rows.append(
                    make_row(
                        raw.question,
                        problem.cases,
                        function=problem.function,
                        reference=problem.reference,
                        checker=problem.checker,
                        python_values=problem.python_values,
                        **({"helpers": problem.helpers} if problem.helpers else {}),
                        data_source=SETS[name][0],
                        split=path.stem,
                        index=index,
                    )
                )
    return verl_rows, counts


async def solve(raw: RawTask, preparation: Preparation) -> tuple[Problem | None, Counter[str], str]:
    """Return the problem of a task whose reference passes its tests, or None, the counts of
    `prepare`, and what went wrong.

    Raises:
        SandboxError: the sandbox failed.
    """
    if raw.check:
        return await _recorded(raw, preparation)
    if not raw.references:
        function, cases = raw.readings[-1]
        unchecked_problem = (
            Problem(cases[: preparation.max_tests], function) if preparation.without_reference else None
        )
        return (
            unchecked_problem,
            Counter([KEPT if unchecked_problem else NO_REFERENCE]),
            "--without-reference keeps it",
        )
    cause = ""
    for function, cases in raw.readings:
        for reference in raw.references[: preparation.max_references]:
            problem = Problem(cases[: preparation.max_tests], function, reference)
            results = await check_program(reference, problem.cases, problem, preparation.tolerance)
            failed = next((number for number, one in enumerate(results) if not one.passed), None)
            if failed is None:
                return problem, Counter([KEPT]), ""
            result = results[failed]
            expected = problem.cases[failed].expected
            cause = (
                cause
                or f"test {failed}: {result.reason}, found {result.found!r:.120}, expected {expected!r:.80}"
            )
    return None, Counter([FAILING]), cause


async def _recorded(raw: RawTask, preparation: Preparation) -> tuple[Problem | None, Counter[str], str]:
    """Convert assertions; leave out calls that cannot be encoded or that the reference fails in a
    separate process.
    """
    reference = raw.references[0]
    recording = await record(reference, raw.check, raw.function)
    if isinstance(recording, str):
        return None, Counter([FAILING]), recording
    cases, missing, checker = recording
    problem = Problem(
        tuple(cases[: preparation.max_tests]),
        raw.function,
        reference,
        checker,
        raw.helpers,
        python_values=True,
    )
    checked = await check_program(reference, problem.cases, problem, preparation.tolerance)
    same = tuple(case for case, one in zip(problem.cases, checked, strict=True) if one.passed)
    counts = Counter({CALLS: missing + len(problem.cases) - len(same)})
    if not same:
        return None, Counter([NO_JSON]) + counts, "arguments or answers of its tests are no values of JSON"
    return replace(problem, cases=same), counts + Counter([KEPT]), ""
