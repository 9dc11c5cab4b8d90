"""References are run on their tests, for real: what passes is kept, what fails is dropped and counted, and no
test can be forged.
"""

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_system.sandbox import Reason, configure, shared_sandbox
from agent_system.task import task_from_row
from agent_system.workflows.code import CODER, TESTER, CodeEnv
from agent_system.workflows.code.world.prepare import (
    CALLS,
    FAILING,
    KEPT,
    NO_JSON,
    NO_REFERENCE,
    UNREADABLE,
    Preparation,
    prepare,
)
from agent_system.workflows.code.world.problem import Problem, read_problem
from agent_system.workflows.code.world.replies import write_pairs
from agent_system.workflows.code.world.runs import check_program
from tests.agent_system.workflows.code.rows_of_sets import (
    APPS,
    CODE_CONTESTS,
    HUMAN_EVAL,
    LIVE_CODE_BENCH,
    MBPP,
)
from tests.house.source import ROOT
from verl.trainer.config.sandbox import SandboxLimitsConfig
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
    return [read_problem(task_from_row(row)) for row in made], {
        what: count for what, count in counts.items() if count
    }


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
        APPS
        | {"input_output": json.dumps(calls), "solutions": json.dumps([f"def add(a, b): return {value}"])}
        for value in ("a + b", "[a + b]", "7")
    ]
    found, counts = await problems("apps", *rows)
    assert [problem.cases[0].expected for problem in found] == [3, [3]] and counts == {KEPT: 2, FAILING: 1}


@pytest.mark.parametrize(
    ("name", "row", "reason", "cause"),
    [
        (
            "apps",
            APPS | {"solutions": json.dumps(["print(7 // 0)"])},
            FAILING,
            "row 0: test 0: error, found .*ZeroDivisionError",
        ),
        ("apps", APPS | {"input_output": "{oops"}, UNREADABLE, "row 0: input_output is not JSON"),
        (
            "human_eval",
            EVEN | {"canonical_solution": "    return 1\n"},
            FAILING,
            "row 0: error: AssertionError",
        ),
        (
            "human_eval",
            EVEN | {"test": "import nowhere\n" + EVEN["test"]},
            FAILING,
            "row 0: error: ModuleNotFoundError: .*nowhere",
        ),
        ("live_code_bench", LIVE_CODE_BENCH, NO_REFERENCE, "row 0: --without-reference"),
    ],
)
async def test_the_first_row_dropped_for_a_reason_is_told_with_its_cause(
    name: str, row: Any, reason: str, cause: str
) -> None:
    first: dict[str, str] = {}
    _, counts = await prepare(name, [row, row], Path("test.jsonl"), Preparation(), first)
    assert +counts == {reason: 2} and list(first) == [reason]
    assert re.match(cause, first[reason]), first


@pytest.mark.parametrize(
    "starter", ["", "def add(a, b):", "class Solution:\n    def add(self, a: int, b: int) -> int:"]
)
@pytest.mark.parametrize(
    "solution",
    [
        "def add(a, b): return a + b",
        "class Solution:\n    def add(self, a: int, b: int) -> List[int]: return a + b",
        "class Solution(object):\n    def add(self, a, b): return operator.add(a, b)",
    ],
)
async def test_a_solution_may_have_another_form_than_its_starter(starter: str, solution: str) -> None:
    calls = {"fn_name": "add", "inputs": [[1, 2], [2, 2]], "outputs": [3, 4]}
    row = APPS | {
        "input_output": json.dumps(calls),
        "solutions": json.dumps([solution]),
        "starter_code": starter,
    }
    (problem,), counts = await problems("apps", row)
    assert counts == {KEPT: 1} and problem.reference == solution


async def test_a_starter_is_completed_as_it_is_given() -> None:
    starter = "class Solution:\n    def total(self, nums: List[int], k: int) -> int:"
    tests = [
        {"input": "[1, 2]\n4", "output": "7", "testtype": "functional"},
        {"input": '["\u2028"]\n0', "output": "1"},
    ]
    row = LIVE_CODE_BENCH | {
        "starter_code": starter, "metadata": json.dumps({"func_name": "total"}),
        "public_test_cases": json.dumps(tests, ensure_ascii=False),
    }  # fmt: skip
    (problem,), _ = await problems("live_code_bench", row, without_reference=True)
    assert await solves(f"{starter}\n        return sum(nums) + k if k else len(nums)", problem)


async def test_tasks_without_a_solution_are_dropped_unless_they_are_wanted() -> None:
    assert await problems("live_code_bench", LIVE_CODE_BENCH) == ([], {NO_REFERENCE: 1})
    (problem,), counts = await problems("live_code_bench", LIVE_CODE_BENCH, without_reference=True)
    assert counts == {KEPT: 1} and problem.reference == ""


async def test_no_more_tests_than_asked_for_are_kept() -> None:
    (problem,), _ = await problems("code_contests", CODE_CONTESTS, max_tests=2)
    assert len(problem.cases) == 2


async def test_assertions_become_calls_with_values() -> None:
    found, counts = await problems("human_eval", *HUMAN_EVAL)
    assert counts == {KEPT: 4, FAILING: 1, NO_JSON: 1, CALLS: 1}
    double, root, keys, _ = found
    assert [(case.given, case.expected) for case in double.cases] == [
        ([5], 10),
        ([0], 0),
        ([1], 2),
        ([2], 4),
    ] and not double.checker
    assert [(case.given, case.expected) for case in keys.cases] == [
        ([{"b": 1, "a": 2}], {"$tuple": ["a", "b"]}), ([{"$dict": [[2, 1]]}], {"$tuple": [2]}),
        ([{}], {"$set": []}),
    ]  # fmt: skip
    assert await solves("def double(x): return x + x", double) and not await solves(
        "def double(x): return 10", double
    )
    assert root.checker and not await solves("def root(x): return x / 2", root)
    for program in (
        "def root(x): return -(x ** 0.5)",
        "def root(x): return x ** 0.5 + 1e-9",
        "import math\nroot = math.sqrt",
    ):
        assert await solves(program, root)


async def test_a_program_cannot_forge_assertions() -> None:
    found, _ = await problems("human_eval", *HUMAN_EVAL[:2])
    forged = (
        "class Yes(float):\n    __eq__ = __ge__ = __lt__ = lambda *a: True\n    __abs__ = __sub__ = __pow__ "
        "= lambda s, *a: s\n"
        "    __hash__ = None\n"
    )
    for problem in found:
        hostile = f"{forged}def {problem.function}(x): return Yes(7)\ndef check(candidate): pass\ndef judge(*a): return True\n"
        assert not await solves(hostile, problem)
        assert not await solves(f"def {problem.function}(x):\n    raise SystemExit(0)", problem)
        assert not await solves("import os\nos._exit(0)", problem)


def asserting(reference: str, *lines: str) -> dict[str, Any]:
    """A row whose function is `solve`."""
    body, test = ("".join(f"    {line}\n" for line in part) for part in (reference.splitlines()[1:], lines))
    return {
        "prompt": f"{reference.splitlines()[0]}\n",
        "entry_point": "solve",
        "canonical_solution": body,
        "test": f"def check(candidate):\n{test}",
    }


SORTED = asserting("def solve(v):\nv.sort()", "v = [3, 1, 2]", "candidate(v)", "assert v == [1, 2, 3]")
NESTED = asserting("def solve(m):\nm[0][0].clear()", "v = [1]", "candidate([(v, 2), 3])", "assert v == []")
NEAR = asserting(
    "def solve(x):\nreturn x ** 0.5",
    "assert not abs(candidate(4) - 2) > 1e-6",
    "assert max(0, abs(candidate(9) - 3)) < 1e-6",
)
LARGE = asserting(
    "def solve(v):\nreturn sorted(v)",
    "for n in range(7000, 7005):",
    "    v = list(range(n))",
    "    assert sorted(candidate(v[::-1])) == v",
)
CASES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "the same call again": (
        asserting("def solve(a, b):\nreturn [a, b, a * b + 17]", "assert len(candidate(5, 6)) == 3; assert candidate(5, 6)[2] == 47"),
        ["return [0, 0, 47]"],
        ["return [0, 0, 0]", "return [47]"],
    ),
    "by name": (
        asserting("def solve(a, b):\nreturn a - b", "assert candidate(5, b=6) == -1", "assert 0 <= candidate(b=4, a=5)"),
        ["return a - b", "return -1 if b == 6 else 7"],
        ["return b - a", "return -1"],
    ),
    "by its own name": (
        asserting("def solve(x):\nreturn x * solve(x - 1) if x else 1", "assert solve(3) == 6", "assert candidate(solve(0)) == 1"),
        ["return [1, 1, 2, 6][x]"],
        ["return x", "return [1, 2, 2, 6][x]"],
    ),
    "arguments changed in place": (SORTED, ["v.sort()", "v[:] = 1, 2, 3; return 7"], ["pass", "return sorted(v)", "v.clear()"]),
    "inner arguments changed in place": (NESTED, ["m[0][0].pop()", "m[0][0][:] = []; m[1] = 7"], ["m.clear()", "m[0][0].append(2)"]),
    "arguments may be changed": (
        asserting("def solve(v):\nreturn sorted(v)", "assert candidate([2, 1]) == [1, 2]"),
        ["v.sort(); return v"],
        ["v.sort()"],
    ),
    "numbers that are none": (NEAR, ["return x ** 0.5", "return {4: 2, 9: 3}[x]"], ["return float('nan')", "return float('inf')"]),
    "many large answers": (LARGE, ["return v", "return tuple(v)"], ["return v[1:]", "return [0] * len(v)"]),
    "right one by one, not together": (
        asserting("def solve(x):\nreturn x", "assert candidate(1) <= candidate(2)"), ["return -x * 0 + 3"],
        ["return 3 - x"],
    ),
    "right together, not one by one": (
        asserting("def solve(x):\nreturn 0", "assert candidate(1) == candidate(2)"), ["return 5"],
        ["return x"],
    ),
    "an answer to an answer": (
        asserting("def solve(x):\nreturn -x", "assert candidate(candidate(7)) == 7"), ["return x * -1"],
        ["return x + 1"],
    ),
    "random inputs": (
        asserting(
            "def solve(x):\nimport random\nrandom.random()\nreturn [x]",
            "import random", "for _ in range(9):", "    x = random.random()",
            "    assert candidate(x)[0] == x",
        ),
        ["return [x, x]", "return (x,)"],
        ["return [x + 1e-9]", "return [0]"],
    ),
    "a list": (
        asserting("def solve(v):\nreturn list(v)", "assert candidate((1, 2)) == [1, 2]"),
        ["return [True, 2.0]"],
        ["return v", "return set(v)", "return {1: 2}", "return iter(v)", "return range(1, 3)", "return [1, 2 + 1e-9]"],
    ),
    "a tuple of arguments": (
        asserting("def solve(v):\nreturn type(v).__name__", "assert candidate((1, 2)) == 'tuple'"),
        ["return 'tuple' if isinstance(v, tuple) else 0"],
        ["return 'list'"],
    ),
    "a set": (
        asserting("def solve(v):\nreturn set(v)", "assert candidate('ab') == {'a', 'b'}"), ["return {*v}"],
        ["return ['a', 'b']"],
    ),
    "a truth value": (
        asserting("def solve(x):\nreturn x > 1", "assert candidate(0) == False", "assert candidate(2) == True"),
        ["return int(x > 1)", "return x / 2"],
        ["return x", "return bool(x) or None", "return str(x > 1)"],
    ),
    "the truth value itself": (asserting("def solve(x):\nreturn x > 1", "assert candidate(2) is True"), ["return x == 2"], ["return 1"]),
    "keys": (
        asserting("def solve(x):\nreturn {x: 1, None: (2,)}", "assert candidate(1) == {1: True, None: (2,)}"),
        ["return {None: (2.0,), True: 1}"],
        ["return {'1': 1, None: (2,)}", "return {1: 1, None: [2]}", "return {1: 1}"],
    ),
    "long numbers": (
        asserting("def solve(x):\nreturn 10 ** x", "assert candidate(5000) == 10 ** 5000", "assert candidate(0) == 1"),
        ["return 10 ** x"],
        ["return 10 ** x + 1"],
    ),
    "iterators": (
        asserting("def solve(v):\nreturn map(str, v)", "assert list(candidate([1, 2])) == ['1', '2']"),
        ["return ['1', '2']", "return (str(x) for x in v)"],
        ["return v", "return '1'"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
async def test_answers_are_judged_as_the_assertions_judge_a_program(what: str) -> None:
    row, right, wrong = CASES[what]
    (problem,), counts = await problems("human_eval", row)
    assert counts == {KEPT: 1}
    head = row["prompt"]
    assert await solves(problem.reference, problem)
    for body in (*right, *wrong):
        assert await solves(f"{head}    {body}", problem) == (body in right), body


async def test_a_large_answer_is_left_out_where_a_program_may_not_return_it() -> None:
    row = asserting(
        "def solve(n):\nreturn [0] * n",
        "for n in (100_000, 3, 100_000):",
        "    assert len(candidate(n)) == n",
    )
    (problem,), counts = await problems("human_eval", row)
    assert [case.given for case in problem.cases] == [[3]] and counts == {KEPT: 1, CALLS: 2}


@pytest.mark.parametrize(
    "end", ["\n@abs", "\nx = (", "\nif x:", '\n"""', "\n" + 3 * "'", "\nclass A:", "\nx ="]
)
async def test_the_source_added_to_a_program_does_not_complete_it(end: str) -> None:
    (problem,), _ = await problems("human_eval", HUMAN_EVAL[0])
    checked = await check_program("def double(x): return 2 * x" + end, problem.cases, problem, 1e-6)
    assert {one.reason for one in checked} == {Reason.COMPILE}


async def test_names_of_a_program_are_its_own() -> None:
    (problem,), _ = await problems("human_eval", HUMAN_EVAL[0])
    assert await solves(
        "encode = write = read = decode = lambda x: 2 * x\ndef double(x): return encode(x)", problem
    )


HELPED: dict[str, Any] = {
    "prompt": "import math\n\ndef half(x: int):\n    '''Half of x.'''\n    return math.floor(x / 2)\n\n\n"
    'def quarter(x: int):\n    """A quarter of x, which uses half.\n    """\n',
    "entry_point": "quarter",
    "canonical_solution": "    return half(half(x))\n",
    "test": "def check(candidate):\n    assert candidate(8) == 2, 'of 8'\n"
    "    assert half(candidate(9)) == 1\n",
}


@pytest.mark.parametrize(
    ("program", "right"),
    [
        ("def quarter(x): return half(half(x))", True),
        ("from __future__ import annotations\ndef quarter(x: Any): return half(half(x))", True),
        ("def half(x): return x / 2\ndef quarter(x): return int(half(half(x)))", True),
        ("half = lambda x: x\ndef quarter(x): return half(half(x))", False),
        ("def quarter(x): return half(x)", False),
        ("half", False),
        ("def half(x): return x // 4", False),
    ],
)
async def test_functions_that_a_prompt_gives_may_be_left_out(program: str, right: bool) -> None:
    (problem,), counts = await problems("human_eval", HELPED)
    assert counts == {KEPT: 1} and await solves(problem.reference, problem)
    assert await solves(program, problem) is right


async def test_a_set_is_a_list_in_any_order_to_the_tester() -> None:
    ((made,), _) = await prepare("human_eval", [HUMAN_EVAL[4]], Path("test.jsonl"), Preparation())
    env = CodeEnv()
    env.reset(task_from_row(made))
    for expected, local in (
        ("[2, -2]", 1.0),
        ("[-2, 2]", 1.0),
        ("[2]", 0.2),
        ('"2"', 0.2),
        ("[2, NaN]", 0.2),
    ):
        assert (await env.act(TESTER, write_pairs([("2", expected)]))).local == pytest.approx(local), expected


async def test_a_non_finite_number_is_not_a_right_test() -> None:
    ((made,), _) = await prepare("human_eval", [NEAR], Path("test.jsonl"), Preparation())
    env = CodeEnv()
    env.reset(task_from_row(made))
    for expected, local in (("2", 1.0), ("NaN", 0.2), ("Infinity", 0.2)):
        assert (await env.act(TESTER, write_pairs([("4", expected)]))).local == pytest.approx(local), expected
        await env.act(CODER, problem_reference(NEAR))
        assert (await env.step(problem_reference(NEAR))).done == (expected == "2")


def problem_reference(row: dict[str, Any]) -> str:
    return row["prompt"] + row["canonical_solution"]


@pytest.mark.parametrize("name", ["check", "judge", "candidate", "run", "judge_answers"])
@pytest.mark.parametrize("exact", [True, False])
async def test_a_function_may_have_a_name_of_what_runs_the_assertions(name: str, exact: bool) -> None:
    test = f"{name}(3) == 4" if exact else f"abs({name}(3) - 4) < 1e-6"
    code = f"def {name}(x):\n    return {name}(x - 1) + 1 if x else 1\n"
    rows: list[tuple[str, dict[str, Any]]] = [
        ("mbpp", {"text": "Add one.", "code": code, "test_list": [f"assert {test}"]}),
        ("human_eval", {
            "prompt": code.partition("\n")[0] + "\n", "entry_point": name,
            "canonical_solution": code.partition("\n")[2],
            "test": f"def check(candidate):\n    assert {test.replace(name, 'candidate')}\n",
        }),
    ]  # fmt: skip
    for kind, row in rows:
        (problem,), counts = await problems(kind, row)
        assert counts == {KEPT: 1} and bool(problem.checker) is not exact
        assert await solves(code, problem) and not await solves(code.replace("else 1", "else 2"), problem)


async def test_mbpp_is_judged_by_its_own_assertions() -> None:
    (problem,), counts = await problems("mbpp", MBPP)
    assert counts == {KEPT: 1} and problem.checker
    assert await solves("def common(x, y): return sorted(set(x) & set(y), reverse=True)", problem)
    assert not await solves("def common(x, y): return x", problem)


@pytest.mark.parametrize(
    ("name", "row", "program", "given", "others", "wrong"),
    [
        (
            "human_eval",
            HUMAN_EVAL[1],
            "def root(x): return -(x ** 0.5)",
            "9",
            ["3.0", "-3"],
            ['"nonsense"', "null", "4", "true"],
        ),
        (
            "human_eval",
            EVEN,
            "def even(x): return x % 2 == 0",
            "2",
            ["true"],
            ['"nonsense"', "[0]", "null", "false", "1"],
        ),
        (
            "mbpp",
            MBPP,
            MBPP["code"],
            "[3, 4, 5]\n[5, 4, 9]",
            ["[4, 5]", "[5, 4]"],
            ['"nonsense"', "null", "[4]", "[4, 5, 6]", "45"],
        ),
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
    configure(replace(before, limits=SandboxLimitsConfig(cpu_s=20.0, wall_s=200.0)))
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
        assert (right.info["success"], empty.info["success"], empty.info["coder/built"]) == (1, 0, 1), source[
            "task_id"
        ]


def test_the_script_writes_what_the_trainer_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.data_preprocess import code_sets

    monkeypatch.setattr(code_sets, "configure", lambda settings: None)
    with gzip.open(tmp_path / "test.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in HUMAN_EVAL)
    argv = ["--set", "human_eval", "--output", str(tmp_path / "out"), "--input"]
    (path,) = code_sets.main([*argv, str(tmp_path / "test.jsonl.gz")])
    rows = read_rows(path)
    assert path.name == "test.parquet" and [row["extra_info"]["index"] for row in rows] == [0, 1, 2, 4]
    (tmp_path / "bad.jsonl").write_text(json.dumps(HUMAN_EVAL[3]) + "\n")
    with pytest.raises(DatasetError, match=r"no row of human_eval could be kept.*fails its own tests"):
        code_sets.main([*argv, str(tmp_path / "bad.jsonl")])
    (tmp_path / "bad.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(DatasetError, match="not a compressed jsonl"):
        code_sets.main([*argv, str(tmp_path / "bad.jsonl.gz")])


def test_two_files_become_the_two_splits_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.data_preprocess import code_sets

    monkeypatch.setattr(code_sets, "configure", lambda settings: None)
    monkeypatch.chdir(tmp_path)
    for split in ("train", "test"):
        Path(f"{split}.jsonl").write_text(json.dumps(APPS) + "\n")
    # of agent_system/workflows/code/README.md
    command = "--set apps --input train.jsonl test.jsonl --output data/apps"
    assert [str(path) for path in code_sets.main(command.split())] == [
        "data/apps/train.parquet",
        "data/apps/test.parquet",
    ]
    assert len(read_rows(Path("data/apps/train.parquet"))) == 1
