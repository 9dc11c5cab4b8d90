"""Environments of the package `verifiers`, of one turn and of several, train behind the gateway with their rubrics as rewards."""

from __future__ import annotations

import json
import subprocess
import zlib
from itertools import pairwise
from pathlib import Path

import pytest

from tests.e2e.conftest import Run, read_metrics
from tests.environments import python_with
from tests.examples.test_verifiers import CLASSIC, SCRIPT

pytestmark = [pytest.mark.timeout(900)]
TALKS = '''
"""Talks of a number of turns, whose rubric scores the text of the last reply."""

import zlib

import verifiers as vf
from datasets import Dataset


class Talk(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": f"more of {state['answer']}"}]


async def varied(completion, **kwargs):
    last = completion[-1]
    return zlib.crc32((last["content"] if isinstance(last, dict) else last.content).encode()) % 100 / 100


async def turns(completion, **kwargs):
    return len(completion)


def load_environment(turns_of_talk=1):
    rows = Dataset.from_list([{"question": f"{number}?", "answer": str(number)} for number in range(4)])
    rubric = vf.Rubric(funcs=[varied, turns], weights=[1.0, 0.0])
    one = turns_of_talk == 1
    return vf.SingleTurnEnv(dataset=rows, rubric=rubric) if one else Talk(dataset=rows, rubric=rubric, max_turns=turns_of_talk)
'''


@pytest.mark.parametrize("turns", [1, 2])
def test_an_environment_trains_with_its_rubric(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, turns: int
) -> None:
    if not request.config.getoption("--all-levels"):
        pytest.skip("takes two minutes to install: needs --all-levels")
    python, rows, arguments = python_with(*CLASSIC), tmp_path / "rows.jsonl", json.dumps({"turns_of_talk": turns})
    (tmp_path / "talks.py").write_text(TALKS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    subprocess.run([python, SCRIPT, "rows", "talks", "--args", arguments, "--output", rows], check=True)
    command = json.dumps([python, SCRIPT, "team", "talks", "--args", arguments])
    train(
        {
            "agent.orchestra_type": "gateway", "agent.agent_ids": "[Player]", "env.env_name": "gateway", "agent.team_command": command,
            "data.train_files": rows, "data.val_files": rows, "data.val_max_samples": 1, "data.max_prompt_length": 200, "env.rollout.n": 2,
            "agent.plugins": "[]", "trainer.log_trajectories": -1,
        }
    )  # fmt: skip
    steps = [line for line in read_metrics(tmp_path / "run") if "actor/lr" in line]
    assert len(steps) == 2 and all(line["actor/grad_norm"] > 0 for line in steps)
    assert all(line["env/verifiers/turns"] == 2 * turns - 1 for line in steps)
    for file in sorted((tmp_path / "run" / "trajectories").glob("train_*.jsonl")):
        for line in file.read_text().splitlines():
            calls = json.loads(line)["calls"]
            assert len(calls) == turns and {call["reward"] for call in calls} == {zlib.crc32(calls[-1]["action"].encode()) % 100 / 100}
            assert all(later["prompt"].startswith(first["prompt"]) and "more of" in later["prompt"] for first, later in pairwise(calls))
