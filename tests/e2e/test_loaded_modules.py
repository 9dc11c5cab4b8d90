"""What a run loads: no part that its command line does not ask for."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.house.source import PACKAGES, ROOT

pytestmark = pytest.mark.spread

TRAIN = f"""
import json, sys
from agent_system.launch.first_checks import first_checks
first_checks(sys.argv[1:])
from agent_system.launch.train import cli
cli()
print(json.dumps([name for name in sys.modules if name.split(".")[0] in {PACKAGES!r}]))
"""
MATH: Mapping[str, Any] = {
    "agent.plugins": "[]",
    "agent.orchestra_type": "math",
    "agent.orchestra.math.prompt_style": "short",
    "agent.agent_ids": "[Solver Agent,Verifier Agent]",
    "env.env_name": "math",
    "data.max_prompt_length": 512,
    "trainer.total_training_steps": 1,
    "data.val_files": "[]",
}
NOT_LOADED = (
    "agent_system.gateway",
    "agent_system.env_workers.pool",
    "agent_system.reward.model",
    "agent_system.rollout.endpoint",
    "agent_system.rollout.tree_call",
    "agent_system.sandbox.local",
    "agent_system.tools.agent",
    "agent_system.tools.mcp",
    "agent_system.workflows.code",
    "agent_system.workflows.graph",
    "agent_system.workflows.search",
    "verl.trainer.plan.presets",
    "verl.trainer.ppo.asynchronous.lanes",
    "verl.trainer.ppo.asynchronous.check_keys",
    "verl.trainer.ppo.asynchronous.stream",
    "verl.trainer.ppo.core_algos.estimators.gae",
    "verl.trainer.ppo.core_algos.policy_losses.gspo",
    "verl.trainer.sft",
    "verl.workers.critic_worker",
    "verl.workers.rollout.vllm",
    "verl.workers.weight_transfer.broadcast",
)


def loaded_by(command: list[str], folder: Path, python: str = sys.executable) -> list[str]:
    """Train in a process of its own, and return the modules of ours that it has at its end."""
    program = folder / "train.py"
    program.write_text(TRAIN)
    done = subprocess.run(
        [python, str(program), *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return names


def within(names: list[str], part: str) -> list[str]:
    return [name for name in names if name == part or name.startswith(f"{part}.")]


def test_a_run_in_names_of_this_package_loads_nothing_of_verls_nor_any_part_that_it_does_not_use(
    overrides: Callable[..., list[str]], tmp_path: Path
) -> None:
    names = loaded_by(overrides(MATH), tmp_path)
    assert within(names, "verl.compat") == []
    assert [name for part in NOT_LOADED for name in within(names, part)] == []
    assert "verl.trainer.ppo.core_algos.policy_losses.vanilla" in names


def test_a_run_in_names_of_verl_loads_their_translation_alone(
    overrides: Callable[..., list[str]], tmp_path: Path, forked_python: str
) -> None:
    """Forked from a process that has nothing of `verl.compat`."""
    command = [override for override in overrides(MATH) if not override.startswith("env.rollout.n=")]
    names = loaded_by([*command, "actor_rollout_ref.rollout.n=3"], tmp_path, forked_python)
    assert set(within(names, "verl.compat")) == {
        "verl.compat",
        *(f"verl.compat.{name}" for name in ("command", "defaults", "fully_async", "keys", "values")),
    }
