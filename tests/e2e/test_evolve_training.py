"""`verl-mas evolve` that trains between generations, with a tiny model: adapters by role, which the next
generation plays with and inherits; a kill in the middle of a training; and what cannot be trained.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_system.workflows.graph.team import Team
from tests.e2e.test_evolve import FILES, ended, started
from tests.e2e.test_evolve import inputs as inputs
from verl.workers.rollout.vllm.process import PARENT

# two searches with two trainings each; in one process, which runs the undisturbed one once
pytestmark = pytest.mark.timeout(900)
TRAINED = [
    "evolve.train_steps=1",
    "agent.specialization=lora",
    "actor_rollout_ref.model.lora_rank=4",
    "actor_rollout_ref.actor.optim.lr=0.05",
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=4",
    "env.rollout.n=4",
    "trainer.controller=local",
    "evolve.tasks=16",
    "evolve.confirm=16",
]


def keys_of(inputs: list[str]) -> list[str]:
    left_out = ("evolve.tasks", "evolve.confirm", "agent.specialization")
    return [key for key in inputs if not key.startswith(left_out)] + TRAINED


# The search as a script, whose trainings are forked as it is itself. The kernel kills a training with its
# parent, which for a forked one is not the search.
SCRIPT = """
import runpy, sys
sys.executable = {python!r}
runpy.run_module("agent_system.evolve", run_name="__main__", alter_sys=True)
"""
WITHOUT_PARENT = '#!/bin/sh\nunset {variable}\nexec "{python}" "$@"\n'
Ended = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def ended_forked(forked_python: str, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """As `ended`, of a search whose trainings start at once."""
    folder = tmp_path_factory.mktemp("forked_trainings")
    python = folder / "python"
    python.write_text(WITHOUT_PARENT.format(variable=PARENT, python=forked_python))
    python.chmod(0o755)
    script = folder / "evolve.py"
    script.write_text(SCRIPT.format(python=str(python)))
    return lambda where, *keys: ended(where, forked_python, *keys, program=(str(script),))


@dataclass(frozen=True)
class Search:
    """A search that nothing disturbed: what it printed, its folder, and `FILES` as they were at its end."""

    out: str
    folder: Path
    contents: dict[str, bytes]


@pytest.fixture(scope="module")
def whole(inputs: list[str], tmp_path_factory: pytest.TempPathFactory, ended_forked: Ended) -> Search:
    folder = tmp_path_factory.mktemp("whole")
    status, out, error = ended_forked(folder, *keys_of(inputs))
    assert status == 0, error
    return Search(out, folder, {name: (folder / "evolve" / name).read_bytes() for name in FILES})


def test_roles_learn_between_generations(inputs: list[str], whole: Search, forked_python: str) -> None:
    assert "training 1: " in whole.out and "training 2: " in whole.out
    folder = whole.folder / "evolve"
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    first, second = [line for line in lines if line["event"] == "train"]
    assert first["generation"] == 1 and second["generation"] == 2
    assert first["tokens"] > 0 and first["roles"]["Solver"] == "gen_1/policies/solver"
    assert second["roles"]["Solver"] == "gen_2/policies/solver"
    assert second["weights"]["Solver"] != first["weights"]["Solver"]
    asked = (folder / "gen_2" / "run.yaml").read_text()
    assert f"{folder}/gen_1/policies/solver" in asked, "each training begins with the adapters of the last"
    for training in (first, second):
        place = lines.index(training)
        again = lines[place + 1]
        assert again["event"] == "play" and again["files"] == training["files"] and again["first"] == 0
    report = (folder / "report.md").read_text()
    assert "2 trainings of 1 steps" in report and " -> " in report
    assert "It has played with the adapters of its roles: " in report
    assert Team.load(folder / "best.yaml").key() == lines[-1]["file"]

    adapter = folder / "gen_2" / "policies" / "solver" / "adapter_model.safetensors"
    content = adapter.read_bytes()
    adapter.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    status, _, error = ended(whole.folder, forked_python, *keys_of(inputs))
    assert status == 1 and "the adapter of 'Solver' is not the one with which the search went on" in error


def test_a_search_that_was_killed_in_a_training_ends_as_one_that_was_not(
    inputs: list[str], whole: Search, tmp_path: Path, forked_python: str, ended_forked: Ended
) -> None:
    """The training that is killed with its search is a process that the search has started itself."""
    keys = keys_of(inputs)
    process = started(tmp_path / "killed", forked_python, *keys)
    killed = tmp_path / "killed" / "evolve"
    while process.poll() is None and not (killed / "gen_1" / "train.log").exists():
        time.sleep(0.01)
    time.sleep(1.0)
    process.kill()
    process.communicate()
    status, _, error = ended_forked(tmp_path / "killed", *keys)
    assert status == 0, error
    for name in FILES:
        assert (killed / name).read_bytes() == whole.contents[name], name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "agent.specialization=prompt",
            "evolve.train_steps=1 trains an adapter for every role: set agent.spe",
        ),
        ("agent.adapter_ids=[a]", "so agent.adapter_ids cannot name them; leave it out"),
        (
            "agent.api={solver: {base_url: 'http://127.0.0.1:9/v1', model: m}}",
            "Solver of the files is behind",
        ),
        ("algorithm.adv_estimator=grop", "grop"),
    ],
)
def test_what_cannot_be_trained_is_one_line_before_a_model_loads(
    inputs: list[str], tmp_path: Path, forked_python: str, change: str, said: str
) -> None:
    keys = [key for key in keys_of(inputs) if not key.startswith(change.partition("=")[0] + "=")]
    status, _, error = ended(tmp_path, forked_python, *keys, change)
    assert status == 1 and said in error.splitlines()[-1], error
