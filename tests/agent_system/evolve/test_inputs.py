"""What the header of a search has of files that keys name, and of keys that end a search."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent_system.evolve.inputs import named_files
from agent_system.evolve.settings import EvolveSettings
from agent_system.launch.evolving import EngineSearch
from agent_system.workflows.graph.team import Team
from benchmarks.shared.scripted_lookup import ALONE
from verl.trainer.config import RunConfig


def test_files_that_keys_name_count_by_their_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("reward.py", "judge.txt", "tasks.parquet", "evolve_tools_of_test.py", "rules.json"):
        (tmp_path / name).write_text(name)
    monkeypatch.syspath_prepend(tmp_path)
    values = {
        "reward.custom_reward_function.path": f"{tmp_path}/reward.py",
        "reward.agent_functions": {".*": f"{tmp_path}/reward.py:local", "Solver": "evolve_tools_of_test:f"},
        "reward.model.template": f"{tmp_path}/judge.txt",
        "agent.plugins": ["no_such_module_of_test", ".", "json"],
        "agent.orchestra": {"tools": {"look": "evolve_tools_of_test:look"}},
        "env.env_name": "math",
        "env.params": {"rules": [f"{tmp_path}/rules.json"], "text": "x" * 10_000, "zero": "\0"},
        "data.train_files": [f"{tmp_path}/tasks.parquet"],
    }
    hashes = named_files(values)
    files = {f"{tmp_path}/{name}" for name in ("reward.py", "judge.txt", "rules.json")}
    assert set(hashes) == {*files, "evolve_tools_of_test", "json"}
    assert "evolve_tools_of_test" not in sys.modules, "it is read, not run"
    for name in ("reward.py", "judge.txt", "evolve_tools_of_test.py", "rules.json"):
        (tmp_path / name).write_text("other")
        changed = named_files(values)
        (tmp_path / name).write_text(name)
        assert [key for key in hashes if hashes[key] != changed[key]] == [
            key for key in hashes if name.partition(".")[0] in key
        ]


def header(config: RunConfig, **settings: Any) -> dict[str, Any]:
    plan: Any = SimpleNamespace(groups=[])
    search = EngineSearch(EvolveSettings(**settings), config, plan, [Team.parse(ALONE)], [], Path())
    return search._header([], [])


def test_the_header_has_device_and_files_but_no_budget(tmp_path: Path) -> None:
    config = RunConfig()
    config.trainer.device = "cpu"
    start = tmp_path / "start.yaml"
    start.write_text(ALONE)
    config.agent.orchestra = {"graph": {"file": str(start), "tools": {}}}
    reward = tmp_path / "reward.py"
    reward.write_text("1")
    config.reward.custom_reward_function.path = str(reward)
    before = header(config)
    assert before["device"] == "cpu" and list(before["files"]) == [str(reward)]
    assert header(config, budget_tokens=7, generations=99) == before
    assert header(config, children=7) != before
    start.write_text(f"# a comment\n{ALONE}")
    assert header(config) == before
    reward.write_text("2")
    assert header(config) != before
