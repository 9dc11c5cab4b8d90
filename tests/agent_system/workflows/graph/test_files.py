"""Several files in one run: each group plays one of them, and samples name it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_system import Task
from agent_system.errors import AgentSystemError
from agent_system.rollout import Collector
from agent_system.testing import scripted_team
from agent_system.workflows.graph import Team
from tests.agent_system.workflows.graph.conftest import AGENTS
from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig
from verl.trainer.ppo.credit.advantage import group_numbers

ONE = f"team: 1\nagents:\n{AGENTS.splitlines()[0]}\ndo: [{{call: A, id: s}}]\nreturn: s\n"
TWO = "team: 1\nagents:\n" + "\n".join(AGENTS.splitlines()[:2])
TWO += "\ndo: [{call: B}, {call: A, id: s}]\nreturn: s\n"
TASKS = [Task(f"t{number}", "What?", "demo", "7") for number in range(12)]


@pytest.fixture
def make_files(team_file: Callable[..., Path], tokenizer: Any) -> Callable[..., Collector]:
    def make(*texts: str, agents: str = "AB", **more: Any) -> Collector:
        files = [str(team_file(text, f"{number}.yaml")) for number, text in enumerate(texts)]
        replies = {name: lambda *_: "7" for name in agents}
        return scripted_team(
            "graph", replies, env_name="math", options={"files": files}, tokenizer=tokenizer, **more
        )

    return make


async def test_a_group_plays_one_file_and_all_files_are_played(make_files: Callable[..., Collector]) -> None:
    result = await make_files(ONE, TWO).collect(TASKS, 3, step=1)
    designs: dict[str, set[str]] = defaultdict(set)
    for episode in result.episodes:
        designs[episode.uid] |= {s.identity.design for s in episode.samples}
        assert len(episode.samples) == (2 if episode.samples[0].agent_id == "B" else 1)
    keys = {Team.parse(text).key() for text in (ONE, TWO)}
    assert all(len(group) == 1 for group in designs.values())
    assert set.union(*designs.values()) == keys
    assert result.episodes[0].to_json()["calls"][0]["design"] in keys
    again = await make_files(ONE, TWO).collect(TASKS, 3, step=1)
    assert [e.samples[0].identity.design for e in again.episodes] == [
        e.samples[0].identity.design for e in result.episodes
    ]
    other = await make_files(ONE, TWO).collect(TASKS, 3, step=2)
    assert [e.samples[0].identity.design for e in other.episodes] != [
        e.samples[0].identity.design for e in result.episodes
    ]


async def test_validations_of_all_steps_play_the_same_files(make_files: Callable[..., Collector]) -> None:
    tasks = [Task(f"t{i}", "6 x 7?", "demo", "42") for i in range(12)]
    team = make_files(ONE, TWO)
    results = [await team.collect(tasks, 1, step=step, validate=True) for step in (0, 10)]
    designs = [[e.samples[0].identity.design for e in result.episodes] for result in results]
    assert designs[0] == designs[1]
    assert len(set(designs[0])) == 2


async def test_rows_are_grouped_by_design(make_files: Callable[..., Collector]) -> None:
    batch = (await make_files(ONE, TWO).collect(TASKS, 2, step=1)).batch
    assert isinstance(batch, DataProto)
    columns = batch.non_tensor_batch
    numbers = group_numbers(batch, AlgorithmConfig(group_by=["uid", "agent_id", "design"]))
    groups = Counter(numbers.tolist())
    assert set(groups.values()) == {2}
    assert len(groups) == len(set(zip(columns["uid"], columns["agent_id"], columns["design"], strict=True)))


@pytest.mark.parametrize(
    ("texts", "agents", "message"),
    [
        ([ONE, ONE], "A", "1.yaml: the same team as .*0.yaml; name each team once"),
        ([ONE, TWO], "A", r"graph.files=\[.*\]: agent.agent_ids lacks B; set agent.agent_ids='\[A,B\]'"),
        ([ONE, TWO.replace("A: {env", "Say: {env")], "AB",
            r"1.yaml:3:3 agents.A: the agent is another one in .*0.yaml; give it one description"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(
    make_files: Callable[..., Collector], texts: list[str], agents: str, message: str
) -> None:
    with pytest.raises(AgentSystemError, match=message) as error:
        make_files(*texts, agents=agents)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"file": "a.yaml", "files": ["b.yaml"]}, "has a file and files; keep one of them"),
        ({"files": "a.yaml"}, "files must be a list, found 'a.yaml'"),
        ({}, "needs the file of a team"),
    ],
)
def test_a_run_has_a_file_or_files(options: dict[str, Any], message: str) -> None:
    with pytest.raises(AgentSystemError, match=message):
        scripted_team("graph", {"A": []}, env_name="math", options=options)
