"""A team with tools trains, is validated, and is refused with tree sampling."""

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from safetensors.torch import load, load_file

from agent_system import AgentRegistry, AgentSystemError
from agent_system.rollout import tool_loop
from agent_system.tools.formats import ToolRequest
from tests.e2e.conftest import Run, read_metrics, titles_below, weights
from tests.house.source import ROOT

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

SERVER = ROOT / "tests" / "agent_system" / "tools" / "mcp_server.py"
MCP_PACKAGE = f"""
from agent_system import AgentRegistry
from agent_system.tools import McpServer, ToolAgent


@AgentRegistry.register("Asker", orchestra="alone", env="my_world")
class Clerk(ToolAgent):
    tools = (McpServer(("MCP_PYTHON", {str(SERVER)!r}), only=["note", "fail"]),)
    max_rounds = 3

    def describe_tools(self):
        return "tools: " + ", ".join(self.by_name)
"""


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


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tool calls in every second reply: a random model writes none."""
    asked = [
        ToolRequest("double", {"number": 4}),
        ToolRequest("python", {"code": "print(3)"}),
        ToolRequest("double", {"number": "many"}),
    ]
    monkeypatch.setattr(tool_loop, "read_calls", lambda text, syntaxes, tools: asked if len(text) % 2 else [])


@pytest.mark.usefixtures("asking")
def test_rounds_are_trained_and_validated(team: Run, tmp_path: Path) -> None:
    team({"trainer.test_freq": 1, "trainer.log_trajectories": -1})
    metrics = read_metrics(tmp_path / "run")
    assert any(
        m.get("agent/solver/tools/calls_per_episode", 0) > 0 and m["agent/solver/tools/malformed"] > 0
        for m in metrics
    )
    prompts = []
    for path in sorted((tmp_path / "run" / "trajectories").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            calls = json.loads(line)["calls"]
            assert (
                [c["tools"]["round"] for c in calls] == [c["call"] for c in calls] == list(range(len(calls)))
            )
            prompts += [later["prompt"].removeprefix(first["prompt"]) for first, later in pairwise(calls)]
    assert prompts and all("\n8\n" in p and "\n3\n" in p and "valid integer" in p for p in prompts)


def servers() -> set[int]:
    """Processes of MCP servers below this one, where others, such as Ray's, come and go."""
    return {process.pid for process, title in titles_below(os.getpid()) if SERVER.name in title}


def test_a_team_trains_with_the_tools_of_an_mcp_server(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mcp_python: str
) -> None:
    """Every episode has a server of its own, whose results it reads, and which ends with it."""
    pytest.importorskip("mcp")
    asked = [ToolRequest("note", {"text": "seen"}), ToolRequest("fail", {}), ToolRequest("note", {})]
    monkeypatch.setattr(tool_loop, "read_calls", lambda text, syntaxes, tools: asked)
    monkeypatch.setattr(AgentRegistry, "_entries", dict(AgentRegistry._entries))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mcp_package.py").write_text(MCP_PACKAGE.replace("MCP_PYTHON", mcp_python))
    mcp = {
        "agent.plugins": "[my_flow_package,mcp_package]",
        "agent.orchestra_type": "alone",
        "agent.agent_ids": "[Asker]",
    }
    sizes = {"data.train_batch_size": 1, "env.rollout.n": 2, "data.max_prompt_length": 600}
    before = servers()
    train(mcp | sizes | {"data.val_files": "null", "trainer.log_trajectories": -1})
    assert servers() <= before
    steps = [line for line in read_metrics(tmp_path / "run") if "actor/lr" in line]
    assert len(steps) == 2 and all(line["actor/grad_norm"] > 0 for line in steps)
    for path in sorted((tmp_path / "run" / "trajectories").glob("train_*.jsonl")):
        for line in path.read_text().splitlines():
            first, *later = [call["prompt"] for call in json.loads(line)["calls"]]
            assert "tools: note, fail" in first
            for notes, prompt in zip(("seen", "seen seen"), later, strict=True):
                results = prompt.split("<tool_response>\n")[-3:]
                assert (
                    results[0].startswith(f"{notes}\n")
                    and "fail failed" in results[1]
                    and "argument 'text'" in results[2]
                ), prompt


def test_merged_rounds_train_to_the_same_weights(
    team: Run, tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all passes: old log-probs, those of the reference, and two updates of the policy, and values and an
    update of its critic.
    """
    monkeypatch.setattr(
        tool_loop, "read_calls", lambda text, syntaxes, tools: [ToolRequest("double", {"number": 4})]
    )
    models = ("actor_rollout_ref.actor", "critic")
    keys = {
        "actor_rollout_ref.actor.kl_loss_coef": 0.001,
        "actor_rollout_ref.actor.ppo_epochs": 2,
        "algorithm.adv_estimator": "gae",
    }
    trained = []
    for merge in (False, True):
        run_dir = tmp_path / str(merge)
        own = {f"{model}.use_prefix_grouper": merge for model in models} | {
            "trainer.total_training_steps": 1,
            "data.val_files": "[]",
        }
        team(keys | own | {"trainer.default_local_dir": run_dir})
        trained.append((load(weights(run_dir, 1)["solver"]), read_metrics(run_dir)[-1]))
    (single, expected), (merged, metrics) = trained
    assert min(metrics[f"{part}/shared_tokens"] for part in ("actor", "critic")) > 0.1
    same = (
        "actor/pg_loss",
        "actor/kl_loss",
        "actor/grad_norm",
        "actor/ppo_kl",
        "critic/vf_loss",
        "critic/grad_norm",
    )
    assert {name: metrics[name] for name in same} == pytest.approx(
        {name: expected[name] for name in same}, rel=1e-4, abs=1e-6
    )
    start = load_file(tiny_model_dir / "model.safetensors")
    moved = sum(float((single[name] - start[name]).square().sum()) for name in single)
    assert sum(float((single[name] - merged[name]).square().sum()) for name in single) < 1e-6 * moved


@pytest.mark.usefixtures("asking")
@pytest.mark.parametrize("estimator", ["gae", "remax"])
def test_masked_sequences_are_trained_and_resumed(team: Run, tmp_path: Path, estimator: str) -> None:
    keys = {
        "actor_rollout_ref.rollout.tool_samples": "sequence",
        "algorithm.adv_estimator": estimator,
        "actor_rollout_ref.actor.kl_loss_coef": 0.001,
        "actor_rollout_ref.actor.entropy_coeff": 0.01,
        "data.val_files": "[]",
        "trainer.save_freq": 1,
        "trainer.log_trajectories": -1,
    }
    team(keys)
    calls = [
        call
        for line in (tmp_path / "run" / "trajectories" / "train_000002.jsonl").read_text().splitlines()
        for call in json.loads(line)["calls"]
    ]
    assert len(calls) == (8 if estimator == "remax" else 6), "one per episode, greedy ones included"
    assert any("rounds" in call for call in calls)
    assert all(
        call["response_tokens"] == sum(r["response_tokens"] for r in call["rounds"])
        for call in calls
        if "rounds" in call
    )
    last = read_metrics(tmp_path / "run")[-1]
    assert last["response_length/max"] > 18 >= last["agent/solver/response_length/max"], (
        "tool messages count in the first alone"
    )
    if estimator == "remax":
        return
    start = {
        "trainer.resume_mode": tmp_path / "run" / "checkpoints" / "global_step_1",
    }
    team(keys | start | {"trainer.default_local_dir": tmp_path / "resumed"})
    assert weights(tmp_path / "resumed", 2) == weights(tmp_path / "run", 2)


def test_a_tree_is_refused_before_a_model_loads(team: Run) -> None:
    tree = {
        "rollout.sampling": "tree",
        "reward.team_scope": "call",
        "algorithm.group_by": "[traj_uid,agent_id,turn,call]",
    }
    with pytest.raises(AgentSystemError, match=r"ToolAgent.*rollout.sampling=parallel"):
        team(tree | {"env.rollout.n": 1})
