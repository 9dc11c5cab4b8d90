"""`verl-mas report`: the file, `--check` for CI, `--json` for programs, one-line errors."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import commands
from tests.house.source import ROOT
from tests.report.reading import data_of, small_run
from verl.report import index
from verl.report.cli import main

ALARM: dict[str, Any] = {
    "number": 9,
    "name": "entropy is gone",
    "level": "worse",
    "raised": 12,
    "cleared": None,
    "text": "0.1 of its start",
    "try": ["actor_rollout_ref.actor.entropy_coeff=0.01", "a higher temperature"],
    "episodes": [0],
    "series": [],
}


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


@pytest.fixture
def alarms(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The alarms that every run raises."""
    raised: list[dict[str, Any]] = []
    monkeypatch.setattr(index, "raised_alarms", lambda run: raised)
    return raised


def test_it_writes_the_page_into_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], alarms: list
) -> None:
    folder = small_run(tmp_path / "run")
    assert call(folder) == 0
    page = folder / "report.html"
    assert capsys.readouterr().out == f"{page} ({page.stat().st_size / 1e6:.1f} MB)\n"
    assert data_of((folder / "report.html").read_text())["index"]["runs"][0]["name"] == "run"
    assert not list(folder.glob(".report*"))


def test_several_runs_make_one_page_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alarms: list
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [small_run(tmp_path / name) for name in ("a", "b")]
    assert call(*folders) == 0
    data = data_of((tmp_path / "report.html").read_text())
    assert [run["name"] for run in data["index"]["runs"]] == ["a", "b"] and data["index"]["compare"]


def test_check_exits_with_three_if_an_alarm_is_raised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], alarms: list
) -> None:
    folder = small_run(tmp_path / "run")
    out = tmp_path / "out" / "page.html"
    alarms += [ALARM | {"cleared": 20}, ALARM | {"level": "hint", "number": 17}]
    assert call(folder, "--check", "--out", out) == 0
    capsys.readouterr()
    alarms.append(ALARM)
    assert call(folder, "--check", "--out", out) == 3
    assert capsys.readouterr().out == (
        "run: step 12: entropy is gone: 0.1 of its start; try actor_rollout_ref.actor.entropy_coeff=0.01, "
        f"a higher temperature ({out}#/overview?run=0&alarm=9)\n{out} ({out.stat().st_size / 1e6:.1f} MB)\n"
    )
    assert call(folder, "--out", out) == 0


def left_by(folder: Path, **state: Any) -> Path:
    """What a start leaves that has not come to its first step: run.json and config.yaml."""
    folder.mkdir()
    (folder / "config.yaml").write_text("data:\n  seed: 1\n")
    start = {"started": time.time(), "from_step": None}
    content = {"format": 1, "attempt": start, "step": 0, "heartbeat": time.time()} | state
    (folder / "run.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("state", "error", "status", "said"),
    [
        ("failed", "DiskError: full\nline \x1b[2J", 4, "run: failed: DiskError: full line \\x1b[2J"),
        ("failed", None, 4, "run: failed: run.json has no error"),
        ("failed", {"a": 1}, 4, 'run: failed: {"a": 1}'),
        ("stopped", None, 0, ""),
        ("done", None, 0, ""),
        ("running", None, 0, ""),
        (["failed"], None, 0, ""),
    ],
)  # fmt: skip
def test_check_says_how_a_run_has_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state: Any, error: Any, status: int, said: str
) -> None:
    folder = left_by(tmp_path / "run", state=state, error=error)
    assert call(folder, "--check") == status
    first = capsys.readouterr().out.splitlines()[0]
    assert first == said if said else "failed" not in first
    assert call(folder, "--check", "--json") == status
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["state"], run["error"]) == (state, error)
    assert call(folder) == 0


def test_a_failed_run_among_others_is_named_and_an_alarm_keeps_its_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], alarms: list
) -> None:
    folders = [left_by(tmp_path / name, state=name) for name in ("done", "failed")]
    arguments = (*folders, "--check", "--out", tmp_path / "page.html")
    assert call(*arguments) == 4
    assert "failed: failed: " in capsys.readouterr().out
    alarms.append(ALARM)
    assert call(*arguments) == 3
    assert "failed: failed: " in capsys.readouterr().out


def test_what_a_model_wrote_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], alarms: list
) -> None:
    folder = small_run(tmp_path / os.fsdecode(b"run \xff"))
    alarms.append(ALARM | {"text": "\x1b[2J\u202e\ud800\r\nnot a line of its own \u00e9\u0007"})
    assert call(folder) == 0
    out = capsys.readouterr().out
    assert "\\x1b[2J\\u202e\\ud800 not a line of its own \u00e9\\x07; try" in out and out.count("\n") == 2
    assert out.replace("\n", "").isprintable() and "run \\udcff" in out
    assert "<title>run \\udcff - " in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("text", "remedies", "said"),
    [
        ("One. Two.", ["a=1"], "One. Two; try a=1 ("),
        ("One. Two", ["a=1", "b"], "One. Two; try a=1, b ("),
        ("Groups of 0.5.", [], "Groups of 0.5. ("),
        (None, ["a"], "None; try a ("),
    ],
)  # fmt: skip
def test_the_text_of_an_alarm_and_its_remedies_are_one_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    alarms: list,
    text: Any,
    remedies: list[str],
    said: str,
) -> None:
    folder = small_run(tmp_path / "run")
    alarms.append(ALARM | {"text": text, "try": remedies})
    assert call(folder) == 0
    assert f": {said}" in capsys.readouterr().out


@pytest.mark.parametrize(("val_before", "steps"), [(True, 4), (False, 4), (True, 1)])
def test_json_counts_the_steps_of_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], alarms: list, val_before: bool, steps: int
) -> None:
    folder = small_run(tmp_path / "run", steps=steps)
    metrics = folder / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    assert json.loads(lines[0])["step"] == 0
    metrics.write_text("".join(lines if val_before else lines[1:]))
    assert call(folder, "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["steps"] == steps


def test_json_has_the_address_of_each_alarm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], alarms: list
) -> None:
    folder = small_run(tmp_path / "run")
    alarms.append(ALARM)
    assert call(folder, "--check", "--json") == 3
    said = json.loads(capsys.readouterr().out)
    (run,) = said["runs"]
    assert run["alarms"] == [ALARM | {"address": f"{folder}/report.html#/overview?run=0&alarm=9"}]
    assert (run["state"], run["steps"], run["episodes"], run["left_out_texts"]) == ("done", 2, 18, 0)
    assert said["bytes"] == (folder / "report.html").stat().st_size and run["accuracy"]["after"]["n"] == 3


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["RUN/nowhere"], 1, "error: RUN/nowhere is not there; expected the folder of a run "),
        (["RUN", "--out", "RUN/config.yaml/x.html"], 1, "error: RUN/config.yaml could not be written: "),
        (["RUN", "--max-mb", "0"], 2, "argument --max-mb: 0 is not above 0 and at most 1000"),
        (["RUN", "--max-mb", "x"], 2, "argument --max-mb: invalid _megabytes value: 'x'"),
        ([], 2, "the following arguments are required: RUN"),
    ],
)  # fmt: skip
def test_errors_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, said: str
) -> None:
    folder = small_run(tmp_path / "run")
    assert call(*(argument.replace("RUN", str(folder)) for argument in arguments)) == status
    err = capsys.readouterr().err
    assert said.replace("RUN/", f"{folder}/") in err
    assert status == 2 or err.count("\n") == 1


def test_the_command_runs_from_any_folder(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-m", "agent_system.launch.command", "report", "run", "--json"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["file"] == "run/report.html" and (folder / "report.html").is_file()


@pytest.mark.parametrize(
    "command", sorted({line for _, line in commands() if line.startswith("verl-mas report")})
)
def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alarms: list, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("outputs/verl-mas/math_seed0", "outputs/verl-mas/math_seed1", "RUN"):
        small_run(tmp_path / name)
    assert call(*shlex.split(command)[2:]) == 0
    assert len(list(tmp_path.rglob("*.html"))) == 1
