"""References are run on their tests, for real: what passes is kept, what fails is dropped and counted, and no test can be forged."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_system.sandbox import Limits, configure, shared_sandbox
from agent_system.task import task_from_row
from agent_system.workflows.code import CODER, TESTER, CodeEnv
from agent_system.workflows.code.prepare import CALLS, FAILING, KEPT, NO_JSON, NO_REFERENCE, Preparation, prepare
from agent_system.workflows.code.problem import Problem, read_problem
from agent_system.workflows.code.replies import write_pairs
from agent_system.workflows.code.runs import check_program
from tests.agent_system.workflows.code.rows_of_sets import APPS, CODE_CONTESTS, HUMAN_EVAL, LIVE_CODE_BENCH, MBPP
from tests.house.source import ROOT
from verl.utils.dataset import DatasetError, read_rows

EVEN: dict[str, Any] = {
    "prompt": 'def even(x):\n    """Say whether x is even."""\n',
    "entry_point": "even",
    "canonical_solution": "    return x % 2 == 0\n",
    "test": "def check(candidate):\n    assert candidate(2)\n    assert not candidate(3)\n",
}
REAL = ROOT.parent / "shared" / "data" / "humaneval" / "HumanEval.jsonl.gz"


async def problems(name: str, *rows: dict[str, Any], **how: Any) -> tuple[list[Problem], dict[str, int]]:
    made, counts = await prepare(name, rows, Path("test.jsonl"), Preparation(**how))
    return [read_problem(task_from_row(row)) for row in made], {what: count for what, count in counts.items() if count}


async def solves(program: str, problem: Problem) -> bool:
    return all(one.passed for one in await check_program(program, problem.cases, problem, 1e-6))


async def test_the_first_reference_that_passes_is_kept() -> None:
    (problem,), counts = await problems("apps", APPS)
    assert counts == {KEPT: 1} and "sum(" in problem.reference
    nothing = await problems("apps", APPS, max_references=1)
    assert nothing == ([], {FAILING: 1})


async def test_values_wrapped_in_lists_are_understood_from_the_reference() -> None:
    calls = {"fn_name": "add", "inputs": [[1, 2], [2, 2]], "outputs": [[3], [4]]}
    rows = [
        APPS | {"input_output": json.dumps(calls), "solutions": json.dumps([f"def add(a, b): return {value}"])}
        for value in ("a + b", "[a + b]", "7")
    ]
    found, counts = await problems("apps", *rows)
    assert [problem.cases[0].expected for problem in found] == [3, [3]] and counts == {KEPT: 2, FAILING: 1}


async def test_tasks_without_a_solution_are_dropped_unless_they_are_wanted() -> None:
    assert await problems("live_code_bench", LIVE_CODE_BENCH) == ([], {NO_REFERENCE: 1})
    (problem,), counts = await problems("live_code_bench", LIVE_CODE_BENCH, without_reference=True)
    assert counts == {KEPT: 1} and problem.reference == ""


async def test_no_more_tests_than_asked_for_are_kept() -> None:
    (problem,), _ = await problems("code_contests", CODE_CONTESTS, max_tests=2)
    assert len(problem.cases) == 2


async def test_assertions_become_calls_with_values() -> None:
    found, counts = await problems("human_eval", *HUMAN_EVAL)
    assert counts == {KEPT: 3, FAILING: 1, NO_JSON: 1, CALLS: 3}
    double, root, keys = found
    assert [(case.given, case.expected) for case in double.cases] == [([5], 10), ([0], 0), ([1], 2), ([2], 4)] and not double.checker
    assert [case.given for case in keys.cases] == [[{"b": 1, "a": 2}]]
    assert await solves("def double(x): return x + x", double) and not await solves("def double(x): return 10", double)
    assert root.checker and not await solves("def root(x): return x / 2", root)
    for program in ("def root(x): return -(x ** 0.5)", "def root(x): return x ** 0.5 + 1e-9", "import math\nroot = math.sqrt"):
        assert await solves(program, root)


async def test_a_program_cannot_forge_assertions() -> None:
    found, _ = await problems("human_eval", *HUMAN_EVAL[:2])
    forged = (
        "class Yes(float):\n    __eq__ = __ge__ = __lt__ = lambda *a: True\n    __abs__ = __sub__ = __pow__ = lambda s, *a: s\n"
        "    __hash__ = None\n"
    )
    for problem in found:
        hostile = f"{forged}def {problem.function}(x): return Yes(7)\ndef check(candidate): pass\ndef judge(*a): return True\n"
        assert not await solves(hostile, problem)
        assert not await solves(f"def {problem.function}(x):\n    raise SystemExit(0)", problem)
        assert not await solves("import os\nos._exit(0)", problem)


async def test_mbpp_is_judged_by_its_own_assertions() -> None:
    (problem,), counts = await problems("mbpp", MBPP)
    assert counts == {KEPT: 1} and problem.checker
    assert await solves("def common(x, y): return sorted(set(x) & set(y), reverse=True)", problem)
    assert not await solves("def common(x, y): return x", problem)


@pytest.mark.parametrize(
    ("name", "row", "program", "given", "others", "wrong"),
    [
        ("human_eval", HUMAN_EVAL[1], "def root(x): return -(x ** 0.5)", "9", ["3.0", "-3"], ['"nonsense"', "null", "4", "true"]),
        ("human_eval", EVEN, "def even(x): return x % 2 == 0", "2", ["true"], ['"nonsense"', "[0]", "null", "false", "1"]),
        ("mbpp", MBPP, MBPP["code"], "[3, 4, 5]\n[5, 4, 9]", ["[4, 5]", "[5, 4]"], ['"nonsense"', "null", "[4]", "[4, 5, 6]", "45"]),
    ],
)
async def test_a_wrong_test_of_a_golden_input_is_neither_paid_nor_agreed_with_where_many_answers_are_right(
    name: str, row: dict[str, Any], program: str, given: str, others: list[str], wrong: list[str]
) -> None:
    ((made,), _) = await prepare(name, [row], Path("test.jsonl"), Preparation())
    env = CodeEnv()
    env.reset(task_from_row(made))
    for expected in (*others, *wrong):
        outcome = await env.act(TESTER, write_pairs([(given, expected)]))
        assert outcome.local == pytest.approx(1.0 if expected in others else 0.2), expected
        assert (await env.act(CODER, program)).info["success"] == 1.0
        assert (await env.step(program)).done == (expected in others), expected


async def test_a_program_is_right_where_the_assertions_ask_for_no_more_than_truth() -> None:
    (problem,), _ = await problems("human_eval", EVEN)
    assert await solves("def even(x): return 1 - x % 2", problem)
    assert not await solves("def even(x): return 'yes'", problem)


async def test_bodies_removed_fail() -> None:
    found, _ = await problems("human_eval", *HUMAN_EVAL)
    by_name = {row["entry_point"]: row for row in HUMAN_EVAL}
    for problem in found:
        assert not await solves(by_name[problem.function]["prompt"] + "    pass\n", problem)


@pytest.fixture
def patience() -> Iterator[None]:
    """Time for solutions that compute."""
    before = shared_sandbox().settings
    configure(replace(before, limits=Limits(cpu_s=20.0, wall_s=200.0)))
    yield
    configure(before)


@pytest.mark.needs_shared
@pytest.mark.skipif(not REAL.is_file(), reason="no ../shared/data/humaneval")
async def test_all_of_human_eval_is_kept_and_its_bodies_removed_fail(patience: None) -> None:
    with gzip.open(REAL, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    made, counts = await prepare("human_eval", rows, Path("test.jsonl"), Preparation(max_tests=10))
    assert counts[KEPT] == len(made) == len(rows) == 164
    for row, source in zip(made, rows, strict=True):
        env = CodeEnv()
        env.reset(task_from_row(row))
        right = await env.act(CODER, source["prompt"] + source["canonical_solution"])
        empty = await env.act(CODER, source["prompt"] + "    pass\n")
        assert (right.info["success"], empty.info["success"], empty.info["coder/built"]) == (1, 0, 1), source["task_id"]


def test_the_script_writes_what_the_trainer_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.data_preprocess import code_sets

    monkeypatch.setattr(code_sets, "configure", lambda settings: None)
    with gzip.open(tmp_path / "test.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in HUMAN_EVAL)
    argv = ["--set", "human_eval", "--output", str(tmp_path / "out"), "--input"]
    (path,) = code_sets.main([*argv, str(tmp_path / "test.jsonl.gz")])
    rows = read_rows(path)
    assert path.name == "test.parquet" and [row["extra_info"]["index"] for row in rows] == [0, 1, 2]
    (tmp_path / "bad.jsonl").write_text(json.dumps(HUMAN_EVAL[3]) + "\n")
    with pytest.raises(DatasetError, match=r"no row of human_eval could be kept.*fails its own tests"):
        code_sets.main([*argv, str(tmp_path / "bad.jsonl")])
    (tmp_path / "bad.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(DatasetError, match="no compressed jsonl"):
        code_sets.main([*argv, str(tmp_path / "bad.jsonl.gz")])


def test_two_files_become_the_two_splits_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.data_preprocess import code_sets

    monkeypatch.setattr(code_sets, "configure", lambda settings: None)
    monkeypatch.chdir(tmp_path)
    for split in ("train", "test"):
        Path(f"{split}.jsonl").write_text(json.dumps(APPS) + "\n")
    command = "--set apps --input train.jsonl test.jsonl --output data/apps"  # of agent_system/workflows/code/README.md
    assert [str(path) for path in code_sets.main(command.split())] == ["data/apps/train.parquet", "data/apps/test.parquet"]
    assert len(read_rows(Path("data/apps/train.parquet"))) == 1
