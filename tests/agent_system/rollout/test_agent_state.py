"""Agents with a state of their own: one object per episode, copied for candidates, changed in call order."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest

from agent_system import BaseAgent, BaseEnv, BaseOrchestra, Observation, Outcome, Task, Turn
from agent_system.projection import Projection
from agent_system.rollout import Collector, CollectResult
from verl.protocol.generate import GenerateRequest
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import TreeConfig

TASKS = [Task("a", "go", ground_truth="secret"), Task("b", "run")]
TREE = {"tree": TreeConfig(k=3, select="greedy"), "reward": RewardConfig(team_scope="call")}


class Noter(BaseAgent):
    """Notes the first word of every reply."""

    prompt = "{env_prompt} notes: {notes}."

    def start(self, task: Task) -> None:
        assert task.ground_truth is None
        self.notes = [task.prompt]

    def project(self, text: str) -> Projection:
        self.notes.append(text)
        return Projection(text)

    def messages(self, variables: Any) -> Any:
        return super().messages({**variables, "notes": " ".join(self.notes)})


class Plain(BaseAgent):
    prompt = "{env_prompt} plain"


class Digits(BaseEnv):
    """Pays the digit that an agent says; the observation counts the turns."""

    blocking = False

    def reset(self, task: Task) -> Observation:
        self.turn, self.said = 0, ""
        return Observation("turn 0")

    def act(self, agent_id: str, action: str) -> Outcome:
        self.said += action
        return Outcome(float(action) if action.isdigit() else 0.0)

    def step(self, action: str) -> Outcome:
        self.turn += 1
        return Outcome(done=self.turn == 3, observation=Observation(f"turn {self.turn}"))

    def fork(self) -> Digits:
        return copy.copy(self)


class InTurn(BaseOrchestra):
    agents = ("A", "B")

    async def run(self, turn: Turn) -> str:
        await turn.act("A")
        return (await turn.act("B")).action


class Twice(BaseOrchestra):
    """Two calls of one agent at the same time."""

    agents = ("A",)

    async def run(self, turn: Turn) -> str:
        said = await asyncio.gather(turn.act("A"), turn.act("A"))
        return " ".join(s.action for s in said)


Play = Callable[..., CollectResult]


@pytest.fixture
def play(make_collector: Callable[..., Collector], scripted: Callable[..., Any]) -> Play:
    def run(agents: dict[str, BaseAgent], script: Any, n: int = 1, validate: bool = False, delay: Any = None, **options: Any) -> Any:
        settings = {"orchestra": InTurn(), "env": Digits, "max_steps": 3, "max_failure_rate": 1.0} | options
        engine = script if hasattr(script, "generate") else scripted(script, delay=delay)
        collector = make_collector(engine, agents=agents, **settings)
        return asyncio.run(collector.collect(TASKS, n, step=1, validate=validate))

    return run


def team(kind: type[BaseAgent] = Noter) -> dict[str, BaseAgent]:
    return {"A": kind("A"), "B": Plain("B")}


def digits(_prompt: str, request: GenerateRequest) -> str:
    """Reply with a digit that depends on the seed and, for the candidates of one request, on their order."""
    digits.asked = getattr(digits, "asked", 0) + 1  # type: ignore[attr-defined]
    return str((request.seed + (digits.asked % request.n if request.n > 1 else 0)) % 10)  # type: ignore[attr-defined]


def notes_of(result: CollectResult, episode: int = 0) -> list[str]:
    """Return the notes in the prompts of A."""
    samples = result.episodes[episode].committed
    return [s.prompt_text.partition("notes: ")[2].partition(".")[0] for s in samples if s.agent_id == "A"]


@pytest.mark.parametrize("options", [{}, {"validate": True}, TREE], ids=["parallel", "validation", "tree"])
def test_an_episode_has_an_agent_of_its_own_that_remembers_what_was_committed(play: Play, options: dict[str, Any]) -> None:
    agents = team()
    result = play(agents, digits, n=2, **options)
    assert result.metrics["episode/count"] == 4
    for number, episode in enumerate(result.episodes):
        said = [s.action for s in episode.committed if s.agent_id == "A"]
        first = TASKS[number // 2].prompt
        assert notes_of(result, number) == [first, f"{first} {said[0]}", f"{first} {said[0]} {said[1]}"]
    if options is TREE:
        assert any(not s.committed for s in result.episodes[0].samples)
    assert not hasattr(agents["A"], "notes"), "the run's agent has no state"
