"""The three worlds under tree sampling: what is no action is scored, counted and survived; what cannot be
played is named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from agent_system import Task
from agent_system.rollout import CollectResult
from agent_system.testing import make_tokenizer, scripted_team
from agent_system.workflows.plan_path import EXECUTOR, TOOL
from tests.agent_system.workflows.plan_path.conftest import AROUND
from tests.agent_system.workflows.sokoban.conftest import TWO, UNSOLVABLE
from tests.agent_system.workflows.sudoku.conftest import CLUES
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import TreeConfig


@dataclass(frozen=True)
class World:
    """One workflow and what its agents may say.

    Attributes:
        task, lost: that can be played, and that cannot be solved.
        tags: around the Tool's and the Executor's action.
        good, illegal: actions; the first is the best of all that are said.
        junk: replies without an action.
        counted: entry of the info that counts an unreadable, an illegal action of the Executor.
    """

    task: Task
    lost: Task
    tags: tuple[str, str]
    good: str
    illegal: str
    junk: tuple[str, ...]
    counted: tuple[str, str]


JUNK = (
    "",
    "I cannot say",
    "<moves></moves>",
    "<moves>north</moves>",
    "<action>x</action><plan>x</plan>",
    "\x00🧭" + "[" * 300,
)


def grid(name: str, text: str) -> Task:
    return Task(name, text, "demo", None, {"map": text})


WORLDS = {
    "plan_path": World(
        grid("fine", AROUND),
        grid("closed", "S#G"),
        ("moves", "moves"),
        "D, D",
        "R, R",
        JUNK,
        ("executor/unparsed", "executor/illegal"),
    ),
    "sudoku": World(
        Task("fine", "", "demo", None, {"puzzle": CLUES}),
        Task("closed", "", "demo", None, {"puzzle": "11" + "." * 14}),
        ("plan", "action"),
        "1 2 2",
        "1 1 2",
        JUNK,
        ("unreadable", "illegal"),
    ),
    "sokoban": World(
        Task("fine", TWO, "demo"),
        Task("closed", UNSOLVABLE, "demo"),
        ("moves", "moves"),
        "L U R",
        "L L L",
        JUNK,
        ("unparsable", "illegal"),
    ),
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture
def play(tokenizer: Any) -> Callable[..., Any]:
    """Play one turn; every call of an agent has the candidates given for it."""

    async def run(
        name: str, tool: list[str], executor: list[str], tasks: list[Task] | None = None
    ) -> CollectResult:
        settings = {
            "max_failure_rate": 0.5,
            "reward": RewardConfig(team_scope="call"),
            "tree": TreeConfig(len(tool)),
        }
        limits = {"tokenizer": tokenizer, "max_tokens": 2000, "max_prompt_length": 4000}
        team = scripted_team(name, {TOOL: tool, EXECUTOR: executor}, **limits, **settings)
        return await team.collect(tasks or [WORLDS[name].task], 1, step=0)

    return run


def tagged(world: World, action: str) -> tuple[str, str]:
    return tuple(f"Well: <{tag}>{action}</{tag}>" for tag in world.tags)  # type: ignore[return-value]


@pytest.mark.parametrize("name", WORLDS)
async def test_candidates_outside_the_alphabet_are_scored_below_a_good_one_and_leave_no_trace(
    play, name: str
) -> None:
    world = WORLDS[name]
    good, illegal = tagged(world, world.good), tagged(world, world.illegal)
    result = await play(name, [*world.junk, illegal[0], good[0]], [*world.junk, illegal[1], good[1]])
    (episode,) = result.episodes
    for agent in (TOOL, EXECUTOR):
        samples = [s for s in episode.samples if s.agent_id == agent]
        assert len(samples) == len(world.junk) + 2 and episode.left_out == 0
        *bad, best = [s.rewards.reward for s in samples]
        assert samples[-1].identity.committed and samples[-1].valid and max(bad) < best
        assert (
            max(s.rewards.reward for s in samples[: len(world.junk)]) < 0 and samples[-2].rewards.reward < 0
        )
    assert good[0] in next(s.request.prompt_text for s in episode.samples if s.agent_id == EXECUTOR)
    assert [episode.info[key] for key in world.counted] == [0, 0], (
        "what the losers did happened on their own forks"
    )
    assert episode.info["progress"] > 0 and episode.turns == 1


@pytest.mark.parametrize("name", WORLDS)
async def test_a_call_whose_candidates_are_all_outside_the_alphabet_is_survived_and_counted(
    play, name: str
) -> None:
    world = WORLDS[name]
    (episode,) = (await play(name, list(world.junk), list(world.junk))).episodes
    assert not episode.failed and episode.left_out == 0
    assert [episode.info[key] for key in world.counted] == [1, 0]
    assert (episode.info["progress"], episode.info["success"], episode.team_reward) == (0, 0, 0)
    assert all(s.rewards.reward < 0 for s in episode.samples)
    illegal = tagged(world, world.illegal)
    (episode,) = (await play(name, [illegal[0]] * 2, [illegal[1]] * 2)).episodes
    assert [episode.info[key] for key in world.counted] == [0, 1] and episode.info["success"] == 0


@pytest.mark.parametrize("name", WORLDS)
async def test_a_task_that_cannot_be_solved_fails_its_own_episodes_with_its_cause(play, name: str) -> None:
    world = WORLDS[name]
    good = tagged(world, world.good)
    result = await play(name, [good[0]] * 2, [good[1]] * 2, [world.lost, world.task])
    lost, fine = result.episodes
    assert lost.failed and not fine.failed
    assert "cannot be solved" in lost.failure or "no solution" in lost.failure
    assert set(result.batch.non_tensor_batch["task_id"]) == {"fine"}
