"""One agent in every shipped world: the rewards that the team earns, on the agent that acts; trees where the
world forks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from agent_system import Task
from agent_system.errors import AgentSystemError
from agent_system.registry import AgentRegistry
from agent_system.sandbox import close_shared, configure
from agent_system.testing import make_tokenizer, scripted_team
from agent_system.workflows.search.env import SearchEnv
from agent_system.workflows.search.world.wire import Passage
from agent_system.workflows.single import SINGLE
from tests.agent_system.workflows.code.conftest import adding
from tests.agent_system.workflows.plan_path.conftest import AROUND
from tests.agent_system.workflows.sokoban.conftest import TWO
from tests.agent_system.workflows.sudoku.conftest import CLUES
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import TreeConfig
from verl.trainer.config.sandbox import SandboxConfig, SandboxLimitsConfig

ADD = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"
TEST = "<input>\n1 2\n</input>\n<output>\n3\n</output>"


@dataclass(frozen=True)
class World:
    """A task, replies of one turn each (the last one ends the episode if `done`), and a poor reply."""

    task: Task
    replies: tuple[str, ...]
    poor: str = "I cannot say"
    done: bool = True
    team_reward: float | None = 1.0


WORLDS = {
    "math": World(Task("t", "3+4?", "demo", "7"), ("So \\boxed{7}",), "So \\boxed{8}"),
    "math_tool": World(Task("t", "3+4?", "demo", "7"), ("So \\boxed{7}",), "\\boxed{9}"),
    "plan_path": World(
        Task("t", AROUND, "demo", None, {"map": AROUND}),
        ("<moves>D D R R</moves>", "<moves>U U</moves>"),
        team_reward=1.5,
    ),
    "sudoku": World(
        Task("t", "", "demo", None, {"puzzle": CLUES}), ("<plan>1 2 2</plan>",), done=False, team_reward=None
    ),
    "sokoban": World(Task("t", TWO, "demo"), ("<moves>L U R</moves>",), done=False, team_reward=None),
    "search": World(
        Task("t", "Who?", "demo", "Ada"),
        ("<search>who</search>", "It is <answer>Ada</answer>"),
        "<answer>Bob</answer>",
    ),
    "code": World(adding(), (f"{ADD}\n{TEST}",), "```python\nprint(0)\n```"),
}


class Found:
    """A retriever that always finds the same passage."""

    def start(self) -> Found:
        return self

    def search_now(self, query: str) -> None:
        del query

    async def search(self, query: str) -> list[Passage]:
        del query
        return [Passage("1", "", "It was Ada.")]


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> Iterator[None]:
    configure(
        SandboxConfig(
            min_level="rlimits", workers=2, limits=SandboxLimitsConfig(cpu_s=1.0, wall_s=60.0, memory_mb=128)
        )
    )
    yield
    close_shared()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


async def play(
    name: str,
    script: Any,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
    style: str = "full",
    **settings: Any,
) -> Any:
    monkeypatch.setattr(SearchEnv, "_retriever", Found())
    team = scripted_team(
        "single", {SINGLE: script}, env_name=name, options={"prompt_style": style}, tokenizer=tokenizer,
        env_params={"url": "http://127.0.0.1:1"} if name == "search" else None, max_failure_rate=0.0,
        **settings,
    )  # fmt: skip
    (episode,) = (await team.collect([WORLDS[name].task], 1, step=0)).episodes
    assert not episode.failed, episode.failure
    return episode


@pytest.mark.parametrize("style", ["full", "short"])
@pytest.mark.parametrize("name", WORLDS)
async def test_one_agent_earns_what_its_actions_are_worth(
    name: str, style: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = WORLDS[name]
    episode = await play(
        name,
        list(world.replies),
        tokenizer,
        monkeypatch,
        style,
        max_steps=len(world.replies) + 2 * world.done,
    )
    assert [s.agent_id for s in episode.samples] == [SINGLE] * len(world.replies)
    assert all(s.valid for s in episode.samples) and episode.turns == len(world.replies)
    assert episode.info["success"] == world.done
    if world.team_reward is not None:
        assert episode.team_reward == pytest.approx(world.team_reward)
    assert episode.team_reward > 0
    first = episode.samples[0].request.prompt_text
    assert not any(role in first for role in ("team", "Executor", "Verifier", "Tester", "Reasoner")), first


# an agent with tools has no candidates
@pytest.mark.parametrize("name", [name for name in WORLDS if name != "math_tool"])
async def test_a_tree_commits_the_better_of_two_replies(
    name: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = WORLDS[name]
    tree = {"tree": TreeConfig(2), "reward": RewardConfig(team_scope="call"), "max_steps": 1}
    episode = await play(name, [world.poor, world.replies[-1]], tokenizer, monkeypatch, **tree)
    poor, good = episode.samples
    if name == "plan_path":  # the last moves lead nowhere from the start
        assert good.rewards.reward > poor.rewards.reward
    else:
        assert (
            good.identity.committed
            and not poor.identity.committed
            and good.rewards.reward > poor.rewards.reward
        )


@pytest.mark.parametrize("name", ["plan_path", "sudoku", "sokoban", "search", "math_tool", "code", "math"])
async def test_a_reply_without_an_action_is_invalid_and_goes_on(
    name: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    episode = await play(name, ["\x00 north <moves>", "<answer>"], tokenizer, monkeypatch, max_steps=1)
    assert [s.valid for s in episode.samples] == [False] and episode.team_reward == 0


def test_a_world_without_a_single_agent_is_named_in_one_line() -> None:
    with pytest.raises(
        AgentSystemError,
        match=r"no agent named 'Single Agent' for orchestra 'single' in environment 'farama'",
    ):
        AgentRegistry.get(SINGLE, orchestra="single", env="farama")
