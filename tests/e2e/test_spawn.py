"""Teams with sub-agents train, two spawns deep, in Python and in a file, with groups by depth."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from agent_system.agent import BaseAgent
from agent_system.children import Child, spawn
from agent_system.orchestra import BaseOrchestra
from agent_system.registry import AgentRegistry, OrchestraRegistry
from agent_system.turn import Turn
from tests.e2e.conftest import Run, read_metrics, weights

GROUPS = {"algorithm.group_by": "[uid,agent_id,depth]", "trainer.log_trajectories": 100}
FILE = """\
team: 1
agents:
  Asker: {prompt: "Ask: {env_prompt}"}
  Worker: {prompt: "Do: {task}{env_prompt}"}
do:
  - {call: Asker, id: a}
  - {spawn: {of: a, agent: Worker, max: 2, depth: 2}, id: s}
return: s
"""


@AgentRegistry.register("Asker", orchestra="my_children")
class Asker(BaseAgent):
    prompt = "Ask: {env_prompt}"


@AgentRegistry.register("Worker", orchestra="my_children")
class Worker(BaseAgent):
    prompt = "Do: {task} in {env_prompt}"


@OrchestraRegistry.register("my_children")
class Nested(BaseOrchestra):
    """Two children of the Asker, each with two of its own, whatever they say."""

    agents = ("Asker", "Worker")

    async def run(self, turn: Turn) -> str:
        async def work(child: Child, task: str) -> str:
            reply = await child.act("Worker", task=task)
            if child.may_spawn:
                await spawn(child, "Worker", ["x", "y"])
            return str(reply.action)

        await turn.act("Asker")
        return " ".join(await spawn(turn, work, ["a", "b"], depth=2))


def depths(run_dir: Path) -> list[Counter[tuple[str, int]]]:
    """Calls of each training episode, by agent and depth."""
    lines = [
        json.loads(line)
        for file in sorted(run_dir.rglob("*.jsonl"))
        if file.name != "metrics.jsonl"
        for line in file.read_text().splitlines()
        if '"calls"' in line and '"uid": "step' in line
    ]
    return [Counter((call["agent_id"], call.get("depth", 0)) for call in line["calls"]) for line in lines]


def test_children_two_spawns_deep_train_in_groups_by_depth(train: Run, tmp_path: Path) -> None:
    keys = {
        "agent.orchestra_type": "my_children",
        "agent.specialization": "full",
        "agent.agent_ids": "[Asker,Worker]",
    }
    train(GROUPS | keys)
    episodes = depths(tmp_path / "run")
    assert episodes and set(map(str, episodes)) == {
        str(Counter({("Worker", 2): 4, ("Worker", 1): 2, ("Asker", 0): 1}))
    }
    lines = read_metrics(tmp_path / "run")
    assert lines[-1]["agent/worker/calls"] == 6 * 6
    assert weights(tmp_path / "run", 2)["worker"]


def test_a_file_with_a_spawn_trains(train: Run, tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text(FILE)
    keys = {"agent.orchestra_type": "graph", "agent.orchestra.graph.file": tmp_path / "team.yaml"}
    train(GROUPS | keys | {"agent.agent_ids": "[Asker,Worker]"})
    lines = read_metrics(tmp_path / "run")
    assert lines[-1]["agent/asker/calls"] == 6 and lines[-1]["agent/worker/calls"] >= 1
    assert all(line["episode/failed"] == 0 for line in lines if "episode/failed" in line)
