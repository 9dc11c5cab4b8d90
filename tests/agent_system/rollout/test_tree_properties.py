"""Properties of trees for any replies in any order, checked by replaying the record on a separate state."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_system import BaseOrchestra, Task, Turn
from agent_system.record import EpisodeRecord, Sample
from agent_system.rollout import CollectResult
from agent_system.testing import ScriptedEngine
from verl.protocol.generate import GenerateRequest, Generation
from verl.trainer.config.run import TreeConfig

from .test_tree import CALL, Adder, Speaker

AGENTS = ("A", "B", "C")
END, BREAKS, ABORTED = "9", "13", "0"
ALPHA = CALL.alpha


@dataclass(frozen=True)
class Case:
    """A team, a world and what is replied.

    Attributes:
        stages: of a turn; the agents of a stage speak at the same time.
        tasks, episodes: how many, and episodes of each.
        k, select: of the tree.
        odd: replies that end the episode, break the world or are aborted, one in so many.
        seed: of the replies and of their delays.
    """

    stages: tuple[tuple[str, ...], ...]
    tasks: int
    episodes: int
    k: int
    select: str
    odd: int
    seed: int

    def value(self, request_id: str, number: int) -> str:
        """What the engine says."""
        rng = Random(f"{self.seed}/{request_id}/{number}")
        if rng.randrange(self.odd) == 0:
            return rng.choice([END, BREAKS, ABORTED])
        return str(rng.randint(1, 8))


CASES = st.builds(
    Case,
    stages=st.lists(
        st.lists(st.sampled_from(AGENTS), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3
    ).map(tuple),
    tasks=st.integers(1, 2),
    episodes=st.integers(1, 2),
    k=st.integers(2, 5),
    select=st.sampled_from(["greedy", "greedy", "first", "random", "softmax"]),
    odd=st.sampled_from([3, 8, 1000]),
    seed=st.integers(0, 10_000),
)


class Stages(BaseOrchestra):
    agents = AGENTS

    def __init__(self, stages: tuple[tuple[str, ...], ...]) -> None:
        super().__init__()
        self.stages = stages

    async def run(self, turn: Turn) -> str:
        for stage in self.stages:
            await asyncio.gather(*(turn.act(agent) for agent in stage))
        return "/"


class Engine(ScriptedEngine):
    """Says what a case says; `ABORTED` comes back as an aborted reply."""

    def __init__(self, tokenizer: Any, case: Case, jitter: bool) -> None:
        self.said: dict[str, int] = defaultdict(int)

        def script(_prompt: str, request: GenerateRequest) -> str:
            self.said[request.request_id] += 1
            return case.value(request.request_id, self.said[request.request_id] - 1)

        async def delay(request: GenerateRequest) -> None:
            await asyncio.sleep(Random(f"{case.seed}/{request.request_id}").random() * 0.004)

        super().__init__(tokenizer, script, **({"delay": delay} if jitter else {}))

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        replies = await super().generate(request)
        zero = tuple(self.tokenizer.encode(ABORTED, add_special_tokens=False))
        return [Generation((), (), "abort") if r.token_ids[:-1] == zero else r for r in replies]


@pytest.fixture
def collect(make_collector: Any, tokenizer: Any) -> Any:
    def run(case: Case, jitter: bool = False) -> CollectResult:
        agents = {name: Speaker(name) for name in AGENTS}
        collector = make_collector(
            Engine(tokenizer, case, jitter), orchestra=Stages(case.stages), agents=agents, env=Adder,
            max_steps=2, max_failure_rate=1.0,
            reward=CALL, tree=TreeConfig(k=case.k, select=case.select, temperature=0.5),
        )  # fmt: skip
        tasks = [Task(f"task {i}", "go", "worlds") for i in range(case.tasks)]
        Adder.alive = 0
        return asyncio.run(collector.collect(tasks, case.episodes, step=1))

    return run


def scored(case: Case, request_id: str) -> dict[int, str]:
    """The replies of a call that can be scored."""
    said = {number: case.value(request_id, number) for number in range(case.k)}
    return {number: value for number, value in said.items() if value not in (BREAKS, ABORTED)}


class Replay:
    """The world of an episode, played once more from what the engine said; `check` compares with the record
    as it goes.
    """

    def __init__(self, case: Case, episode: EpisodeRecord) -> None:
        self.case, self.episode = case, episode
        self.said: tuple[str, ...] = ()
        self.team = 0.0
        self.left_out = 0
        self.checked = 0
        self.calls: dict[tuple[int, int], list[Sample]] = defaultdict(list)
        for sample in episode.samples:
            self.calls[(sample.identity.turn, sample.identity.call)].append(sample)

    def check(self) -> None:
        for turn in (1, 2):
            number = 0
            heard: list[str] = []
            for stage in self.case.stages:
                ids = [f"{self.episode.traj_uid}/{turn}.{number + i}" for i in range(len(stage))]
                if any(not scored(self.case, request_id) for request_id in ids):
                    assert (
                        "candidates of" in self.episode.failure or "aborted or empty" in self.episode.failure
                    )
                    return
                chosen = [self.call(turn, number + i, agent, ids[i], heard) for i, agent in enumerate(stage)]
                heard += [f"{agent}: {value}" for agent, value in zip(stage, chosen, strict=True)]
                number += len(stage)
                if self.commit(chosen):
                    return self.end(turn)
            self.said += ("/",)
            self.team += 100.0
        self.end(2)

    def call(self, turn: int, number: int, agent: str, request_id: str, heard: Sequence[str]) -> str:
        """Check one call's group and return what was chosen."""
        values, samples = scored(self.case, request_id), self.calls[(turn, number)]
        self.left_out += self.case.k - len(values)
        self.checked += len(samples)
        assert {s.identity.candidate: s.action for s in samples} == values
        assert {s.agent_id for s in samples} == {agent}
        (prompt,) = {s.request.prompt_text for s in samples}
        assert f"said {' '.join(self.said)}." in prompt
        assert "\n\n".join(heard) in prompt and prompt.count(": ") == 1 + len(heard)
        rewards = [ALPHA * s.rewards.fork_reward + s.rewards.local_reward for s in samples]
        assert rewards == [ALPHA * float(s.action) + float(s.action) / 2 for s in samples]
        assert len(set(rewards)) == len(set(values.values()))
        assert self.episode.failed or rewards == [s.rewards.reward for s in samples]
        (winner,) = [s for s in samples if s.identity.committed]
        if self.case.select == "greedy":
            assert winner is samples[rewards.index(max(rewards))]
        if self.case.select == "first":
            assert winner is samples[0]
        return winner.action

    def commit(self, chosen: Sequence[str]) -> bool:
        """Apply actions in call order; whether one ended the episode."""
        for value in chosen:
            self.said += (value,)
            self.team += float(value)
            if value == END:
                return True
        return False

    def end(self, turns: int) -> None:
        assert not self.episode.failed, self.episode.failure
        assert (self.episode.turns, self.episode.team_reward, self.episode.left_out) == (
            turns,
            self.team,
            self.left_out,
        )
        assert self.episode.info["sum"] == sum(int(value) for value in self.said if value != "/")
        assert self.checked == len(self.episode.samples)


@given(CASES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_call_agrees_with_a_replay_of_engine_and_environment(collect, case: Case) -> None:
    result = collect(case)
    assert len(result.episodes) == case.tasks * case.episodes
    for episode in result.episodes:
        Replay(case, episode).check()
    assert Adder.alive == 0


@given(CASES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_groups_of_a_batch_are_the_candidates_of_one_call_of_one_episode(collect, case: Case) -> None:
    result = collect(case)
    if result.batch is None:
        assert all(episode.failed for episode in result.episodes)
        return
    columns = result.batch.non_tensor_batch
    fields = ("traj_uid", "agent_id", "turn", "call")
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row, key in enumerate(zip(*(columns[f].tolist() for f in fields), strict=True)):
        groups[key].append(row)
    for (traj_uid, _, turn, call), rows in groups.items():
        assert sorted(scored(case, f"{traj_uid}/{turn}.{call}")) == [
            columns["candidate"][row] for row in rows
        ]
        assert len({(columns["task_id"][row], columns["uid"][row]) for row in rows}) == 1
        assert len({tuple(result.batch.batch["prompts"][row].tolist()) for row in rows}) == 1
        assert sum(columns["committed"][row] for row in rows) == 1
    assert result.metrics["tree/left_out"] == sum(case.k - len(rows) for rows in groups.values())


@given(CASES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_order_in_which_replies_come_changes_nothing(collect, case: Case) -> None:
    at_once, in_disorder = collect(case), collect(case, jitter=True)
    played = [[e.to_json() for e in r.episodes if not e.failed] for r in (at_once, in_disorder)]
    assert played[0] == played[1]
    assert [e.failed for e in at_once.episodes] == [e.failed for e in in_disorder.episodes]
    assert Adder.alive == 0
