"""The world: one question about a product, one turn; the team's letter is right or wrong."""

from __future__ import annotations

from dataclasses import dataclass

from agent_system.environment import BaseEnv, Observation, Outcome, Task, paid
from agent_system.errors import AgentSystemError
from agent_system.options import check_floats
from agent_system.registry import EnvRegistry
from agent_system.workflows.lookup.team import CHECKER, FILER, RIGHT, SOLVER
from agent_system.workflows.lookup.world.generate import CODE, SHELF
from agent_system.workflows.lookup.world.products import LETTERS


@dataclass(frozen=True)
class LookupEnvOptions:
    """Options under `env.params`.

    Attributes:
        skill_reward: local reward of a reply that is right for its role, whatever the team answers.
    """

    skill_reward: float = 0.0

    def __post_init__(self) -> None:
        check_floats(self)


@EnvRegistry.register("lookup")
class LookupEnv(BaseEnv):
    """Team reward 1 for the letter that is asked for.

    `info`: `success`; `solver/right` of the last code; `checker/right`, share of right verdicts;
    `filer/right`, in episodes in which the Filer was given the right code.
    """

    config_class = LookupEnvOptions
    blocking = False

    def reset(self, task: Task) -> Observation:
        """Start from the question. `info["asks"]` is `code` or `shelf`."""
        self.check_task(task)
        self._truth = str(task.ground_truth)
        self._code = str(task.extra["code"])
        self._asks = str(task.extra["asks"])
        self._is_right = False
        self._verdicts: list[bool] = []
        self._filed: list[bool] = []
        return Observation(task.prompt, {"asks": self._asks})

    def check_task(self, task: Task) -> None:
        """Raise AgentSystemError for a task that `world/generate.py` does not make."""
        letters = (task.ground_truth, task.extra.get("code"))
        if task.extra.get("asks") not in (CODE, SHELF) or not all(str(x) in (*LETTERS,) for x in letters):
            raise AgentSystemError(
                f"task {task.task_id!r}: the lookup environment needs reward_model.ground_truth "
                f"and extra_info.code, letters of {LETTERS}, and extra_info.asks, {CODE} or {SHELF}"
            )

    def act(self, agent_id: str, action: str) -> Outcome:
        """Judge a reply by the skill of its role."""
        if agent_id == SOLVER:
            self._is_right = action == self._code
            return self._paid(self._is_right)
        if agent_id == CHECKER:
            right = self._is_right_verdict(action)
            self._verdicts.append(right)
            return self._paid(right)
        if agent_id == FILER and self._is_right and self._asks == SHELF:
            self._filed.append(action == self._truth)
            return self._paid(self._filed[-1])
        return Outcome()

    def step(self, action: str) -> Outcome:
        """Grade the team's letter and end the episode."""
        right = float(action == self._truth)
        info = {"success": right, "solver/right": float(self._is_right)}
        if self._verdicts:
            info["checker/right"] = sum(self._verdicts) / len(self._verdicts)
        if self._filed:
            info["filer/right"] = sum(self._filed) / len(self._filed)
        return Outcome(team=right, done=True, info=info)

    def score(self, agent_id: str, action: str) -> Outcome:
        """Return 1 for a reply that is right for its role: the code, the verdict on it, or what is
        asked; of a wrong code no shelf is right.
        """
        if agent_id == SOLVER:
            return Outcome(team=float(action == self._code))
        if agent_id == CHECKER:
            return Outcome(team=float(self._is_right_verdict(action)))
        of_wrong_code = agent_id == FILER and not self._is_right
        return Outcome(team=float(action == self._truth and not of_wrong_code))

    def fork(self) -> LookupEnv:
        """Return an independent copy."""
        copy = type(self)(self.config, seed=self.seed)
        copy._truth = self._truth
        copy._code = self._code
        copy._asks = self._asks
        copy._is_right = self._is_right
        copy._verdicts = list(self._verdicts)
        copy._filed = list(self._filed)
        return copy

    def _is_right_verdict(self, action: str) -> bool:
        return bool(action) and (action == RIGHT) == self._is_right

    def _paid(self, right: bool) -> Outcome:
        return Outcome(local=paid(self.config.skill_reward * right, self.config.skill_reward))
