"""The conformance test passes sound environments and names what is wrong with others."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from agent_system import AgentSystemError, BaseEnv, Observation, Outcome, Task
from agent_system.testing import check_env

TASK = Task("t", "walk")
ACTIONS = [("A", "left"), "go", ("B", "nonsense"), "go", ("A", "right"), "end"]


class Walk(BaseEnv):
    """A walk with a seeded wind."""

    blocking = False

    def reset(self, task: Task) -> Observation:
        self.random = random.Random(self.seed)
        self.path = [0]
        return Observation(task.prompt)

    def observe(self, agent_id: str) -> Observation:
        return Observation(f"{agent_id} at {self.path[-1]}", {"anchor": str(self.path[-1])})

    def act(self, agent_id: str, action: str) -> Outcome:
        move = {"left": -1, "right": 1}.get(action, 0)
        self.path.append(self.path[-1] + move)
        return Outcome(0.5 * abs(move), 0.0 if move else -1.0, info={"illegal": move == 0})

    def score(self, agent_id: str, action: str) -> Outcome:
        return Outcome(0.25)

    def step(self, action: str) -> Outcome:
        self.path.append(self.path[-1] + self.random.choice([-1, 0, 1]))
        return Outcome(
            1.0, {"A": 0.5}, action == "end", {"success": action == "end"}, Observation(f"at {self.path[-1]}")
        )

    def fork(self) -> Walk:
        twin = copy.copy(self)
        twin.path, twin.random = list(self.path), random.Random()
        twin.random.setstate(self.random.getstate())
        return twin


class Waits(Walk):
    blocking = True

    async def step(self, action: str) -> Outcome:  # type: ignore[override]
        return super().step(action)


class WithoutFork(Walk):
    fork = BaseEnv.fork  # type: ignore[assignment]


class AsksForAnOrder(Walk):
    def act(self, agent_id: str, action: str) -> Outcome:
        if action == "right" and "left" not in getattr(self, "made", ()):
            raise ValueError("left goes first")
        self.made = (*getattr(self, "made", ()), action)
        return super().act(agent_id, action)


def check(env: type[BaseEnv], **options: Any) -> None:
    check_env(lambda seed: env(seed=seed), TASK, ACTIONS, **options)


@pytest.mark.parametrize("env", [Walk, Waits, WithoutFork, AsksForAnOrder])
def test_a_sound_environment_passes(env: type[BaseEnv]) -> None:
    check(env, team_range=(0.0, 1.0), local_range=(-1.0, 0.5))


class SharesThePath(Walk):
    def fork(self) -> Walk:
        twin = super().fork()
        twin.path = self.path
        return twin


class SharesTheWind(Walk):
    def fork(self) -> Walk:
        twin = super().fork()
        twin.random = self.random
        return twin


class SharesWhatOnlyOtherWaysTouch(Walk):
    """What all forks write in the order of the actions is there in each of them; another order finds what is
    not its own.
    """

    def reset(self, task: Task) -> Observation:
        self.marks: set[str] = set()
        return super().reset(task)

    def act(self, agent_id: str, action: str) -> Outcome:
        self.marks.add(action)
        return Outcome(-1.0 if action == "right" and "left" in self.marks else 0.0)


class ForksWithoutHistory(Walk):
    def fork(self) -> Walk:
        twin = super().fork()
        twin.path = [0]
        return twin


class ForksOnce(Walk):
    def reset(self, task: Task) -> Observation:
        self.task = task
        return super().reset(task)

    def fork(self) -> Walk:
        twin = type(self)(seed=self.seed)
        twin.path, twin.random = list(self.path), random.Random()
        twin.random.setstate(self.random.getstate())
        twin.name = self.task.task_id  # of which the twin has none
        return twin


class ForksShareLater(Walk):
    forks = 0

    def fork(self) -> Walk:
        twin = super().fork()
        twin.forks = self.forks + 1
        if self.forks:
            twin.path = [0]
        return twin


class Special(Walk):
    def fork(self) -> Walk:
        twin = super().fork()
        twin.__class__ = Walk
        return twin


class NoSeed(Walk):
    def reset(self, task: Task) -> Observation:
        return Observation(f"{super().reset(task).text} {random.random()}")


class Remembers(Walk):
    starts = 0

    def reset(self, task: Task) -> Observation:
        super().reset(task)
        self.starts += 1
        return Observation(f"start {self.starts}")


class Handle(Walk):
    def reset(self, task: Task) -> Observation:
        self.hook = lambda: None
        return super().reset(task)


class ScoreMoves(Walk):
    def score(self, agent_id: str, action: str) -> Outcome:
        self.path.append(99)
        return Outcome()


class Pays(Walk):
    def act(self, agent_id: str, action: str) -> Outcome:
        return Outcome(float("nan"))


class NotDone(Walk):
    def step(self, action: str) -> Outcome:
        return Outcome(done=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (SharesThePath, "in the origin after its copies had been played|in a pickled copy"),
        (SharesTheWind, "copied before action"),
        (SharesWhatOnlyOtherWaysTouch, "in reverse.*differs from a separate object.*share no mutable state"),
        (ForksWithoutHistory, "in a fork, when copied before action"),
        (ForksShareLater, "in a fork of a fork, when copied before action"),
        (Special, r"Special.fork\(\) returned a Walk; make the copy with type\(self\)"),
        (NoSeed, "reset had another outcome after another reset"),
        (Remembers, "start 1.*start 2"),
        (Handle, "cannot be pickled before action 0"),
        (ScoreMoves, "score must change nothing"),
        (Pays, r"Pays.act\(\) after action 0, \('A', 'left'\), gave team=nan"),
        (NotDone, "gave done=None"),
    ],
)
def test_what_is_wrong_is_named(env: type[BaseEnv], words: str) -> None:
    with pytest.raises(AgentSystemError, match=words):
        check(env)


def test_a_fork_that_cannot_be_forked_is_found() -> None:
    with pytest.raises(AttributeError, match="task"):
        check(ForksOnce)


def test_a_reward_outside_its_range_is_named() -> None:
    with pytest.raises(AgentSystemError, match=r"local=-1\.0; expected 0 to 1"):
        check(Walk, local_range=(0.0, 1.0))


def test_a_seed_that_starts_elsewhere_in_a_new_object_is_found() -> None:
    seeds = iter(range(100))
    with pytest.raises(AgentSystemError, match="in another object with the same seed"):
        check_env(lambda _seed: Walk(seed=next(seeds)), TASK, ACTIONS)
