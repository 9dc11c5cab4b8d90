"""A Designer and its roles train together; and a Designer whose replies are all invalid trains alone."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from agent_system import Projection
from agent_system.workflows.design import DESIGNER, Designer
from tests.e2e.conftest import Run, read_metrics, weights

ROLES = """\
team: 1
agents:
  Asker: {prompt: "Ask: {env_prompt}"}
  Verifier Agent: {prompt: "Judge: {env_prompt}{team_context}"}
do: [{call: Asker, id: a}, {call: Verifier Agent}]
return: a
"""
DESIGNS = [
    '{"do": [{"vote": "Asker", "n": 2, "id": "a"}, {"call": "Verifier Agent"}], "return": "a"}',
    '{"do": [{"call": "Verifier Agent", "id": "a"}, {"call": "Asker"}], "return": "a"}',
]


def changes(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "roles.yaml").write_text(ROLES)
    return {
        "agent.orchestra_type": "design",
        "agent.orchestra.design.file": tmp_path / "roles.yaml",
        "agent.orchestra.design.prompt": "'Design: {env_prompt}'",
        "agent.agent_ids": f"[{DESIGNER},Asker,Verifier Agent]",
        "agent.specialization": "full",
        "env.rollout.n": 6,
        "rollout.repeat_calls.designer_agent": 3,
        "algorithm.group_by": "[uid,agent_id,design]",
        "reward.custom_reward_function.path": "agent_system.workflows.design.reward:priced",
        "reward.custom_reward_function.reward_kwargs.price": 0.01,
    }


def test_designs_and_roles_are_trained_in_groups_of_their_own(
    train: Run, tmp_path: Path, scored: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Designer.project

    def one_of_two(self: Designer, text: str) -> Projection:
        return project(self, DESIGNS[crc32(text.encode()) % 2])

    monkeypatch.setattr(Designer, "project", one_of_two)
    train(changes(tmp_path) | {"trainer.save_freq": 1})
    assert len(scored) == 2
    for batch in scored:
        columns = batch.non_tensor_batch
        assert Counter(columns["agent_id"])[DESIGNER] == 4  # two tasks of two designs each
        designs = defaultdict(set)
        for agent, uid, design in zip(columns["agent_id"], columns["uid"], columns["design"], strict=True):
            designs[agent == DESIGNER].add((uid, design))
        assert all(design == "" for _, design in designs[True])
        assert all(design for _, design in designs[False])
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert lines[1]["env/design/valid"] == 1 and lines[1]["agent/designer_agent/calls"] == 12
    moved = {
        name
        for name in weights(tmp_path / "run", 2)
        if weights(tmp_path / "run", 1)[name] != weights(tmp_path / "run", 2)[name]
    }
    assert moved == {"designer_agent", "asker", "verifier_agent"}
    episodes = [
        json.loads(line)
        for file in sorted((tmp_path / "run" / "trajectories").glob("train_*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    assert Counter(call.get("repeated", False) for e in episodes for call in e["calls"][:1]) == {
        True: 16,
        False: 8,
    }


def test_a_designer_without_a_valid_design_trains_alone(train: Run, tmp_path: Path) -> None:
    train(changes(tmp_path))
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert lines[2]["env/design/valid"] == 0 and lines[2]["agent/asker/calls"] == 0
    assert lines[2]["agent/designer_agent/valid_rate"] == 0


def test_a_run_with_several_files_trains_agents_in_both_teams(
    train: Run, tmp_path: Path, scored: list[Any]
) -> None:
    (tmp_path / "both.yaml").write_text(ROLES)
    (tmp_path / "alone.yaml").write_text(
        'team: 1\nagents:\n  Asker: {prompt: "Ask: {env_prompt}"}\ndo: [{call: Asker, id: a}]\nreturn: a\n'
    )
    train(
        {
            "agent.orchestra_type": "graph",
            "agent.orchestra.graph.files": f"[{tmp_path}/both.yaml,{tmp_path}/alone.yaml]",
            "algorithm.group_by": "[task_id,agent_id,design]",
            "data.train_batch_size": 6,
        }
    )
    (first, second) = (batch.non_tensor_batch for batch in scored)
    for columns in (first, second):
        teams = defaultdict(set)
        for uid, design, agent in zip(columns["uid"], columns["design"], columns["agent_id"], strict=True):
            teams[uid, design].add(agent)
        assert len({uid for uid, _ in teams}) == len(teams) == 6
        assert {frozenset(agents) for agents in teams.values()} == {
            frozenset({"Asker", "Verifier Agent"}),
            frozenset({"Asker"}),
        }
