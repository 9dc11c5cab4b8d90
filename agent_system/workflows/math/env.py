"""The world: one problem, one turn; the team's answer is graded right or wrong."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

from agent_system.environment import BaseEnv, Observation, Outcome, Task, paid
from agent_system.errors import AgentSystemError
from agent_system.options import check_floats
from agent_system.registry import EnvRegistry
from agent_system.workflows.math.team import APPROVE, REJECT, SOLVER, VERIFIER
from agent_system.workflows.math.world.grade import grade, shared_pool
from agent_system.workflows.math.world.grader_pool import Verdict
from agent_system.workflows.math.world.truth import truth_text
from agent_system.workflows.single import SINGLE

logger = logging.getLogger(__name__)
PROPOSERS = (SOLVER, SINGLE)


@dataclass(frozen=True)
class MathEnvOptions:
    """Options under `env.params`.

    Attributes:
        verdict_reward: local reward of the Verifier for a right verdict; a wrong or missing verdict
            gets 0.
        grader_workers: maximum number of grader processes; 0 means the number of cores, at most
            four.
        grader_timeout_s: CPU seconds for a comparison; an answer that takes longer scores 0.
    """

    verdict_reward: float = 0.0
    grader_workers: int = 0
    grader_timeout_s: float = 3.0

    def __post_init__(self) -> None:
        check_floats(self)
        if self.grader_timeout_s <= 0 or self.grader_workers < 0:
            raise AgentSystemError(
                f"env.params.grader_timeout_s must be positive and grader_workers 0 or more, "
                f"found {self.grader_timeout_s:g} and {self.grader_workers}"
            )


@EnvRegistry.register("math")
class MathEnv(BaseEnv):
    """Environment that grades the answer (team reward 1 or 0) and records the solutions and
    verdicts.

    `info`: `success`; `solver/accuracy_loop_<k>` of the k-th solution, in episodes that have one;
    `solver/mended` and `solver/spoilt` (the first solution was wrong and the last one is right, or
    the reverse; episodes with several solutions); `verifier/precision` (share of right ones among
    approved solutions, in episodes with an approval), `verifier/recall` (share of right solutions
    that were approved), `verifier/specificity` (share of wrong solutions that were rejected; unlike
    precision it does not rise with the Solver's accuracy), `verifier/accuracy` (share of right
    verdicts; a missing one counts as wrong), `verifier/approvals`; `grader/timeouts`,
    `grader/errors` (answers that scored 0 because they could not be compared).
    """

    config_class = MathEnvOptions
    blocking = False

    def check_task(self, task: Task) -> None:
        """Raise AgentSystemError for a ground truth that is no answer."""
        if task.judged:
            truth_text(task)

    def reset(self, task: Task) -> Observation:
        r"""Start from the problem; of a ground truth that is a whole solution, the last `\boxed{}`
        is the answer.

        Raises:
            AgentSystemError: the task has no ground truth that is an answer.
        """
        self._truth = truth_text(task) if task.judged else None
        self._graded: dict[str, Verdict] = {}
        self._solutions: list[bool] = []
        self._judgements: list[tuple[str, bool]] = []
        return Observation(task.prompt)

    async def act(self, agent_id: str, action: str) -> Outcome:
        """Grade a proposed solution; reward a right verdict."""
        if agent_id in PROPOSERS:
            self._solutions.append(await self._is_right(action))
        elif agent_id == VERIFIER and self._solutions:
            right = self._solutions[-1]
            self._judgements.append((action, right))
            return Outcome(
                local=paid(
                    self.config.verdict_reward * _is_right_verdict(action, right), self.config.verdict_reward
                )
            )
        return Outcome()

    async def step(self, action: str) -> Outcome:
        """Grade the team's answer and end the episode."""
        right = await self._is_right(action)
        return Outcome(team=float(right), done=True, info=self._info(right))

    async def score(self, agent_id: str, action: str) -> Outcome:
        """Return the team reward of a proposed solution if it were the team's answer."""
        return Outcome(team=float(await self._is_right(action)) if agent_id in PROPOSERS else 0.0)

    @classmethod
    def question(cls, text: str) -> Task:
        """Return the task of an arbitrary problem, without a ground truth."""
        return Task("question", text, judged=False)

    def fork(self) -> MathEnv:
        """Return an independent copy."""
        copy = type(self)(self.config, seed=self.seed)
        copy._truth = self._truth
        copy._graded = dict(self._graded)
        copy._solutions = list(self._solutions)
        copy._judgements = list(self._judgements)
        return copy

    async def _is_right(self, answer: str) -> bool:
        if self._truth is None:
            return False
        if answer not in self._graded:
            pool = shared_pool(self.config.grader_workers, self.config.grader_timeout_s)
            verdict = self._graded[answer] = await grade(answer, self._truth, pool)
            if verdict in (Verdict.TIMEOUT, Verdict.ERROR):
                logger.warning(
                    "grader: %s for the answer %.100r against %.100r; it scores 0",
                    verdict.value,
                    answer,
                    self._truth,
                )
        return self._graded[answer] is Verdict.EQUAL

    def _info(self, right: bool) -> dict[str, float]:
        info: dict[str, float] = {"success": float(right)}
        for loop, solution in enumerate(self._solutions, 1):
            info[f"solver/accuracy_loop_{loop}"] = float(solution)
        if len(self._solutions) > 1:
            info["solver/mended"] = float(right and not self._solutions[0])
            info["solver/spoilt"] = float(self._solutions[0] and not right)
        approved = [solution for action, solution in self._judgements if action == APPROVE]
        actions_on_right = [action for action, solution in self._judgements if solution]
        if self._judgements:
            info["verifier/approvals"] = float(len(approved))
            info["verifier/accuracy"] = sum(_is_right_verdict(a, s) for a, s in self._judgements) / len(
                self._judgements
            )
        if approved:
            info["verifier/precision"] = sum(approved) / len(approved)
        on_wrong = [action for action, solution in self._judgements if not solution]
        if on_wrong:
            info["verifier/specificity"] = on_wrong.count(REJECT) / len(on_wrong)
        if actions_on_right:
            info["verifier/recall"] = actions_on_right.count(APPROVE) / len(actions_on_right)
        outcomes = Counter(self._graded.values())
        info["grader/timeouts"] = float(outcomes[Verdict.TIMEOUT])
        info["grader/errors"] = float(outcomes[Verdict.ERROR])
        return info


def _is_right_verdict(action: str, right: bool) -> bool:
    return bool(action) and (action == APPROVE) == right
