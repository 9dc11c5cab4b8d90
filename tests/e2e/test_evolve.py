"""`verl-mas evolve` as users run it, with the engine `hf` and a tiny model: a search, its files, a kill, and
what is refused before a model loads.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_system.evolve.replay import ReplayMemory
from agent_system.launch.evolving import SearchEngines, load_settings, open_search
from agent_system.workflows.data import write_split
from agent_system.workflows.graph.team import Team
from agent_system.workflows.lookup.world.generate import TASKS
from benchmarks.shared.scripted_lookup import ALONE, ROLES
from tests.e2e.test_reward_model import save_classifier
from tests.house.source import ROOT

FILES = ("ledger.jsonl", "report.md", "replies.jsonl", "best.yaml")
pytestmark = pytest.mark.spread


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> list[str]:
    """The settings of a small search."""
    folder = tmp_path_factory.mktemp("inputs")
    write_split(TASKS.split(96, 32, 0, None), folder)
    (folder / "alone.yaml").write_text(ALONE)
    (folder / "roles.yaml").write_text(ROLES)
    return [
        f"evolve.start=[{folder}/alone.yaml]", f"evolve.parts=[{folder}/roles.yaml]", "evolve.tasks=32",
        "evolve.confirm=32", "evolve.generations=3", "evolve.children=2", "env.env_name=lookup",
        f"actor_rollout_ref.model.path={tiny_model_dir}", f"data.train_files={folder}/train.parquet",
        f"data.val_files={folder}/test.parquet", "data.max_prompt_length=128", "data.max_response_length=8",
        "trainer.device=cpu", "trainer.num_threads=1", "agent.specialization=prompt",
    ]  # fmt: skip


def started(
    folder: Path, python: str, *arguments: str, program: Sequence[str] = ("-m", "agent_system.evolve")
) -> subprocess.Popen[str]:
    command = [python, *program, *arguments, f"trainer.default_local_dir={folder}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(folder: Path, python: str, *arguments: str, **more: Any) -> tuple[int, str, str]:
    process = started(folder, python, *arguments, **more)
    out, error = process.communicate(timeout=240)
    return process.returncode, out, error


def test_a_search_that_was_killed_ends_as_one_that_was_not(
    inputs: list[str], tmp_path: Path, forked_python: str
) -> None:
    status, out, error = ended(tmp_path / "whole", forked_python, *inputs, "evolve.budget_tokens=60000")
    assert status == 0, error
    assert "buys at most" in out and "generation 3/3" in out and "held-out tasks" in out
    ledger = tmp_path / "killed" / "evolve" / "ledger.jsonl"
    process = started(tmp_path / "killed", forked_python, *inputs, "evolve.budget_tokens=60000")
    while process.poll() is None and (not ledger.exists() or ledger.read_text().count("\n") < 5):
        time.sleep(0.01)
    process.kill()
    process.communicate()
    before = ledger.read_text().count("\n")
    status, out, error = ended(tmp_path / "killed", forked_python, *inputs, "evolve.budget_tokens=60000")
    assert status == 0, error
    assert f"going on after {before - 1} events" in out
    for name in FILES:
        whole, killed = (tmp_path / run / "evolve" / name for run in ("whole", "killed"))
        assert killed.read_bytes() == whole.read_bytes(), name
    folder = tmp_path / "whole" / "evolve"
    team = Team.load(folder / "best.yaml")
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert lines[-1]["event"] == "chosen" and lines[-1]["file"] == team.key()
    assert {line["event"] for line in lines} == {
        "header",
        "play",
        "proposal",
        "confirm",
        "held_out",
        "chosen",
    }
    content = (folder / "ledger.jsonl").read_bytes()
    status, _, error = ended(tmp_path / "whole", forked_python, *inputs, "evolve.budget_tokens=70000")
    assert status == 0, error
    assert (folder / "ledger.jsonl").read_bytes() == content, "its generations had ended it"
    others = [text for text in inputs if not text.startswith("evolve.children")]
    status, _, error = ended(tmp_path / "whole", forked_python, *others, "evolve.children=3")
    assert status == 1 and "has evolve.children=2, this one 3" in error


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("evolve.children=0", "evolve.children=0: expected at least 1 and at most 64"),
        ("evolve.childs=2", "unknown key evolve.childs; did you mean 'evolve.children'?"),
        ("evolve.start=[]", "evolve.start is empty"),
        ("evolve.start=[gone.yaml]", "gone.yaml: cannot be read"),
        ("evolve.proposer=Nobody", "evolve.proposer=Nobody: no agent of the run"),
        ("env.env_name=looup", "looup"),
    ],
)
def test_what_is_wrong_is_one_line_before_a_model_loads(
    inputs: list[str], tmp_path: Path, forked_python: str, change: str, said: str
) -> None:
    kept = [x for x in inputs if not x.startswith(change.partition("=")[0] + "=")]
    status, _, error = ended(tmp_path, forked_python, *kept, change)
    assert status == 1 and said in error.splitlines()[-1], error
    assert error.splitlines()[-1].startswith("error: ")


def test_the_reward_model_of_a_search_has_the_client_of_its_engine(
    inputs: list[str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    keys = [
        "reward.model.kind=sequence_classification", "reward.model.max_length=512",
        f"reward.model.path={save_classifier(tmp_path_factory.mktemp('classifier'))}",
        f"trainer.default_local_dir={tmp_path}",
    ]  # fmt: skip
    ours = [key for key in inputs if key.startswith("evolve.")]
    search = open_search(load_settings(ours), [*(key for key in inputs if key not in ours), *keys])
    (search.folder / "teams").mkdir(parents=True)
    engines = SearchEngines(search.config, search.plan)
    engines._clients = {group.wg_id: object() for group in search.plan.groups}
    teams = replace(search.unserved(ReplayMemory()), engines=engines)
    scorer = teams.collector(search.start[0])._models[True]
    assert scorer._model._client is engines._clients[search.plan.reward_model.wg_id]


def test_the_script_plays_the_embedded_model(checkout: Path, tmp_path: Path) -> None:
    small = [
        "evolve.tasks=16", "evolve.confirm=16", "evolve.generations=3", "evolve.children=1",
        "data.val_max_samples=8", "data.max_response_length=16",
        f"trainer.default_local_dir={tmp_path / 'run'}",
    ]  # fmt: skip
    environment = os.environ | {"DEMOS": "96", "EMBEDDED_DIR": str(tmp_path / "embedded")}
    done = subprocess.run(
        ["bash", "examples/run_evolve.sh", *small],
        cwd=checkout, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    ledger = (tmp_path / "run" / "evolve" / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in ledger[:2]] == ["header", "play"]
    # so short a warm start teaches hardly anything
    assert done.returncode == 0 or "the start files score 0 on all 16 tasks" in done.stderr, done.stderr
