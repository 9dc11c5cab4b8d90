"""A team of a file trains: to the bit as the Python team does, and with agents of every kind."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Run, read_metrics, weights
from tests.e2e.teams import KL
from tests.e2e.test_fixed_seed import MATH, outcome
from tests.house.source import ROOT

FILE = ROOT / "agent_system" / "workflows" / "math" / "team_short.yaml"
OF_FILE = {"agent.orchestra_type": "graph", "agent.orchestra.graph.file": FILE}
# What the Python team alone counts.
COUNTED = ("loops", "verifier/unparsed")
MIXED = """\
team: 1
agents:
  Solver: {prompt: "Solve: {env_prompt}{team_context}", answer: boxed, as: Solver Agent}
  Second: {like: Solver, prompt: "Solve carefully: {env_prompt}"}
  Judge: {class: math/Verifier Agent, options: {prompt_style: short}, as: Verifier Agent}
do:
  - parallel:
      - {vote: Solver, n: 2, id: a}
      - [{call: Second, id: b}, {call: Second, id: c, sees: [b]}]
  - {vote: [a, b, c], id: s}
  - {call: Judge, id: v}
  - if: {of: v, field: approved, is: false}
    do: [{call: Solver}]
return: s
"""


def math(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in {**MATH, **KL}.items() if "orchestra.math" not in k} | dict(changes)


def test_a_seeded_run_of_the_file_gives_the_weights_of_the_python_team(train: Run, tmp_path: Path) -> None:
    results = {}
    for name, keys in (("python", MATH | KL), ("file", math(OF_FILE))):
        folder = tmp_path / name
        train(dict(keys) | {"trainer.default_local_dir": folder, "data.seed": 1})
        results[name] = outcome(folder)
    python, file = results["python"], results["file"]
    assert len(python["weights"]) >= 2
    assert file["weights"] == python["weights"]
    assert file["episodes"] == python["episodes"]
    for ours, theirs in zip(file["metrics"], python["metrics"], strict=True):
        assert all(any(word in name for word in COUNTED) for name in set(theirs) - set(ours))
        assert ours == {name: value for name, value in theirs.items() if name in ours}


@pytest.mark.parametrize("sampling", ["parallel", "tree"])
def test_agents_of_every_kind_train_a_policy_each(train: Run, tmp_path: Path, sampling: str) -> None:
    (tmp_path / "team.yaml").write_text(MIXED)
    tree = {"rollout.sampling": "tree", "rollout.tree.k": 2, "reward.team_scope": "call", "env.rollout.n": 1}
    changes = {
        "agent.agent_ids": "[Solver,Second,Judge]",
        "agent.orchestra.graph.file": tmp_path / "team.yaml",
        "algorithm.group_by": "[traj_uid,agent_id,turn,call]" if sampling == "tree" else "[uid,agent_id]",
    }
    train(math({**OF_FILE, **changes, **(tree if sampling == "tree" else {})}))
    assert set(weights(tmp_path / "run", 2)) == {"solver", "second", "judge"}
    lines = read_metrics(tmp_path / "run")
    episodes = 2 if sampling == "tree" else 6
    assert 2 * episodes <= lines[1]["agent/solver/calls"] <= 3 * episodes
    assert (lines[1]["agent/second/calls"], lines[1]["agent/judge/calls"]) == (2 * episodes, episodes)


@pytest.mark.parametrize(
    ("agent_ids", "said"),
    [
        ("[Solver Agent]", "lacks Verifier Agent; set agent.agent_ids='[Solver Agent,Verifier Agent]'"),
        ("[Solver Agent,Verifier Agent,Judge]", "has Judge, which the file has not; set agent.agent_ids="),
    ],
)
def test_agents_that_are_not_the_files_are_refused_before_a_worker_starts(
    refused: Callable[[dict[str, Any]], str], agent_ids: str, said: str
) -> None:
    assert said in refused(math({**OF_FILE, "agent.agent_ids": agent_ids}))


def test_a_bad_file_is_refused_before_a_worker_starts(
    refused: Callable[[dict[str, Any]], str], tmp_path: Path
) -> None:
    (tmp_path / "team.yaml").write_text(FILE.read_text().replace("call: Verifier Agent", "call: Verifer"))
    said = refused(math({**OF_FILE, "agent.orchestra.graph.file": tmp_path / "team.yaml"}))
    assert said.endswith("do[0].do[1].call: no agent 'Verifer'; did you mean 'Verifier Agent'?")
