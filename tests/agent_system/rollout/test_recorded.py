"""What is recorded for readers of episodes: order and times of calls, versions of replies, states of worlds;
nothing of it where it is not asked for.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agent_system import BaseEnv, BaseOrchestra, Grid, Observation, Outcome, Task, Turn
from agent_system.rollout import Collector, TreeConfig, states
from agent_system.rollout.clock import EpisodeClock
from agent_system.rollout.episode_store import load_episodes, save_episodes
from agent_system.rollout.settings import CollectorSettings
from agent_system.rollout.tree_call import choose
from agent_system.testing import scripted_team
from tests.agent_system.rollout.test_env_workers import workers
from verl.protocol.generate import GenerateRequest, Generation
from verl.trainer.config.reward import RewardConfig

TIMES = ("order", "prior_replies", "began", "ended")


class AtOnce(BaseOrchestra):
    agents = ("Solver", "Verifier")

    async def run(self, turn: Turn) -> str:
        _, judged = await asyncio.gather(turn.act("Solver"), turn.act("Verifier"))
        return judged.action


async def played(collector: Collector, n: int = 1, **options: Any) -> Any:
    result = await collector.collect([Task("a", "2+2?", "sums", "4")], n, step=1, **options)
    return result.episodes


async def test_a_call_has_its_order_and_its_times(
    make_collector: Callable[..., Collector], scripted: Any
) -> None:
    judged = asyncio.Event()

    async def late(request: GenerateRequest) -> None:
        # the Solver is called first and answered last
        if "/1.0" in request.request_id:
            await judged.wait()
            await asyncio.sleep(0.2)
        judged.set()

    (episode,) = await played(make_collector(scripted(delay=late), orchestra=AtOnce(), recorded=1.0))
    entry = episode.to_json()
    solver, verifier = entry["calls"]
    assert [call["order"] for call in (solver, verifier)] == [1, 0]
    assert [call["prior_replies"] for call in (solver, verifier)] == [0, 0]
    assert 0.2 <= solver["ended"] - solver["began"] < 60 and "waited" not in solver
    assert verifier["ended"] < solver["ended"]
    assert entry["started"] > 1e9 and solver["began"] < 60


async def test_without_readers_nothing_is_recorded_and_records_stay_equal(
    make_collector: Callable[..., Collector], scripted: Any
) -> None:
    (plain,) = await played(make_collector(scripted()))
    (recorded,) = await played(make_collector(scripted(), recorded=1.0))
    assert plain == recorded, "a seed does not determine times"
    entry = plain.to_json()
    assert "started" not in entry and "states" not in entry
    assert not any(name in call for call in entry["calls"] for name in TIMES)


def test_groups_are_drawn_by_their_ids_and_validations_are_whole() -> None:
    settings = CollectorSettings(recorded=0.25)
    drawn = [settings.records(f"step1/toy:{number}/0", False) for number in range(400)]
    assert 60 < sum(drawn) < 140
    assert drawn == [settings.records(f"step1/toy:{number}/0", False) for number in range(400)]
    assert settings.records("val1/toy:0/0", True)
    assert not CollectorSettings().records("val1/toy:0/0", True)


async def test_a_checkpoint_keeps_them(
    make_collector: Callable[..., Collector], scripted: Any, tmp_path: Any
) -> None:
    collector = scripted_team("plan_path", walk(), max_steps=2, recorded=1.0)
    for episodes in (await played(make_collector(scripted(), recorded=1.0), 2), await on_map(collector)):
        save_episodes(episodes, tmp_path)
        again = load_episodes(tmp_path)
        assert [episode.to_json() for episode in again] == [episode.to_json() for episode in episodes]
        assert again[0].samples[0].times == episodes[0].samples[0].times != None  # noqa: E711


async def test_a_reply_of_several_weights_has_their_versions(
    make_collector: Callable[..., Collector], scripted: Any
) -> None:
    engine = scripted()
    reply = engine._reply

    def changed(request: GenerateRequest) -> Generation:
        return replace(reply(request), version=7, earlier=((5, 1), (6, 2)))

    engine._reply = changed
    (episode,) = await played(make_collector(engine))
    call = episode.to_json()["calls"][0]
    assert call["versions"] == [[5, 1], [6, 2], [7, call["response_tokens"] - 3]]
    assert call["version"] == 7
    (episode,) = await played(make_collector(scripted()))
    assert "versions" not in episode.to_json()["calls"][0]


async def test_the_first_reply_to_a_call_counts() -> None:
    clock = EpisodeClock(10, 10)
    clock.note((1, 0), 0.0)
    assert clock.times is None
    clock.times = {}
    clock.note((1, 0), 0.0, 0.5)
    first = clock.times[1, 0]
    clock.note((1, 0), 1.0)
    assert clock.times == {(1, 0): first} and first.waited == 0.5


def walk() -> dict[str, Any]:
    return {"Tool Agent": lambda *_: "<moves>D</moves>", "Executor Agent": lambda *_: "<moves>D</moves>"}


MAP = "S..\n..#\n..G\n"


async def on_map(collector: Collector, **options: Any) -> Any:
    result = await collector.collect([Task("m", MAP, "plan_path")], 2, step=1, **options)
    assert not any(episode.failed for episode in result.episodes), result.episodes[0].failure
    return result.episodes


async def test_the_states_of_a_world_are_those_after_the_reset_and_every_turn() -> None:
    episode, _ = await on_map(scripted_team("plan_path", walk(), max_steps=2, recorded=1.0))
    first, *others = episode.to_json()["states"]
    assert first["cells"] == ["@..", "..#", "..G"] and first["legend"]["@"] == "the team"
    assert others == [{"cells": ["...", "@.#", "..G"]}, {"cells": ["...", "..#", "@.G"]}]


async def test_states_are_recorded_in_trees_and_in_validations() -> None:
    tree = {"tree": TreeConfig(k=2), "reward": RewardConfig(team_scope="call")}
    team = scripted_team("plan_path", walk(), max_steps=2, recorded=1e-9, **tree)
    assert not (await on_map(team))[0].states, "the group is not drawn"
    assert len((await on_map(team, validate=True))[0].states) == 3
    team = scripted_team("plan_path", walk(), max_steps=2, recorded=1.0, **tree)
    assert [state["cells"][1] for state in (await on_map(team))[0].states] == ["..#", "@.#", "..#"]


DRAWN: list[tuple[Any, str]] = [
    (lambda: Grid([["#", "<b>"]], {"#": "wall"}), ""),
    (lambda: "a text", ""),
    (lambda: None, ""),
    (lambda: 7, "it must return a str, a Grid or None, found int"),
    (lambda: Grid("ab"), ""),
    (lambda: Grid(["ab", "a"]), "equally long rows"),
    (lambda: Grid([]), "equally long rows"),
    (lambda: Grid([["x" * 17]]), "a cell has 17 characters, more than 16"),
    (lambda: Grid(["." * 65] * 64), "up to 4096 cells"),
    (lambda: "x" * 20_001, "its text has 20001 characters, more than 20000"),
    (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
]


@pytest.mark.parametrize(("draw", "said"), DRAWN)
async def test_a_drawing_that_cannot_be_shown_is_told_once_and_costs_no_episode(
    draw: Callable[[], Any],
    said: str,
    make_collector: Callable[..., Collector],
    scripted: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Drawn(BaseEnv):
        blocking = False
        turns = 0

        def reset(self, task: Task) -> Observation:
            return Observation(task.prompt)

        def step(self, action: str) -> Outcome:
            self.turns += 1
            return Outcome(1.0, done=self.turns == 2)

        def render(self) -> Any:
            return draw()

    states._failed.discard("Drawn")
    collector = make_collector(scripted(), env=Drawn, recorded=1.0, max_steps=3)
    with caplog.at_level(logging.WARNING):
        episodes = await played(collector, 2)
    assert not any(episode.failed for episode in episodes)
    assert all(len(episode.states) == 3 for episode in episodes)
    told = [record.message for record in caplog.records if "Drawn.render()" in record.message]
    if said:
        assert len(told) == 1 and said in told[0]
        assert episodes[0].states == (None, None, None)
        assert episodes[0].to_json()["states"] == [None] * 3
    else:
        assert not told


def test_states_come_from_worker_processes_as_well(make_collector: Any, scripted: Any) -> None:
    with workers(1, "drawn_dice") as started:
        collector = make_collector(
            scripted(), env=started.env_class, workers=started, max_steps=3, recorded=1.0
        )
        (episode,) = asyncio.run(played(collector))
    assert episode.failure is None
    assert [state["cells"] for state in episode.states] == [["0"], ["1"], ["2"], ["3"]]


async def test_a_choice_by_chance_and_the_causes_of_lost_candidates_are_recorded(
    make_collector: Callable[..., Collector], scripted: Any
) -> None:
    keys = TreeConfig(k=3, epsilon=0.5)
    explored = [
        choose(keys, [0.0, 1.0, 0.0], seed) != choose(replace(keys, epsilon=0.0), [0.0, 1.0, 0.0], seed)
        for seed in range(50)
    ]
    assert any(explored)
    team = scripted_team(
        "plan_path",
        walk(),
        max_steps=2,
        recorded=1.0,
        tree=TreeConfig(k=2, epsilon=0.5),
        reward=RewardConfig(team_scope="call"),
    )
    calls = [call for episode in await on_map(team) for call in episode.to_json()["calls"]]
    assert {call.get("explored", False) for call in calls} == {True, False}
    assert all(call["committed"] for call in calls if call.get("explored"))
