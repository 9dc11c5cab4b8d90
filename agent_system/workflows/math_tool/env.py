"""The world: one answer by reasoning and one by a program per turn, until they agree."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass

from agent_system.environment import BaseEnv, Observation, Outcome, Task, paid
from agent_system.errors import AgentSystemError
from agent_system.options import check_choice, check_floats
from agent_system.projection import boxed_answer, last_boxed, python_block
from agent_system.registry import EnvRegistry
from agent_system.sandbox import RunResult, shared_sandbox
from agent_system.workflows.math.world.grade import grade, shared_pool
from agent_system.workflows.math.world.grader_pool import Verdict
from agent_system.workflows.math_tool.team import REASONER, TOOL_USER
from agent_system.workflows.single import SINGLE

logger = logging.getLogger(__name__)

LONGEST_SHOWN = 200
# Characters of output that are parsed on the event loop; longer output is parsed in a thread.
PARSED_INLINE = 16_384
DECIDERS = ("reasoner", "tool")


@dataclass(frozen=True)
class MathToolEnvOptions:
    """Options under `env.params`.

    Attributes:
        decides: role whose answer is the team's where they do not agree: reasoner | tool; without an answer of that role the team is wrong.
        format_reward, match_reward: Reasoner, local, for an answer in a box and for a right one.
        build_reward, run_reward, output_reward: Tool-user, local, for a program that compiles, one that ends by itself and prints an
            answer, one whose answer is right.
        tolerance: relative, for the number that a program prints, compared with the truth or the Reasoner's answer; integers are exact.
        grader_workers: maximum number of grader processes; 0 means the number of cores, at most four.
        grader_timeout_s: CPU seconds for a comparison; an answer that takes longer scores 0.
    """

    decides: str = "reasoner"
    format_reward: float = 0.2
    match_reward: float = 0.8
    build_reward: float = 0.1
    run_reward: float = 0.1
    output_reward: float = 0.8
    tolerance: float = 1e-6
    grader_workers: int = 0
    grader_timeout_s: float = 3.0

    def __post_init__(self) -> None:
        check_choice("env.params.decides", self.decides, DECIDERS)
        if self.grader_timeout_s <= 0 or self.grader_workers < 0:
            raise AgentSystemError(
                f"env.params.grader_timeout_s must be positive and grader_workers 0 or more, "
                f"found {self.grader_timeout_s:g} and {self.grader_workers}"
            )
        check_floats(self, "env.params")


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Result of a program.

    Attributes:
        built: it compiled.
        ended: it ended by itself.
        answer: its last line of output; may be empty.
        summary: the answer, or the kind of failure, for prompts.
        limited: it reached a limit of the sandbox.
    """

    built: bool = False
    ended: bool = False
    answer: str = ""
    summary: str = ""
    limited: bool = False


@EnvRegistry.register("math_tool")
class MathToolEnv(BaseEnv):
    r"""Environment that grades both answers and, at the end of a turn, compares them and determines the team's answer.

    Two answers agree when the grader finds them equal. The team's answer is the common one, else that of the role `decides`; a missing
    answer counts as wrong, so that silence earns no more than an error. The team's reward is the change of correctness (0 or 1) of its
    answer, so that an episode earns 1 if the last answer is right. A program's answer is its last line of output, or the content of its
    last `\boxed{}` if there is one; a number is compared with `tolerance`.

    `info`: `success`, `agreed`; `reasoner/accuracy`, `tool/accuracy` (of the last answers); `tool/built`, `tool/ran` (of the last program);
    `reasoner/unparsed`, `tool/unparsed` (replies without an answer in a box, without a program), `tool/limits` (programs that reached a
    limit of the sandbox), `grader/timeouts`, `grader/errors` (comparisons that count as unequal), all counted over the episode.
    """

    config_class = MathToolEnvOptions
    blocking = False
    uses_sandbox = True

    def reset(self, task: Task) -> Observation:
        r"""Start from the problem; of a ground truth that is a whole solution, the last `\boxed{}` is the answer.

        Raises:
            AgentSystemError: the task has no ground truth.
        """
        truth = str(task.ground_truth if task.ground_truth is not None else "")
        if not truth.strip():
            raise AgentSystemError(f"task {task.task_id!r} has no ground truth; math_tool needs reward_model.ground_truth, the answer")
        self._problem, self._truth = task.prompt, last_boxed(truth) or truth.strip()
        self._reasoned, self._program, self._result = "", "", ProgramResult()
        self._acted = False
        self._agreed = self._right = False
        self._correct = {REASONER: False, TOOL_USER: False}
        self._counts: Counter[str] = Counter()
        self._runs: dict[str, ProgramResult] = {}
        self._verdicts: dict[tuple[str, str, float], Verdict] = {}
        self._observation = Observation(self._problem, {"last": {}})
        return self._observation

    def observe(self, agent_id: str) -> Observation:
        """Return the observation at the start of the turn; the same for both."""
        return self._observation

    async def act(self, agent_id: str, action: str) -> Outcome:
        """Grade an answer, or run a program and grade its answer; of a single agent both, paid the mean."""
        config = self.config
        if agent_id == REASONER:
            right = await self._equal(action, self._truth)
            self._acted, self._reasoned, self._correct[REASONER] = True, action.strip(), right
            self._counts["reasoner/unparsed"] += not action.strip()
            local = config.format_reward * bool(action.strip()) + config.match_reward * right
            return Outcome(local=paid(local, config.format_reward, config.match_reward), info=self._info())
        if agent_id == TOOL_USER:
            result = await self._run(action)
            right = await self._equal(result.answer, self._truth, config.tolerance)
            self._program, self._result, self._correct[TOOL_USER] = action, result, right
            self._counts["tool/unparsed"] += not action.strip()
            self._counts["tool/limits"] += result.limited
            local = config.build_reward * result.built + config.run_reward * bool(result.answer) + config.output_reward * right
            return Outcome(local=paid(local, config.build_reward, config.run_reward, config.output_reward), info=self._info())
        if agent_id == SINGLE:
            made = [await self.act(role, part) for role, part in _parts(action).items()]
            given = [outcome.local for outcome in made if isinstance(outcome.local, float)]
            return Outcome(local=sum(given) / len(made) if given else None, info=self._info())
        return Outcome()

    async def score(self, agent_id: str, action: str) -> Outcome:
        """Return the team reward of an answer if it were the team's: 1 if it is right, else 0."""
        if agent_id == SINGLE:
            agent_id = REASONER if self.config.decides == "reasoner" else TOOL_USER
            action = _parts(action)[agent_id]
        answer = (await self._run(action)).answer if agent_id == TOOL_USER else action if agent_id == REASONER else ""
        tolerance = self.config.tolerance if agent_id == TOOL_USER else 0.0
        return Outcome(team=float(bool(answer.strip()) and await self._compare(answer, self._truth, tolerance) is Verdict.EQUAL))

    async def step(self, action: str) -> Outcome:
        """End the turn, and the episode if both answers agree."""
        if not self._acted:
            await self.act(REASONER, action)
        before, first, second = self._right, self._reasoned, self._result.answer
        self._agreed = await self._equal(second, first, self.config.tolerance)
        decided, tolerance = (first, 0.0) if self.config.decides == "reasoner" else (second, self.config.tolerance)
        self._right = await self._equal(decided, self._truth, tolerance)
        last = {"reasoner": _short(first), "tool": _short(self._result.summary), "program": self._program}
        self._observation = Observation(self._problem, {"last": last, "anchor": repr([self._problem, last])})
        outcome = Outcome(team=float(self._right) - float(before), done=self._agreed, info=self._info(), observation=self._observation)
        self._acted = False
        self._reasoned, self._program, self._result = "", "", ProgramResult()
        return outcome

    def fork(self) -> MathToolEnv:
        """Return an independent copy; the caches of verdicts and runs are shared."""
        copy = type(self)(self.config, seed=self.seed)
        vars(copy).update(vars(self))
        copy._correct, copy._counts = dict(self._correct), self._counts.copy()
        return copy

    async def _run(self, program: str) -> ProgramResult:
        """Run a program, once per episode."""
        if not program.strip():
            return ProgramResult()
        if program not in self._runs:
            result = await shared_sandbox().run(program)
            large = len(result.stdout) > PARSED_INLINE
            self._runs.setdefault(program, await asyncio.to_thread(_read, result) if large else _read(result))
        return self._runs[program]

    async def _equal(self, answer: str, other: str, tolerance: float = 0.0) -> bool:
        """Return whether two answers are equal, with `tolerance` for a program's answer; failed comparisons are counted and unequal."""
        if not answer.strip() or not other.strip():
            return False
        verdict = await self._compare(answer, other, tolerance)
        self._counts["grader/timeouts"] += verdict is Verdict.TIMEOUT
        self._counts["grader/errors"] += verdict is Verdict.ERROR
        return verdict is Verdict.EQUAL

    async def _compare(self, answer: str, other: str, tolerance: float) -> Verdict:
        """Return the grader's verdict, computed once per episode."""
        key = (answer, other, tolerance)
        if key not in self._verdicts:
            pool = shared_pool(self.config.grader_workers, self.config.grader_timeout_s)
            verdict = await grade(answer, other, pool, tolerance)
            if verdict in (Verdict.TIMEOUT, Verdict.ERROR):
                logger.warning("grader: %s for %.100r against %.100r; they count as unequal", verdict.value, answer, other)
            self._verdicts.setdefault(key, verdict)
        return self._verdicts[key]

    def _info(self) -> dict[str, float]:
        counted = ("reasoner/unparsed", "tool/unparsed", "tool/limits", "grader/timeouts", "grader/errors")
        return {
            "success": float(self._right),
            "agreed": float(self._agreed),
            "reasoner/accuracy": float(self._correct[REASONER]),
            "tool/accuracy": float(self._correct[TOOL_USER]),
            "tool/built": float(self._result.built),
            "tool/ran": float(self._result.ended),
            **{name: float(self._counts[name]) for name in counted},
        }


def _parts(reply: str) -> dict[str, str]:
    """Return the parts of a single agent's reply by the role that would have written them: the answer in the box, the program."""
    return {REASONER: boxed_answer(reply).action, TOOL_USER: python_block(reply).action}


def _read(result: RunResult) -> ProgramResult:
    """Return the program's result of a run in the sandbox."""
    if not result.ok:
        return ProgramResult(not result.reason.is_no_program, summary=result.failure(LONGEST_SHOWN), limited=result.reason.is_limit)
    lines = result.stdout.strip().splitlines()
    answer = (last_boxed(result.stdout) or lines[-1].strip()) if lines else ""
    return ProgramResult(True, True, answer, answer or "printed nothing")


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]} ..."
