"""Programs on tests, for real in the sandbox; right answers are those of the judge outside, or of a special
judge.
"""

import asyncio
import json
import time
from typing import Any

import pytest

from agent_system.sandbox import Reason, RunResult, shared_sandbox
from agent_system.workflows.code.env import compiles
from agent_system.workflows.code.world.problem import Case, Problem
from agent_system.workflows.code.world.runs import LONGEST_ERROR, Truth, check_program
from tests.agent_system.workflows.code.conftest import ADD

CASES = (Case("1 2\n", "3\n"), Case("5 5\n", "10\n"))


async def passed(program: str, problem: Problem) -> list[bool]:
    return [one.passed for one in await check_program(program, problem.cases, problem, 1e-6)]


@pytest.mark.parametrize(
    ("program", "right"),
    [
        (ADD, [True, True]),
        ("print('  3  ')", [True, False]),
        ("import sys; print(sum(map(float, sys.stdin.read().split()))); sys.exit()", [True, True]),
        (f"{ADD}\nimport os; os._exit(0)", [False, False]),  # what was not flushed was not printed
        (f"{ADD}\nraise ValueError", [False, False]),
        ("print(3", [False, False]),
        ("", [False, False]),
        ("while True: pass", [False, False]),
        ("import pathlib; print(pathlib.Path('/etc/passwd').read_text())", [False, False]),
    ],
)
async def test_programs_on_standard_input(program: str, right: list[bool]) -> None:
    assert await passed(program, Problem(CASES)) == right


@pytest.mark.parametrize(
    ("program", "right"),
    [
        ("def solve(v, k): return tuple(x * k for x in v)", [True, True, True]),
        ("def solve(v, k): return [x * k for x in v] or None", [True, True, False]),
        ("def solve(v, k):\n    print([2, 4])\n    return None", [False, False, False]),
        ("def solve(v): return v", [False, False, False]),
        ("def other(v, k): return v", [False, False, False]),
        (
            "class Anything:\n    def __eq__(self, other): return True\ndef solve(v, k): return Anything()",
            [False, False, False],
        ),
        ("def solve(v, k): return [float(x * k) for x in v]", [True, True, True]),
    ],
)
async def test_programs_by_a_call(program: str, right: list[bool]) -> None:
    cases = (Case([[1, 2], 2], [2, 4]), Case([[0.1], 3], [0.3]), Case([[], 1], []))
    assert await passed(program, Problem(cases, "solve")) == right


@pytest.mark.parametrize("function", ["total", "Solution.total"])
@pytest.mark.parametrize(
    "program",
    [
        "class Solution:\n    def total(self, nums: List[int], k: int) -> Optional[int]: return sum(nums) + "
        "k",
        "def total(nums: List[int], k: int) -> int: return sum(nums) + k",
        "total = lambda nums, k: reduce(add, nums, k)",
        "class Solution:\n    @staticmethod\n    def total(nums, k): return sum(nums) + k",
        "class Solution:\n    @cache\n    def f(self, n): return n\n    def total(self, nums, k): return "
        "sum(map(self.f, nums)) + k",
        "solution = Solution = type('S', (), {'total': lambda self, nums, k: sum(nums) + k})()",
        "from __future__ import annotations\ndef total(nums: List[int], k: Unknown) -> int: return sum(nums) "
        "+ k",
        "def helper(nums): return sum(nums)\nclass Solution:\n    def total(self, nums, k): return "
        "helper(nums) + k",
        "def sum(nums): return 6\ndef total(nums, k): return sum(nums) + k",
        "def total(nums, k):\n    def deep(n): return 0 if n == 0 else 1 + deep(n - 1)\n    return "
        "deep(9000) - 9000 + sum(nums) + k",
    ],
)
async def test_a_function_or_a_method_is_the_program_s_own_form(function: str, program: str) -> None:
    assert await passed(program, Problem((Case([[1, 2, 3], 4], 10),), function)) == [True]


# What programs do as scripts, which judges of functions do not run.
SCRIPTS = (
    "print(add(*map(int, input().split())))",
    "import unittest\n    unittest.main()",
    "import sys\n    sys.exit(0)",
    "assert add(1, 2) == 4",
    "while True: pass",
)


@pytest.mark.parametrize("function", ["add", "Solution.add"])
async def test_what_a_program_does_as_a_script_is_not_part_of_its_function(function: str) -> None:
    cases = (Case([1, 2], 3),)
    typed = Problem(cases, "add", python_values=True)
    for head in ("def add(a, b): return a + b", "class Solution:\n    def add(self, a, b): return a + b"):
        scripts = "".join(f"if __name__ == '__main__':\n    {script}\n" for script in SCRIPTS)
        program = f"import pickle, __main__\n{head}\nclass A: pass\npickle.dumps(A())\n{scripts}"
        assert await passed(program, Problem(cases, function)) == [True]
        assert await passed(program, typed) == [True]
    shown = await passed("if __name__ == '__main__': print(input())", Problem((Case("5", "5"),)))
    assert shown == [True]


@pytest.mark.parametrize(
    ("module", "name", "arguments", "value"),
    [("operator", "add", [1, 2], 3), ("statistics", "median", [[3, 1, 2]], 2), ("math", "gcd", [4, 6], 2)],
)
async def test_a_usual_name_is_the_function_only_if_the_program_imports_it(
    module: str, name: str, arguments: list[object], value: int
) -> None:
    cases = (Case(arguments, value),)
    for problem in (Problem(cases, name), Problem(cases, name, python_values=True)):
        for mention in (f"{name}", f"class Other:\n    def {name}(self, *a): return {value}"):
            assert await passed(mention, problem) == [False], mention
        for names in (name, "*"):
            assert await passed(f"from {module} import {names}", problem) == [True]
    method = f"from {module} import *\nclass Solution:\n    def {name}(self, *a): return {value + 1}"
    assert await passed(method, Problem((Case(arguments, value + 1),), name)) == [True]


@pytest.mark.parametrize(
    ("value", "expected", "typed"),
    [
        ("Fraction(6, 2)", 3, 3),
        ("Fraction(1, 2)", 0.5, 0.5),
        ("Decimal('0.5')", 0.5, 0.5),
        ("Decimal(7)", 7, 7.0),
        ("Decimal('0.1')", 0.1, None),
        ("Decimal('nan')", None, None),
    ],
)
async def test_exact_numbers_are_those_that_they_equal(value: str, expected: object, typed: object) -> None:
    head = "from decimal import Decimal\nfrom fractions import Fraction\n"
    program = f"{head}def f(): return {value}"
    plain = await passed(program, Problem((Case([], expected),), "f"))
    exact = await passed(program, Problem((Case([], typed),), "f", python_values=True))
    assert (plain, exact) == ([expected is not None], [typed is not None])


@pytest.mark.parametrize(
    "program",
    ["class Other:\n    def total(self, k): return k", "class Solution:\n    def other(self, k): return k"],
)
async def test_no_other_function_is_called(program: str) -> None:
    (result,) = await check_program(program, (Case([1], 1),), Problem((), "Solution.total"), 1e-6)
    assert not result.passed and "the program defines no 'Solution.total'" in result.found


USUAL = {
    "sqrt(9) == math.sqrt(9) == 3": True,
    "Counter('aab').most_common(1)": [["a", 2]],
    "[*deque([1, 2], maxlen=1)]": [2],
    "defaultdict(list)[0]": [],
    "[heappop(x) for x in [[1, 2]]] + [heapq.heappop([4])]": [1, 4],
    "bisect_left([1, 2], 2) + bisect.bisect([1, 2], 2)": 3,
    "[*accumulate([1, 2]), *itertools.chain([3])]": [1, 3, 3],
    "reduce(operator.mul, [2, 3]) + functools.reduce(add, [1])": 7,
    "inf > 5 and -math.inf < gcd(4, 6) == 2": True,
    "ascii_lowercase[0] + string.digits[1]": "a1",
    "re.findall('a', 'aa') + findall('b', 'b')": ["a", "a", "b"],
    "deepcopy([1]) + copy.copy([2])": [1, 2],
    "datetime.date(2024, 1, 2).day + timedelta(3).days": 5,
    "json.loads('[1]') + loads('[2]')": [1, 2],
    "StringIO('a').read() + io.StringIO('b').read()": "ab",
    "mean([1, 3]) + statistics.median([1])": 3,
    "sys.maxsize > 0 and random.random() < 1 and randint(1, 1) == 1": True,
    "pow(3, -1, 7)": 5,
    "all([isinstance([], List), List[int], Dict, Tuple, Optional, Set, Any, Union])": True,
}


async def test_usual_names_need_no_import() -> None:
    program = f"def values(): return [{', '.join(USUAL)}]"
    (result,) = await check_program(program, (Case([], []),), Problem((), "values"), 1e-6)
    assert json.loads(result.found) == list(USUAL.values())
    assert await passed(
        "print(int(math.sqrt(int(input()))), len(deque([1])))", Problem((Case("9", "3 1"),))
    ) == [True]
    deep = "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(int(input())))"
    assert await passed(deep, Problem((Case("9000", "9000"),))) == [True]
    assert (await shared_sandbox().run(deep, "9000")).reason is Reason.ERROR
    plain = await shared_sandbox().run("print(math.pi)")
    assert plain.reason is Reason.ERROR and "NameError" in plain.stderr


async def test_integers_of_many_digits_are_arguments_and_values() -> None:
    long = 10**5000 + 7
    assert await passed(
        "def f(n): return n + 1", Problem((Case([long], long + 1), Case([long], long)), "f")
    ) == [True, False]
    assert await passed("print(int(input()) + 1)", Problem((Case(f"{long}", f"{long + 1}"),))) == [True]
    assert await passed("def f(n): return 10 ** 30_000", Problem((Case([1], 1),), "f")) == [False]


async def test_a_method_is_called_on_an_object_of_its_class() -> None:
    program = "class Solution:\n    def add(self, a, b): return a + b"
    assert await passed(program, Problem((Case([1, 2], 3),), "Solution.add")) == [True]


JUDGE = "def judge(given, expected, found):\n    return sorted(found.split()) == sorted(given.split())"


async def test_a_special_judge_is_asked_about_other_answers_than_the_expected_one() -> None:
    problem = Problem((Case("3 1 2\n", "1 2 3\n"),), checker=JUDGE)
    for program, right in (
        ("print(2, 3, 1)", True),
        ("print(1, 2, 3)", True),
        ("print(1, 2, 4)", False),
        ("1 / 0", False),
    ):
        assert await passed(program, problem) == [right]


@pytest.mark.parametrize(
    ("truth", "printed", "expected", "right"),
    [
        (Truth.FOUND, "1 2 3", "3 2 1", True),
        (Truth.FOUND, "1 2 3", "4 4", False),
        (Truth.FOUND, "9", "3 2 1", True),  # the reference is not judged
        (Truth.NEITHER, "3 2 1", "2 1 3", True),
        (Truth.NEITHER, "3 2 1", "nonsense", False),
        (Truth.NEITHER, "9", "2 1 3", False),
        (Truth.NEITHER, "9", "9", True),
    ],
)
async def test_a_special_judge_is_asked_about_the_answer_that_is_not_known_to_be_right(
    truth: Truth, printed: str, expected: str, right: bool
) -> None:
    cases = (Case("3 1 2\n", expected), Case("3 1 2\n", printed))
    checked = await check_program(f"print('{printed}')", cases, Problem(cases, checker=JUDGE), 1e-6, truth)
    assert [one.passed for one in checked] == [right, True]


async def test_an_integer_of_the_reference_is_compared_without_tolerance() -> None:
    cases = (Case("", "3.0000001"), Case("", "3.0"))
    assert [
        one.passed for one in await check_program("print(3)", cases, Problem(cases), 1e-6, Truth.FOUND)
    ] == [False, True]


@pytest.mark.parametrize(
    "judge",
    ["1 / 0", "def judge(given, expected, found): return 'yes'", "def judge(given): return True", "x ="],
)
async def test_a_special_judge_that_fails_or_does_not_say_true_approves_of_nothing(judge: str) -> None:
    assert await passed("print(7)", Problem((Case("1\n", "2\n"),), checker=judge)) == [False]


async def test_a_special_judge_reads_output_as_data() -> None:
    hostile = 'print(\'__import__("os").system("true") or {0.__class__} %s\')'
    assert await passed(
        hostile,
        Problem((Case("1\n", "2\n"),), checker="def judge(g, e, f): return f.startswith('__import__')"),
    ) == [True]


async def test_the_failure_of_a_run_is_one_line() -> None:
    (error,) = await check_program("raise ValueError('no ' * 300)", CASES[:1], Problem(CASES), 0.0)
    assert error.found.startswith("failed (error) ValueError: no no") and len(error.found) <= LONGEST_ERROR
    (late,) = await check_program("while True: pass", CASES[:1], Problem(CASES), 0.0)
    assert late.reason in (Reason.CPU, Reason.TIMEOUT) and late.found.startswith("failed (")


async def test_a_failing_sandbox_does_not_increase_the_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(program: str, tests: list, **_: Any) -> list[RunResult]:
        return [RunResult(Reason.OK, stdout="3\n"), RunResult(Reason.SANDBOX, message="worker lost")]

    monkeypatch.setattr(shared_sandbox(), "run_tests", broken)
    right, lost = await check_program(ADD, CASES[:2], Problem(CASES), 0.0)
    assert right.passed and not lost.passed and lost.silent and lost.reason is Reason.SANDBOX
    assert compiles([right]) and not compiles([lost])


@pytest.mark.timing
async def test_long_answers_are_judged_beside_the_other_episodes() -> None:
    """20 answers of 60,000 numbers that are nearly right: in the loop they would hold it for a second."""
    cases = tuple(Case(f"{i}\n", "0.5 " * 12_000) for i in range(20))
    judged = asyncio.create_task(
        check_program("print('0.5000000001 ' * 12_000)", cases, Problem(cases), 1e-6)
    )
    late = 0.0
    while not judged.done():
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        late = max(late, time.perf_counter() - began)
    assert all(one.passed for one in await judged)
    assert late < 0.25


async def test_a_program_may_print_and_return_as_much_as_is_expected() -> None:
    shown, many = "é" * 200_000, list(range(60_000))
    printed = Problem((Case("1\n", f"{shown}\n"), Case("2\n", "2\n")))
    right = f"print({shown!r} if input() == '1' else 2)"
    assert await passed(right, printed) == [True, True]
    assert await passed("while True: print(5)", printed) == [False, False]
    returned = Problem((Case([], many),), "f")
    assert await passed("def f(): return list(range(60_000))", returned) == [True]
    few = Problem((Case("1\n", "1\n"),))
    (result,) = await check_program("print('9' * 300_000)", few.cases, few, 1e-6)
    assert result.reason is Reason.OUTPUT
