"""`python -m agent_system.new` writes a workflow that can be tested and trained as it stands."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent_system.new.__main__ import TEMPLATE, main
from tests.docs.test_readme import environment


def run(folder: Path, *command: str, python: str = sys.executable) -> str:
    """Run a command in a folder, where `python` is this one, and return what it wrote; it must succeed."""
    done = subprocess.run(
        command, cwd=folder, env=environment(python), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.e2e
def test_the_folder_that_is_written_passes_its_test_and_trains(tmp_path: Path, forked_python: str) -> None:
    assert "bash tide_pool/train.sh" in run(tmp_path, forked_python, "-m", "agent_system.new", "tide_pool")
    flow = tmp_path / "tide_pool"
    files = {path.name: path.read_text() for path in flow.iterdir()}
    assert sorted(files) == ["README.md", "__init__.py", "env.py", "team.py", "test_tide_pool.py", "train.sh"]
    assert "class TidePool(BaseOrchestra)" in files["team.py"] and not any(
        "my_flow" in text.lower() for text in files.values()
    )
    assert "2 passed" in run(tmp_path, forked_python, "-m", "pytest", "tide_pool", "-p", "no:cacheprovider")
    run(tmp_path, "bash", "tide_pool/train.sh", "agent.orchestra.tide_pool.revisions=2", python=forked_python)
    written = tmp_path / "outputs" / "verl-mas" / "tide_pool" / "metrics.jsonl"
    metrics = [json.loads(line) for line in written.read_text().splitlines()]
    assert [line["step"] for line in metrics] == [0, 1, 2]
    for agent in ("writer", "editor"):
        assert sum(line[f"wg/{agent}/actor/grad_norm"] for line in metrics[1:]) > 0
    assert metrics[1]["agent/editor/calls"] == 2 * metrics[1]["agent/writer/calls"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("9lives", "named like a Python package"),
        ("MyFlow", "named like a Python package"),
        ("my-flow", "named like a Python package"),
        ("", "named like a Python package"),
        ("../flow", "named like a Python package"),
        ("class", "named like a Python package"),
        ("plan_path", "built-in workflow"),
        ("json", "installed package"),
        ("verl", "installed package"),
        ("there", "exists, so nothing was written"),
    ],
)
def test_a_bad_name_and_a_folder_that_exists_are_refused_in_one_line(
    name: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    with pytest.raises(SystemExit, match="2"):
        main([name])
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line and [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_what_a_new_user_owns_is_short() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in TEMPLATE.iterdir() if path.is_file()}
    assert all(count <= 60 for count in lines.values()) and sum(lines.values()) <= 220, lines
