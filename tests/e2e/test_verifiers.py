"""Environments of the package `verifiers`, of one turn and of several, train behind the gateway with their
rubrics as rewards.
"""

from __future__ import annotations

import json
import re
import subprocess
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent_system.tools import calculator
from tests.conftest import save_tiny_model
from tests.e2e.conftest import Run, fit_digits, read_metrics
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
SUMS = '''
"""Sums of two digits from the package `reasoning-gym`, in the environment that `verifiers` has for it, with its prompt and its rubric."""

import verifiers as vf

TWO_DIGITS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "allow_negation": False}


def load_environment():
    sums = {"name": "chain_sum", "weight": 1.0, "config": TWO_DIGITS}
    return vf.ReasoningGymEnv([sums], num_train_examples=4, num_eval_examples=2)
'''


@pytest.fixture
def keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Callable[..., dict[str, Any]]:
    """Write an environment and its rows; returns the keys of a run that plays it."""
    if not request.config.getoption("--all-levels"):
        pytest.skip("takes two minutes to install: needs --all-levels")

    def go(name: str, source: str, **arguments: Any) -> dict[str, Any]:
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        python, rows, given = (
            python_with(*CLASSIC),
            tmp_path / "rows.jsonl",
            ("--args", json.dumps(arguments)),
        )
        subprocess.run([python, SCRIPT, "rows", name, *given, "--output", rows], check=True)
        return {
            "agent.orchestra_type": "gateway", "agent.agent_ids": "[Player]", "env.env_name": "gateway",
            "agent.plugins": "[]",
            "agent.team": json.dumps([python, SCRIPT, "team", name, *given]),
            "data.train_files": rows, "data.val_files": rows,
            "data.val_max_samples": 1, "trainer.log_trajectories": -1,
        }  # fmt: skip

    return go


def trajectories(run_dir: Path) -> list[dict[str, Any]]:
    """All episodes that were trained on."""
    files = sorted((run_dir / "trajectories").glob("train_*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("turns", [1, 2])
def test_an_environment_trains_with_its_rubric(
    train: Run, keys: Callable[..., dict[str, Any]], tmp_path: Path, turns: int
) -> None:
    train(keys("talks", TALKS, turns_of_talk=turns) | {"data.max_prompt_length": 200, "env.rollout.n": 2})
    steps = [line for line in read_metrics(tmp_path / "run") if "actor/lr" in line]
    assert len(steps) == 2 and all(line["actor/grad_norm"] > 0 for line in steps)
    assert all(line["env/verifiers/turns"] == 2 * turns - 1 for line in steps)
    for episode in trajectories(tmp_path / "run"):
        calls = episode["calls"]
        assert len(calls) == turns and {call["reward"] for call in calls} == {
            zlib.crc32(calls[-1]["action"].encode()) % 100 / 100
        }
        assert all(
            later["prompt"].startswith(first["prompt"]) and "more of" in later["prompt"]
            for first, later in pairwise(calls)
        )


def test_an_environment_of_the_package_trains(
    train: Run, keys: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """`ReasoningGymEnv`, with a model that answers with one of two digits, which are the sums of two
    tasks.
    """
    changes = keys("sums", SUMS)
    rows = [
        json.loads(line)["extra_info"]["verifiers"]
        for line in Path(changes["data.train_files"]).read_text().splitlines()
    ]
    chats = [json.loads(row)["prompt"] for row in rows]
    model = fit_digits(
        save_tiny_model(tmp_path / "model", max_position_embeddings=4096),
        chats,
        "<answer>",
        "</answer>",
        "36",
    )
    sizes = {"data.max_prompt_length": 1024, "data.max_response_length": 24, "env.rollout.n": 4}
    train(changes | sizes | {"actor_rollout_ref.model.path": model})
    right = {False: set[float](), True: set[float]()}
    for episode in trajectories(tmp_path / "run"):
        (call,) = episode["calls"]
        right[
            call["action"]
            == f"<answer>{calculator(re.findall(r'problem: (.*) =', call['prompt'])[0])}</answer>"
        ].add(call["reward"])
        assert call["reward"] == episode["info"]["verifiers/check_answer_reward_func"]
    assert right[True] == {1.0} and max(right[False]) < 1.0
    assert any(line["actor/grad_norm"] > 0 for line in read_metrics(tmp_path / "run") if "actor/lr" in line)
