"""A team with tools trains, is validated, and is refused with tree sampling."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from agent_system import AgentSystemError
from agent_system.rollout import tool_loop
from agent_system.tools.formats import ToolRequest
from tests.e2e.conftest import Run, read_metrics

PACKAGE = '''
from agent_system import AgentRegistry, BaseOrchestra, OrchestraRegistry
from agent_system.tools import ToolAgent, calculator, python


@AgentRegistry.register("Solver", orchestra="tool_flow")
class Solver(ToolAgent):
    tools = (calculator, python, "double")
    max_rounds = 3

    def double(self, number: int) -> int:
        """Double a number.

        Args:
            number: the number.
        """
        return 2 * number

    def describe_tools(self):
        return "tools: calculator, python, double"


@OrchestraRegistry.register("tool_flow")
class ToolFlow(BaseOrchestra):
    agents = ("Solver",)

    async def run(self, turn):
        return (await turn.act("Solver")).action
'''


@pytest.fixture
def team(train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    (tmp_path / "tool_package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    keys = {
        "agent.plugins": "[my_flow_package,tool_package]",
        "agent.orchestra_type": "tool_flow",
        "agent.agent_ids": "[Solver]",
        "env.env_name": "my_forkable_world",
        "data.max_prompt_length": 400,
        "sandbox.min_level": "rlimits",
        "sandbox.workers": 2,
    }
    return lambda changes=None: train(keys | dict(changes or {}))


def test_rounds_are_trained_and_validated(team: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [ToolRequest("double", {"number": 4}), ToolRequest("python", {"code": "print(3)"}), ToolRequest("double", {"number": "many"})]

    def read(text: str, _format: str) -> list[ToolRequest]:  # a random model writes no tool calls
        return asked if len(text) % 2 else []

    monkeypatch.setattr(tool_loop, "read_calls", read)
    team({"trainer.test_freq": 1, "trainer.log_trajectories": -1})
    metrics = read_metrics(tmp_path / "run")
    assert any(m.get("agent/solver/tools/calls_per_episode", 0) > 0 and m["agent/solver/tools/malformed"] > 0 for m in metrics)
    prompts = []
    for path in sorted((tmp_path / "run" / "trajectories").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            calls = json.loads(line)["calls"]
            assert [c["tools"]["round"] for c in calls] == [c["call"] for c in calls] == list(range(len(calls)))
            prompts += [later["prompt"].removeprefix(first["prompt"]) for first, later in pairwise(calls)]
    assert prompts and all("\n8\n" in p and "\n3\n" in p and "valid integer" in p for p in prompts)


def test_a_tree_is_refused_before_a_model_loads(team: Run) -> None:
    tree = {"rollout.sampling": "tree", "reward.team_scope": "call", "algorithm.group_by": "[traj_uid,agent_id,turn,call]"}
    with pytest.raises(AgentSystemError, match=r"ToolAgent.*rollout.sampling=parallel"):
        team(tree | {"env.rollout.n": 1})
