"""Teams that play in the environment of a run: seeds, scores, and batches in which all episodes fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_system import Task
from agent_system.errors import AgentSystemError
from agent_system.evolve.edits import Parts
from agent_system.evolve.evaluate import TeamPlayer
from agent_system.evolve.ledger import SearchLedger
from agent_system.evolve.replay import ReplayClient, ReplayMemory
from agent_system.evolve.search import SearchInputs, TeamSearch
from agent_system.evolve.settings import EvolveSettings
from agent_system.record import EpisodeRecord
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.collector import Collector, EnvFactory
from agent_system.rollout.settings import CollectorSettings
from agent_system.testing import ScriptedEngine, make_tokenizer
from agent_system.workflows.graph import GraphOptions, GraphOrchestra
from agent_system.workflows.graph.team import Team
from agent_system.workflows.math import MathEnv
from verl.protocol.generate import EngineGoneError, SamplingParams

ALONE = Team.parse(
    'team: 1\nagents:\n  Solver: {prompt: "Solve: {env_prompt}", answer: number}\n'
    "do: [{call: Solver, id: a}]\nreturn: a\n"
)
MakePlayer = Callable[..., TeamPlayer]


def tasks(count: int) -> list[Task]:
    """Rows of a file; those of another file have the same ids."""
    return [Task(f"demo:{i}", f"What is {i}?", "demo", "7") for i in range(count)]


@pytest.fixture
def seeds() -> list[int]:
    """Seeds of the environments, in the order of their episodes."""
    return []


@pytest.fixture
def make_player(tmp_path: Path, seeds: list[int]) -> MakePlayer:
    """Build a player whose Solver is right where its seed is odd, with a prompt limit of 256."""
    tokenizer = make_tokenizer()

    class Seeded(MathEnv):
        def __init__(self, config: Any = None, *, seed: int = 0) -> None:
            super().__init__(config, seed=seed)
            seeds.append(seed)

    def make(memory: ReplayMemory | None = None, reply: Any = None, score: str = "team_reward") -> TeamPlayer:
        memory = memory or ReplayMemory()
        engine = ScriptedEngine(tokenizer, reply or (lambda _, r: "7" if r.seed % 2 else "8"))
        client = ReplayClient(engine, "Solver", memory)
        sampling = SamplingParams(max_tokens=64)

        def collector(team: Team) -> Collector:
            path = tmp_path / f"{team.key()}.yaml"
            team.save(path)
            orchestra = GraphOrchestra(GraphOptions(str(path)))
            agents = {name: orchestra.make_agent(name, "math") for name in team.agents}
            bindings: Mapping[str, Any] = {
                name: AgentBinding(name, name, name, client, tokenizer, sampling, sampling, 256)
                for name in team.agents
            }
            env = EnvFactory(Seeded, Seeded.config_class())
            return Collector(orchestra, agents, env, bindings, CollectorSettings(max_failure_rate=1.0))  # type: ignore[arg-type]

        return TeamPlayer(collector, tasks(48), tasks(32), memory, score, 0)

    return make


async def test_held_out_tasks_have_seeds_of_their_own(make_player: MakePlayer, seeds: list[int]) -> None:
    player = make_player()
    await player.play([ALONE], 0, 96)  # two epochs
    of_stream = set(seeds)
    assert len(of_stream) == 96
    player.memory.commit()
    seeds.clear()
    batch = await player.play([ALONE], 0, 32, held_out=True)
    assert len(set(seeds)) == 32 and not set(seeds) & of_stream
    assert batch.engine_calls == 32, "no reply of the stream is one to a held-out task"


class Clumsy:
    """Proposes prompts that are too long, and counts."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, text: str, seed: int) -> tuple[str, int]:
        del text, seed
        self.count += 1
        prompt = f"Think again {self.count}. " * 300 + "{env_prompt}"
        return json.dumps([{"op": "prompt", "at": "Solver", "text": prompt}]), 10


async def test_files_whose_episodes_all_fail_are_ruled_out_and_the_search_goes_on(
    make_player: MakePlayer, tmp_path: Path
) -> None:
    memory = ReplayMemory()
    ledger = SearchLedger(tmp_path / "search", {}, memory)
    settings = EvolveSettings(tasks=32, confirm=16, generations=3, children=2)
    inputs = SearchInputs(
        settings, 0, [ALONE], Parts.of([ALONE]), make_player(memory), num_val=16, ask=Clumsy()
    )
    search = TeamSearch(inputs, ledger)
    chosen = await search.run()
    children = search.archive.candidates[1:]
    # Each falls before its 32nd task, which makes room for a third one in every generation.
    assert chosen.number == 0 and len(children) == 9 and search.generation == 3
    for child in children:
        assert {e.cause for e in child.episodes} == {"PromptTooLongError"}
        assert {e.score for e in child.episodes} == {0.0}


async def test_start_files_whose_episodes_all_fail_are_an_error_with_the_cause(
    make_player: MakePlayer, tmp_path: Path
) -> None:
    memory = ReplayMemory()
    long = Team.parse(ALONE.text().replace("Solve: ", "Solve this. " * 300))
    ledger = SearchLedger(tmp_path / "search", {}, memory)
    inputs = SearchInputs(EvolveSettings(tasks=32), 0, [long], Parts.of([long]), make_player(memory))
    with pytest.raises(AgentSystemError, match=r"score 0 on all 32 tasks.*'PromptTooLongError': 32"):
        await TeamSearch(inputs, ledger).run()


async def test_an_engine_that_is_gone_is_an_error_of_the_player(make_player: MakePlayer) -> None:
    def no_reply(prompt: str, request: Any) -> str:
        raise EngineGoneError("gone")

    with pytest.raises(EngineGoneError):
        await make_player(reply=no_reply).play([ALONE], 0, 4)


@pytest.mark.parametrize("value", [-0.25, 1.5, 10.0, float("nan")])
async def test_a_score_that_is_not_from_0_to_1_is_an_error_that_names_it(
    make_player: MakePlayer, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        EpisodeRecord, "scores", property(lambda record: {"team_reward": 0.0, "points": value})
    )
    with pytest.raises(AgentSystemError, match=rf"evolve\.score=points: an episode has {value:g}, "):
        await make_player(score="points").play([ALONE], 0, 4)


@pytest.mark.parametrize(("total", "score"), [(0.1 + 0.2 + 0.7000001, 1.0), (-1e-9, 0.0), (0.5, 0.5)])
async def test_a_sum_may_miss_the_ends_by_its_rounding(
    make_player: MakePlayer, total: float, score: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        EpisodeRecord, "scores", property(lambda record: {"team_reward": 0.0, "points": total})
    )
    batch = await make_player(score="points").play([ALONE], 0, 4)
    assert [e.score for e in batch.episodes[0]] == [score] * 4
