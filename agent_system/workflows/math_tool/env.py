"""The world: one answer by reasoning and one with programs per turn, until they agree."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

from agent_system.environment import BaseEnv, Observation, Outcome, Task, paid
from agent_system.errors import AgentSystemError
from agent_system.options import check_choice, check_floats
from agent_system.registry import EnvRegistry
from agent_system.workflows.math.world.grade import grade, shared_pool
from agent_system.workflows.math.world.grader_pool import Verdict
from agent_system.workflows.math.world.truth import truth_text
from agent_system.workflows.math_tool.team import REASONER, TOOL_USER
from agent_system.workflows.single import SINGLE

logger = logging.getLogger(__name__)

LONGEST_SHOWN = 200
NAMES = {REASONER: "reasoner", TOOL_USER: "tool", SINGLE: "single"}  # in metrics
DECIDERS = ("reasoner", "tool")


@dataclass(frozen=True)
class MathToolEnvOptions:
    """Options under `env.params`.

    Attributes:
        decides: role whose answer is the team's where they do not agree: reasoner | tool; without
            an answer of that role the team is wrong.
        format_reward, match_reward: local, for an answer in a box and for a right one.
        tolerance: relative, for a number of the Tool-user, compared with the truth or the
            Reasoner's answer; integers are exact.
        grader_workers: maximum number of grader processes; 0 means the number of cores, at most
            four.
        grader_timeout_s: CPU seconds for a comparison; an answer that takes longer scores 0.
    """

    decides: str = "reasoner"
    format_reward: float = 0.2
    match_reward: float = 0.8
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
        check_floats(self)


@EnvRegistry.register("math_tool")
class MathToolEnv(BaseEnv):
    r"""Environment that grades both answers and, at the end of a turn, compares them and determines
    the team's answer.

    Two answers agree when the grader finds them equal. The team's answer is the common one, else
    that of the role `decides`; a missing answer counts as wrong, so that silence earns no more than
    an error. The team's reward is the change of correctness (0 or 1) of its answer, so that an
    episode earns 1 if the last answer is right. A single agent answers once, and its answer is the
    team's.

    `info`: `success`, `agreed`; `reasoner/accuracy`, `tool/accuracy` (of the last answers, of a
    team); `reasoner/unparsed`, `tool/unparsed` (replies without an answer in a box),
    `grader/timeouts`, `grader/errors` (comparisons that count as unequal), all counted over the
    episode.
    """

    config_class = MathToolEnvOptions
    blocking = False

    def check_task(self, task: Task) -> None:
        """Raise AgentSystemError for a ground truth that is no answer."""
        truth_text(task)

    def reset(self, task: Task) -> Observation:
        r"""Start from the problem; of a ground truth that is a whole solution, the last `\boxed{}`
        is the answer.

        Raises:
            AgentSystemError: the task has no ground truth that is an answer.
        """
        self._truth = truth_text(task)
        self._problem = task.prompt
        self._answers: dict[str, str] = {}  # of this turn, by agent
        self._agreed = self._right = False
        self._correct: dict[str, bool] = {}
        self._counts: Counter[str] = Counter()
        self._verdicts: dict[tuple[str, str, float], Verdict] = {}
        self._observation = Observation(self._problem, {"last": {}})
        return self._observation

    def observe(self, agent_id: str) -> Observation:
        """Return the observation at the start of the turn; the same for both."""
        return self._observation

    async def act(self, agent_id: str, action: str) -> Outcome:
        """Grade an answer."""
        if agent_id not in NAMES:
            return Outcome()
        config = self.config
        answer = action.strip()
        right = await self._equal(answer, self._truth, self._tolerance(agent_id))
        self._answers[agent_id], self._correct[agent_id] = answer, right
        self._counts[f"{NAMES[agent_id]}/unparsed"] += not answer
        local = config.format_reward * bool(answer) + config.match_reward * right
        return Outcome(local=paid(local, config.format_reward, config.match_reward), info=self._info())

    async def score(self, agent_id: str, action: str) -> Outcome:
        """Return the team reward of an answer if it were the team's: 1 if it is right, else 0."""
        is_answer = agent_id in NAMES and bool(action.strip())
        right = (
            is_answer
            and await self._compare(action.strip(), self._truth, self._tolerance(agent_id)) is Verdict.EQUAL
        )
        return Outcome(team=float(right))

    async def step(self, action: str) -> Outcome:
        """End the turn, and the episode if both answers agree, or a single agent has answered."""
        if REASONER not in self._answers and SINGLE not in self._answers:
            await self.act(REASONER, action)
        before = self._right
        answers = self._answers
        first = answers.get(REASONER, "")
        second = answers.get(TOOL_USER, "")
        self._agreed = await self._equal(second, first, self.config.tolerance)
        decider = (
            SINGLE if SINGLE in answers else REASONER if self.config.decides == "reasoner" else TOOL_USER
        )
        self._right = await self._equal(answers.get(decider, ""), self._truth, self._tolerance(decider))
        last = {"reasoner": _short(first), "tool": _short(second)}
        self._observation = Observation(self._problem, {"last": last, "anchor": repr([self._problem, last])})
        self._answers = {}
        is_done = self._agreed or bool(answers.get(SINGLE))
        return Outcome(
            team=float(self._right) - float(before),
            done=is_done,
            info=self._info(),
            observation=self._observation,
        )

    def fork(self) -> MathToolEnv:
        """Return an independent copy; the cache of verdicts is shared."""
        copy = type(self)(self.config, seed=self.seed)
        vars(copy).update(vars(self))
        copy._answers = dict(self._answers)
        copy._correct = dict(self._correct)
        copy._counts = self._counts.copy()
        return copy

    def _tolerance(self, agent_id: str) -> float:
        """Return the tolerance for an agent's answer; without tools it must be exact."""
        return 0.0 if agent_id == REASONER else self.config.tolerance

    async def _equal(self, answer: str, other: str, tolerance: float = 0.0) -> bool:
        """Return whether two answers are equal, with `tolerance` for numbers; failed comparisons
        are counted and unequal.
        """
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
                logger.warning(
                    "grader: %s for %.100r against %.100r; they count as unequal",
                    verdict.value,
                    answer,
                    other,
                )
            self._verdicts.setdefault(key, verdict)
        return self._verdicts[key]

    def _info(self) -> dict[str, float]:
        counted = [
            *(f"{NAMES[agent_id]}/unparsed" for agent_id in self._correct),
            "grader/timeouts",
            "grader/errors",
        ]
        return {
            "success": float(self._right),
            **({} if SINGLE in self._correct else {"agreed": float(self._agreed)}),
            **{f"{NAMES[agent_id]}/accuracy": float(right) for agent_id, right in self._correct.items()},
            **{name: float(self._counts[name]) for name in counted},
        }


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]} ..."
