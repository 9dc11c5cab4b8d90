"""A team written with an OpenAI client trains as an orchestra does, to the last bit of its weights."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agent_system.registry import AgentRegistry
from tests.e2e.conftest import Run, read_metrics, weights
from tests.e2e.teams import LEVELS
from tests.e2e.test_one_step_off import ONE_STEP_OFF

pytest.importorskip("openai")

PROGRAM = '''
"""A program with an OpenAI client, and agents with the projection of those of `my_flow`."""

from openai import AsyncOpenAI

from agent_system.agent import BaseAgent
from agent_system.registry import AgentRegistry
from my_flow_package import Asker, Verifier, whole_text

for name, role in (("Asker", Asker), ("Verifier Agent", Verifier)):
    AgentRegistry.register(name, orchestra="gateway")(role)


async def alone(task, session):
    async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
        messages = [{"role": "user", "content": task.prompt}]
        return (await client.chat.completions.create(model="Asker", messages=messages)).choices[0].message.content


async def team(task, session):
    async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:

        async def say(agent, text):
            messages = [{"role": "user", "content": text}]
            return (await client.chat.completions.create(model=agent, messages=messages)).choices[0].message.content

        asked = (await say("Asker", f"Ask: {task.prompt}")).strip()  # as an orchestra shows it
        return await say("Verifier Agent", f"Judge: {task.prompt}Asker: {asked}")
'''
COMPARED = (
    "agent_id",
    "turn",
    "call",
    "prompt",
    "reply",
    "act_reward",
    "local_reward",
    "reward",
    "seed",
    "response_tokens",
    "valid",
)


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Overrides of a run with `PROGRAM` as the team."""
    (tmp_path / "my_program.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_program", raising=False)
    yield {"agent.orchestra_type": "gateway", "agent.team": "my_program:team", "gateway.seed_by": "order"}
    for name in ("Asker", "Verifier Agent"):  # other tests have a Verifier Agent of their own
        AgentRegistry.remove(name, orchestra="gateway")


def calls(run_dir: Path) -> list[list[dict[str, Any]]]:
    """What the calls of every training episode had in common with those of another run."""
    lines = [
        line
        for file in sorted((run_dir / "trajectories").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    return [[{name: call[name] for name in COMPARED} for call in json.loads(line)["calls"]] for line in lines]


@pytest.mark.parametrize("mode", [{}, ONE_STEP_OFF], ids=["sync", "one_step_off"])
def test_a_program_trains_two_policies_to_the_same_bits_as_an_orchestra(
    train: Run, gateway: dict[str, Any], tmp_path: Path, scored: list[Any], mode: dict[str, Any]
) -> None:
    runs = {"gateway": gateway, "orchestra": {}}
    for name, changes in runs.items():
        train(
            {**mode, **changes, "trainer.default_local_dir": tmp_path / name, "data.max_prompt_length": 200}
        )
    assert calls(tmp_path / "gateway") == calls(tmp_path / "orchestra") != []
    for ours, orchestras in zip(scored[:2], scored[2:], strict=True):
        for name in ("input_ids", "response_mask", "rollout_log_probs", "advantages"):
            assert torch.equal(ours.batch[name], orchestras.batch[name]), name
    trained = weights(tmp_path / "gateway", 2)
    assert sorted(trained) == ["asker", "verifier_agent"] and trained == weights(tmp_path / "orchestra", 2)
    lines = read_metrics(tmp_path / "gateway")
    assert [line["gateway/undelivered"] for line in lines if "actor/lr" in line] == [0, 0]
    assert all(
        line[f"wg/{group}/actor/grad_norm"] > 0 for line in lines if "actor/lr" in line for group in trained
    )


def test_a_program_trains_at_every_level_of_specialization(
    train: Run, gateway: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("L0", "L1", "L2", "frozen"):
        level, run_dir = LEVELS[name], tmp_path / name
        alone = {"agent.team": "my_program:alone"} if name == "L0" else {}
        train({**level.changes, **gateway, **alone, "trainer.default_local_dir": run_dir})
        steps = [line for line in read_metrics(run_dir) if "actor/lr" in line]
        learned = {
            policy
            for policy in set(level.policy_of.values())
            if any(line.get(f"wg/{policy}/actor/grad_norm") for line in steps)
        }
        assert learned == level.trained, name


def test_a_tree_and_a_missing_program_are_refused_before_a_worker_starts(
    refused: Any, gateway: dict[str, Any]
) -> None:
    tree = {"rollout.sampling": "tree", "env.env_name": "my_forkable_world", "reward.team_scope": "call"}
    assert "a program cannot be forked" in refused(gateway | tree)
    assert "needs the program of the team as module:function" in refused({"agent.orchestra_type": "gateway"})
    assert "agent.orchestra.gateway.command has no effect" in refused(
        gateway | {"agent.orchestra.gateway.command": "[python,x.py]"}
    )
    assert "gateway.seed_by=order" in refused({"gateway.seed_by": "order"})
    assert "it needs an agent with actor_rollout_ref.rollout.structured_outputs=true" in refused(
        gateway | {"gateway.structured": "mask"}
    )
