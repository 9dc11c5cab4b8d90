"""Agents with a state of their own: one object per episode, copied for candidates, changed in call order."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from agent_system import (
    AgentSystemError,
    BaseAgent,
    BaseEnv,
    BaseOrchestra,
    Observation,
    Outcome,
    SearchMemory,
    SimpleMemory,
    SummaryMemory,
    Task,
    Turn,
)
from agent_system.projection import Projection
from agent_system.rollout import Collector, CollectResult
from agent_system.rollout.endpoint import Endpoint
from agent_system.rollout.remote import RemoteBinding
from tests.chat_server import ChatServer, completion
from verl.protocol.generate import GenerateRequest, SamplingParams
from verl.trainer.config.api import ApiConfig
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


Play = Callable[..., CollectResult]


@pytest.fixture
def play(make_collector: Callable[..., Collector], scripted: Callable[..., Any]) -> Play:
    def run(
        agents: dict[str, BaseAgent],
        script: Any,
        n: int = 1,
        validate: bool = False,
        delay: Any = None,
        **options: Any,
    ) -> Any:
        settings = {"orchestra": InTurn(), "env": Digits, "max_steps": 3, "max_failure_rate": 1.0} | options
        engine = script if hasattr(script, "generate") else scripted(script, delay=delay)
        collector = make_collector(engine, agents=agents, **settings)
        return asyncio.run(collector.collect(TASKS, n, step=1, validate=validate))

    return run


def team(kind: type[BaseAgent] = Noter) -> dict[str, BaseAgent]:
    return {"A": kind("A"), "B": Plain("B")}


def digits(_prompt: str, request: GenerateRequest) -> str:
    """Reply with a digit that depends on the seed."""
    return str(request.seed % 10)


def notes_of(result: CollectResult, episode: int = 0) -> list[str]:
    """Return the notes in the prompts of A."""
    samples = result.episodes[episode].committed
    return [
        s.request.prompt_text.partition("notes: ")[2].partition(".")[0] for s in samples if s.agent_id == "A"
    ]


@pytest.mark.parametrize("options", [{}, {"validate": True}, TREE], ids=["parallel", "validation", "tree"])
def test_an_episode_has_an_agent_of_its_own_that_remembers_what_was_committed(
    play: Play, options: dict[str, Any]
) -> None:
    agents = team()
    result = play(agents, digits, n=2, **options)
    assert result.metrics["episode/count"] == 4
    for number, episode in enumerate(result.episodes):
        said = [s.action for s in episode.committed if s.agent_id == "A"]
        first = TASKS[number // 2].prompt
        assert notes_of(result, number) == [first, f"{first} {said[0]}", f"{first} {said[0]} {said[1]}"]
    if options is TREE:
        assert any(not s.identity.committed for s in result.episodes[0].samples)
    assert not hasattr(agents["A"], "notes"), "the run's agent has no state"


class Late(BaseOrchestra):
    """Two calls of one agent at the same time, then a third."""

    agents = ("A",)

    async def run(self, turn: Turn) -> str:
        await asyncio.gather(turn.act("A"), turn.act("A"))
        return (await turn.act("A")).action


@pytest.mark.parametrize("options", [{}, TREE], ids=["parallel", "tree"])
def test_simultaneous_calls_change_the_state_in_call_order_whichever_reply_is_first(
    play: Play, options: dict[str, Any]
) -> None:
    async def second_first(request: GenerateRequest) -> None:
        await asyncio.sleep(0.05 if request.request_id.endswith(".0") else 0)

    def said(_prompt: str, request: GenerateRequest) -> str:
        return str(request.seed % 10)

    usual, turned = (
        play({"A": Noter("A")}, said, orchestra=Late(), delay=d, **options) for d in (None, second_first)
    )
    assert [notes_of(usual, i) for i in (0, 1)] == [notes_of(turned, i) for i in (0, 1)]
    first, second, third = [s.action for s in usual.episodes[0].committed][:3]
    assert notes_of(usual)[:3] == ["go", "go", f"go {first} {second}"]
    assert notes_of(usual)[3] == f"go {first} {second} {third}"


class Locked(Noter):
    def start(self, task: Task) -> None:
        super().start(task)
        if task.prompt == "run":
            self.lock = threading.Lock()


@pytest.mark.parametrize("options", [{}, TREE], ids=["parallel", "tree"])
def test_a_state_that_cannot_be_copied_costs_its_episode(play: Play, options: dict[str, Any]) -> None:
    result = play(team(Locked), digits, **options)
    assert result.episodes[0].failure is None
    assert "the state of agent 'A' cannot be copied: its attribute 'lock' of type lock" in str(
        result.episodes[1].failure
    )


def test_a_state_that_cannot_be_copied_is_found_before_a_model_loads(
    make_collector: Any, scripted: Any
) -> None:
    class Early(Noter):
        def __init__(self, agent_id: str) -> None:
            super().__init__(agent_id)
            self.lock = threading.Lock()

    with pytest.raises(AgentSystemError, match="attribute 'lock' of type lock"):
        make_collector(scripted(digits), orchestra=InTurn(), agents=team(Early), env=Digits)
    collector = make_collector(scripted(digits), orchestra=InTurn(), agents=team(Locked), env=Digits)
    assert collector.first_prompt_lengths("A", TASKS[:1])[0] > 5
    with pytest.raises(AgentSystemError, match="attribute 'lock'"):
        collector.first_prompt_lengths("A", TASKS)


def test_an_agent_can_be_pickled_with_its_state() -> None:
    agent = Noter("A")
    agent.start(Task("a", "go"))
    agent.project("1")
    twin = pickle.loads(pickle.dumps(agent))
    twin.project("2")
    assert (agent.notes, twin.notes) == (["go", "1"], ["go", "1", "2"])


class Windowed(BaseAgent):
    prompt = "{env_prompt} memory: {memory}."
    memory_class = SimpleMemory


class Searching(BaseAgent):
    prompt = "{env_prompt} memory: {memory}."
    memory_class = SearchMemory


def memories(result: CollectResult) -> list[str]:
    return [
        s.request.prompt_text.partition("memory: ")[2].partition(".<")[0]
        for s in result.episodes[0].committed
        if s.agent_id == "A"
    ]


def test_the_memory_of_an_agent_holds_its_own_calls_beside_the_teams(play: Play) -> None:
    result = play(team(Windowed), digits, history_length=1)
    a = [s.action for s in result.episodes[0].committed if s.agent_id == "A"]
    assert [m.rstrip(".") for m in memories(result)] == [
        "", f"[Observation 1: 'turn 0', Action 1: '{a[0]}']",
        f"[Observation 2: 'turn 1', Action 2: '{a[1]}']",
    ]  # fmt: skip
    found = memories(play(team(Searching), digits))
    assert f"<search>{a[0]}</search> <information>turn 1</information>" in found[1]


@pytest.mark.parametrize("options", [{}, TREE], ids=["parallel", "tree"])
def test_the_result_of_simultaneous_calls_is_the_next_observation(
    play: Play, options: dict[str, Any]
) -> None:
    class Twice(BaseOrchestra):
        agents = ("A",)

        async def run(self, turn: Turn) -> str:
            first, _ = await asyncio.gather(turn.act("A"), turn.act("A"))
            return first.action

    result = play({"A": Searching("A")}, digits, orchestra=Twice(), **options)
    a, b = (
        f"<search>{s.action}</search> <information>turn 1</information>"
        for s in result.episodes[0].committed[:2]
    )
    shown = [text.splitlines() for text in memories(result)]
    assert not "".join(shown[0] + shown[1]).strip(".")
    assert [line.partition(": ")[2].rstrip(".") for line in shown[2]] == [a, b] and shown[2] == shown[3]


class Summing(Windowed):
    memory_class = SummaryMemory


class Silent(SummaryMemory):
    trained = False


class Untrained(Windowed):
    memory_class = Silent


def summed(prompt: str, request: GenerateRequest) -> str:
    return "all so far" if "replaces it" in prompt else str(request.seed % 10)


@pytest.mark.parametrize(
    "options", [{"reward": RewardConfig(team_scope="call")}, TREE], ids=["parallel", "tree"]
)
@pytest.mark.parametrize("kind", [Summing, Untrained])
def test_an_agent_writes_a_summary_that_is_credited_once(
    play: Play, options: dict[str, Any], kind: type[BaseAgent]
) -> None:
    result = play(team(kind), summed, history_length=1, **options)
    episode = result.episodes[0]
    mine = [s for s in episode.committed if s.agent_id == "A"]
    assert [s.identity.summary for s in mine] == [False, True, False, True, False]
    assert [s.identity.call for s in mine] == [0, 0, 1, 0, 1] and len({s.request.seed for s in mine}) == 5
    assert (
        all("Summary: all so far" in mine[i].request.prompt_text for i in (2, 3, 4))
        and "Action 2" in mine[3].request.prompt_text
    )
    assert [s.identity.trained for s in mine if s.identity.summary] == [kind is Summing] * 2
    assert all(mine[i].rewards.reward == mine[i + 1].rewards.reward for i in (1, 3))
    if options is not TREE:
        assert sum(s.rewards.step_reward for s in mine) <= episode.team_reward
        assert sum(s.rewards.act_reward or 0.0 for s in episode.committed) == episode.team_reward
    assert sum(not s.identity.committed for s in episode.samples if s.identity.summary) == 0


def test_an_agent_behind_an_api_has_a_state_and_writes_summaries(play: Play) -> None:
    class Both(Noter):
        memory_class = SummaryMemory
        prompt = "{env_prompt} notes: {notes}. memory: {memory}."

    sampling = SamplingParams(20)
    server = ChatServer(
        lambda body: completion("all so far" if "replaces it" in body["messages"][0]["content"] else "3")
    )
    try:
        binding = RemoteBinding("A", "api:x", Endpoint("A", ApiConfig(server.url, "x")), sampling, sampling)
        result = play({"A": Both("A"), "B": Plain("B")}, digits, history_length=1, remote={"A": binding})
    finally:
        server.stop()
    for task, episode in zip(TASKS, result.episodes, strict=True):
        mine = [s for s in episode.samples if s.agent_id == "A"]
        assert [(s.identity.summary, s.text) for s in mine] == [
            (False, "3"),
            *[(True, "all so far"), (False, "3")] * 2,
        ]
        assert f"notes: {task.prompt} 3 3. memory: Summary: all so far." in mine[
            -1
        ].request.prompt_text and not any(s.identity.trained for s in mine)


def test_a_teams_memory_cannot_be_a_summary(make_collector: Any, scripted: Any) -> None:
    class Whose(InTurn):
        memory_class = SummaryMemory

    with pytest.raises(AgentSystemError, match="memory_class of an agent"):
        make_collector(scripted(digits), orchestra=Whose(), agents=team(), env=Digits)


class Forgetful(BaseAgent):
    """Changes itself, but all episodes share it."""

    def __init__(self, agent_id: str) -> None:
        super().__init__(agent_id)
        self.seen: list[str] = []

    def project(self, text: str) -> Projection:
        self.seen.append(text)
        return Projection(text)


def test_an_agent_that_changes_without_start_is_named_once(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    play({"A": Forgetful("A"), "B": Plain("B")}, digits, n=2)
    (warning,) = (r.getMessage() for r in caplog.records if "start" in r.getMessage())
    assert (
        warning.startswith("agent 'A' changed its attribute 'seen' during an episode")
        and "start(self, task)" in warning
    )
    caplog.clear()
    play(team(), digits)
    assert not caplog.records
