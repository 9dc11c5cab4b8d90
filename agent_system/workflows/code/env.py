"""The world: one program and tests per turn, both run in the sandbox, until the team's own tests pass or the
turns are over.

The default coefficients of the rewards are those of "Stronger-MAS" (arXiv 2510.11062).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_system.environment import BaseEnv, Observation, Outcome, Task, paid
from agent_system.errors import AgentSystemError
from agent_system.options import check_choice, check_floats
from agent_system.projection import python_block
from agent_system.registry import EnvRegistry
from agent_system.sandbox import Reason
from agent_system.workflows.code.team import CALL_FORM, CODER, TESTER, interface
from agent_system.workflows.code.world.problem import Case, Problem, read_problem
from agent_system.workflows.code.world.replies import read_tests
from agent_system.workflows.code.world.runs import CaseResult, Truth, check_program
from agent_system.workflows.single import SINGLE

Results = tuple[CaseResult, ...]

COUNTED = (
    "coder/unparsed",
    "coder/limits",
    "tester/unparsed",
    "tester/tests",
    "tester/contradictory",
    "tester/surplus",
)
STOPS = ("tests", "golden")
SMOKE_TESTS = 3


@dataclass(frozen=True)
class CodeEnvOptions:
    """Options under `env.params`.

    Attributes:
        stop: condition that ends an episode before `env.max_steps`: tests (the program passes all
            tests of the Tester) | golden (it passes all golden tests, an oracle).
        max_tests: maximum number of tests per reply; later ones are ignored and counted.
        min_tests: tests that the full `reference_reward` requires; a reply with fewer is scored as
            if the missing ones were wrong.
        tolerance: absolute and relative tolerance for numbers with a fraction.
        build_reward, smoke_reward, pass_reward: local, for a program that compiles, that ends by
            itself with an answer on each of the first three golden tests, and times the share of
            golden tests that it passes.
        valid_reward, reference_reward: local, for a reply with a test that the reference solution
            runs to its end (without a reference: a readable test), and times the share of its tests
            that the reference solution passes.
    """

    stop: str = "tests"
    max_tests: int = 8
    min_tests: int = 1
    tolerance: float = 1e-6
    build_reward: float = 0.1
    smoke_reward: float = 0.1
    pass_reward: float = 0.8
    valid_reward: float = 0.2
    reference_reward: float = 0.8

    def __post_init__(self) -> None:
        check_choice("env.params.stop", self.stop, STOPS)
        if self.max_tests < 1:
            raise AgentSystemError(f"env.params.max_tests must be 1 or more, found {self.max_tests}")
        if not 1 <= self.min_tests <= self.max_tests:
            raise AgentSystemError(
                f"env.params.min_tests must be from 1 to max_tests ({self.max_tests}), found {self.min_tests}"
            )
        check_floats(self)


@EnvRegistry.register("code")
class CodeEnv(BaseEnv):
    """Environment that runs the program on the golden tests, the reference on the Tester's tests,
    and at last the program on these.

    Both roles act on the state at the start of the turn, in any order. The team's reward is the
    change of the pass rate on the golden tests, so that an episode earns the pass rate of its last
    program. A reply without a program counts as one that does not compile: it passes no test, and
    the next turn starts without a program.

    `info`: `success` (all golden tests are passed); `pass_rate`; `coder/built`, `coder/smoke` (of
    the last program); `coder/unparsed`, `tester/unparsed` (replies without a program, without a
    readable test, counted over the episode); `coder/limits` (runs on golden tests that reached a
    limit of the sandbox, counted); `tester/tests`, `tester/contradictory`, `tester/surplus` (tests
    that count, those of them with contradictory outputs, and tests left out, counted);
    `tester/right` (share of the last tests that the reference passes); `agreed` (the program passes
    the last tests); `mended`, `spoilt` (the first program failed and the last one passes, or the
    reverse; episodes of several turns).
    """

    config_class = CodeEnvOptions
    blocking = False
    uses_sandbox = True

    def check_task(self, task: Task) -> None:
        """Raise AgentSystemError for a row without tests that can be read."""
        read_problem(task)

    def reset(self, task: Task) -> Observation:
        """Start from the task.

        Raises:
            AgentSystemError: the task's tests cannot be read; the message names the task.
        """
        self._problem: Problem = read_problem(task)
        self._question = task.prompt
        self._program = ""
        self._tests: tuple[Case, ...] = ()
        self._golden: Results = ()
        self._rates: list[float] = []
        self._coded = False
        self._right = 0.0
        self._agreed = False
        self._counts: Counter[str] = Counter()
        self._results: dict[Any, Results] = {}
        self._observation = self._make_observation("", ())
        return self._observation

    def observe(self, agent_id: str) -> Observation:
        """Return the observation at the start of the turn; the same for both."""
        return self._observation

    async def act(self, agent_id: str, action: str) -> Outcome:
        """Evaluate a program on the golden tests, or tests on the reference solution; of a single
        agent both, paid for the program.
        """
        if agent_id == CODER:
            return await self._code(action)
        if agent_id == TESTER:
            return await self._test(action)
        if agent_id == SINGLE:
            coded = await self._code(python_block(action).action)
            tested = await self._test(action)
            return replace(coded, info=tested.info)
        return Outcome()

    async def step(self, action: str) -> Outcome:
        """End the turn: run the program on the tests; the next observation shows the failed ones."""
        team = 0.0 if self._coded else (await self._code(action)).team
        results = (
            await self._check(self._program, self._tests, Truth.NEITHER)
            if self._program and self._tests
            else ()
        )
        failed = [
            (case, one) for case, one in zip(self._tests, results, strict=bool(results)) if not one.passed
        ]
        self._agreed = bool(results) and not failed
        self._rates.append(pass_rate(self._golden))
        is_done = self._agreed if self.config.stop == "tests" else self._succeeded
        self._observation = self._make_observation(self._program, failed)
        self._tests = ()
        self._coded = False
        return Outcome(team=team, done=is_done, info=self._info(), observation=self._observation)

    def fork(self) -> CodeEnv:
        """Return an independent copy; the problem and the cache of results are shared."""
        copy = type(self)(self.config, seed=self.seed)
        vars(copy).update(vars(self))
        copy._rates = list(self._rates)
        copy._counts = self._counts.copy()
        return copy

    @property
    def _succeeded(self) -> bool:
        return bool(self._golden) and all(one.passed for one in self._golden)

    async def _code(self, program: str) -> Outcome:
        program = program if program.strip() else ""
        golden = await self._check(program, self._problem.cases, Truth.EXPECTED) if program else ()
        before = pass_rate(self._golden)
        self._program = program
        self._golden = golden
        self._counts["coder/unparsed"] += not program
        self._counts["coder/limits"] += sum(one.reason.is_limit for one in golden)
        self._coded = True
        config = self.config
        local = paid(
            coder_reward(golden, config), config.build_reward, config.smoke_reward, config.pass_reward
        )
        return Outcome(team=pass_rate(golden) - before, local=local, info=self._info())

    async def _test(self, action: str) -> Outcome:
        tests = read_tests(action, self._problem.function, self.config.max_tests)
        reference = self._problem.reference
        cases = (*tests.cases, *tests.unclear)
        results = await self._check(reference, cases, Truth.FOUND) if cases and reference else ()
        by_reference = results[: len(tests.cases)]
        valid = any(one.reason is Reason.OK for one in results) if reference else bool(tests)
        self._tests = tests.cases
        self._right = pass_rate(by_reference, len(tests))
        self._counts.update({"tester/tests": len(tests), "tester/contradictory": tests.contradictory})
        self._counts.update({"tester/surplus": tests.surplus, "tester/unparsed": not tests})
        by_truth = self.config.reference_reward if self._problem.reference else 0.0
        local = paid(
            tester_reward(by_reference, len(tests), valid, self.config), self.config.valid_reward, by_truth
        )
        return Outcome(local=local, info=self._info())

    async def _check(self, program: str, cases: Sequence[Case], truth: Truth) -> Results:
        """Return a program's results on tests, cached over the episode, so that all forks get the
        same results of a random program.
        """
        # Golden tests can be many megabytes and do not change within an episode, so they are not
        # part of the key.
        key = (program, truth, "" if truth is Truth.EXPECTED else repr(cases))
        if key not in self._results:
            results = tuple(await check_program(program, cases, self._problem, self.config.tolerance, truth))
            self._results.setdefault(key, results)
        return self._results[key]

    def _make_observation(self, program: str, failed: Sequence[tuple[Case, CaseResult]]) -> Observation:
        function = self._problem.function
        mismatches = [
            {
                "given": _input_text(case, function),
                "expected": _text(case.expected, function),
                "found": one.found,
            }
            for case, one in failed
        ]
        info = {
            "program": program,
            "mismatches": mismatches,
            "interface": interface(function),
            "form": CALL_FORM if function else "",
            "anchor": repr([self._question, program, mismatches]),
        }
        return Observation(self._question, info)

    def _info(self) -> dict[str, float]:
        info = {
            "success": float(self._succeeded),
            "pass_rate": pass_rate(self._golden),
            "coder/built": float(compiles(self._golden)),
            "coder/smoke": float(passes_smoke_test(self._golden)),
            "tester/right": self._right,
            "agreed": float(self._agreed),
        }
        info |= {name: float(self._counts[name]) for name in COUNTED}
        if len(self._rates) > 1:
            first = self._rates[0] == 1.0
            info["mended"], info["spoilt"] = (
                float(self._succeeded and not first),
                float(first and not self._succeeded),
            )
        return info


def _input_text(case: Case, function: str) -> str:
    """Return the input of a test in the Tester's format."""
    return "\n".join(json.dumps(argument) for argument in case.given) if function else str(case.given)


def _text(expected: Any, function: str) -> str:
    return json.dumps(expected) if function else str(expected)


def pass_rate(results: Sequence[CaseResult], least: int = 1) -> float:
    """Return the share of passed tests, of at least `least`: missing ones count as not passed."""
    return sum(one.passed for one in results) / max(len(results), least, 1)


def compiles(golden: Sequence[CaseResult]) -> bool:
    """Return whether a program, run on at least one test, compiles."""
    return bool(golden) and not golden[0].reason.is_no_program


def passes_smoke_test(golden: Sequence[CaseResult]) -> bool:
    """Return whether a program ended by itself on each of the first three tests, with an answer
    unless none is right.
    """
    return bool(golden) and all(
        one.reason is Reason.OK and (one.passed or not one.silent) for one in golden[:SMOKE_TESTS]
    )


def coder_reward(golden: Sequence[CaseResult], options: CodeEnvOptions) -> float:
    """Return the local reward of a reply of the Coder; `golden` is empty for a reply without a
    program.
    """
    built = options.build_reward * compiles(golden) + options.smoke_reward * passes_smoke_test(golden)
    return built + options.pass_reward * pass_rate(golden)


def tester_reward(
    by_reference: Sequence[CaseResult], num_tests: int, valid: bool, options: CodeEnvOptions
) -> float:
    """Return the local reward of a reply of the Tester.

    Args:
        by_reference: results of its tests on the reference solution; empty without a reference.
        num_tests: number of tests in the reply, including contradictory ones.
        valid: the reply holds a test that the reference runs to its end, or, without a reference,
            any readable test.
    """
    right = pass_rate(by_reference, max(num_tests, options.min_tests))
    return options.valid_reward * valid + options.reference_reward * right
