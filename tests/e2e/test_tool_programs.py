"""A Plan-Path team whose Tool writes programs trains, is validated, and is evaluated with its roles
swapped.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from agent_system import AgentSystemError
from agent_system.projection import Projection
from agent_system.workflows.plan_path import EXECUTOR, TOOL, PlanPathProposerAgent
from agent_system.workflows.plan_path.world.generate import PlanPathDifficulty, generate, to_row
from agent_system.workflows.programs import Program
from tests.e2e.conftest import Run, read_metrics

# A random model writes no programs: here any reply stands for one of these.
PROGRAMS = ("print('R')", "print('D', 'L')", "print(1 / 0)")


def mumbled(self: PlanPathProposerAgent, text: str) -> Projection:
    return Projection(Program(PROGRAMS[zlib.crc32(text.encode()) % 3]), True, {}, text)


@pytest.fixture
def team(train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Train on two small maps, with changes."""
    monkeypatch.setattr(PlanPathProposerAgent, "project", mumbled)
    rows = [
        to_row(grid, i, "train")
        for i, grid in enumerate(
            generate(2, 0, PlanPathDifficulty(size=3, wall_share=0.0, min_path=2, max_path=4))
        )
    ]
    (tmp_path / "maps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = {
        "agent.orchestra_type": "plan_path",
        "agent.orchestra.plan_path.tool": "code",
        "agent.agent_ids": "[Tool Agent,Executor Agent]",
        "agent.specialization": "full",
        "algorithm.group_by": "[traj_uid,agent_id,turn,call]",
        "rollout.sampling": "tree",
        "rollout.tree.k": 4,
        "reward.team_scope": "call",
        "env.env_name": "plan_path",
        "env.rollout.n": 1,
        "env.max_steps": 1,
        "data.train_files": tmp_path / "maps.jsonl",
        "data.val_files": tmp_path / "maps.jsonl",
        "data.max_prompt_length": 2048,
        "sandbox.min_level": "rlimits",
        "sandbox.workers": 2,
        "trainer.total_training_steps": 1,
    }
    return lambda changes=None: train(keys | dict(changes or {}))


def programs_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """The Tool's calls of a step, after checking that the Executor has read what the program of its episode
    printed.
    """
    found = []
    for line in (folder / "trajectories" / f"{name}_000001.jsonl").read_text().splitlines():
        calls = json.loads(line)["calls"]
        (chosen,) = [call for call in calls if call["agent_id"] == TOOL and call["committed"]]
        read = ("R", "D, L", "none: the program failed (error) ZeroDivisionError")[
            PROGRAMS.index(chosen["action"])
        ]
        executors = [call for call in calls if call["agent_id"] == EXECUTOR]
        assert executors and all(f"program proposes: {read}" in call["prompt"] for call in executors)
        found += [call for call in calls if call["agent_id"] == TOOL]
    return found


def test_programs_are_run_in_training_in_validation_and_with_swapped_roles(team: Run, tmp_path: Path) -> None:
    team()
    run_dir = tmp_path / "run"
    tried = programs_of(run_dir, "train")
    assert len(tried) == 2 * 4 and all(
        (call["local_reward"] == -0.5) == (call["action"] == PROGRAMS[2]) for call in tried
    )
    assert programs_of(run_dir, "val")
    assert any(name.endswith("env/tool/failed_runs") for name in read_metrics(run_dir)[-1])
    team(
        {
            "trainer.val_only": True,
            "agent.role_policies": "{Tool Agent: executor_agent, Executor Agent: tool_agent}",
        }
    )
    swapped = programs_of(run_dir / "swapped" / "tool_agent-executor_agent+executor_agent-tool_agent", "val")
    assert {call["policy_id"] for call in swapped} == {"executor_agent"}


def test_sandbox_keys_of_a_team_that_writes_moves_are_refused(team: Run) -> None:
    with pytest.raises(AgentSystemError, match=r"sandbox\.min_level, sandbox\.workers has no effect"):
        team({"agent.orchestra.plan_path.tool": "moves"})
