"""Folders as they are found: damaged, empty, running, resumed, used before, old, foreign."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.report.reading import column, rewrite, small_run
from verl.report.folder import ReportError, RunFolder
from verl.report.index import read_report


def run_at(folder: Path) -> dict[str, Any]:
    return read_report([folder]).runs[0]


def state_of(folder: Path, **changes: Any) -> None:
    file = folder / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, r"is not there; expected the folder of a run \(trainer.default_local_dir\)"),
        (lambda folder: folder.write_text(""), "run is a file; expected the folder of a run"),
        (lambda folder: folder.mkdir(), r"has none of run.json, metrics.jsonl, trajectories \(in it: no"),
        (lambda folder: (folder / "src").mkdir(parents=True), r"\(in it: src\); name the folder of a run"),
        (lambda folder: small_run(folder / "a" / "b"), r"name one of its runs: .*run/a/b"),
        (
            lambda folder: (
                small_run(folder / "evolve" / "gen_1"),
                (folder / "evolve" / "ledger.jsonl").touch(),
            ),
            r"it is of a search, whose report is .*run/evolve/report.md; name one of its runs: .*/gen_1",
        ),
    ],
    ids=["missing", "a file", "empty", "foreign", "around a run", "a search"],
)  # fmt: skip
def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path, make: Any, said: str) -> None:
    make(tmp_path / "run")
    with pytest.raises(ReportError, match=said) as error:
        read_report([tmp_path / "run"])
    assert "\n" not in str(error.value)


def test_a_checkpoint_leads_to_its_run(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    checkpoint = run / "checkpoints" / "global_step_2"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.yaml").write_text("")
    with pytest.raises(
        ReportError, match=f"is a checkpoint; name the folder of its run: {re.escape(str(run))}$"
    ):
        RunFolder(checkpoint)


def test_a_run_without_a_step_has_notes(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("data:\n  seed: 1\n")
    run = run_at(tmp_path)
    assert run["config"] == {"data.seed": 1} and run["steps"] == [] and run["episodes"]["length"] == 0
    assert [note.split(":")[0] for note in run["notes"]] == ["no run.json", "no metrics", "no trajectories"]


@pytest.mark.parametrize(("limit", "said"), [(-1, False), (0, False), (8, True)])
def test_a_run_that_records_a_part_of_its_episodes_says_so(tmp_path: Path, limit: int, said: bool) -> None:
    folder = small_run(tmp_path / "run")
    (folder / "config.yaml").write_text(f"trainer:\n  log_trajectories: {limit}\n")
    notes = [
        note for note in run_at(folder)["notes"] if note.startswith(f"trainer.log_trajectories={limit}: ")
    ]
    assert bool(notes) is said


def test_damaged_lines_are_left_out_and_named(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    whole = run_at(folder)
    file = folder / "trajectories" / "train_000001.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    damage = [
        b"\xff\xfe{\n",
        b"[1]\n",
        b'{"calls": 3}\n',
        b"[" * 100_000 + b"\n",
        b"\n",
        b'{"a": ' + b"9" * 9999,
    ]
    file.write_bytes(b"".join([*lines[:2], *damage[:5], *lines[2:], damage[5]]))
    (folder / "credit" / "step_000001.json").write_text("{")
    (folder / "config.yaml").write_text("a: [")
    with (folder / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"other": 1}\n{"step": 3, "episo')
    with (folder / "timeline.jsonl").open("ab") as spans:
        spans.write(b"\0\0\0\n")
    run = run_at(folder)
    assert column(run["episodes"], "traj_uid") == column(whole["episodes"], "traj_uid")
    assert run["steps"] == whole["steps"] and run["metrics"] == whole["metrics"] and run["config"] == {}
    assert list(run["credit"]) == ["2"]
    named = {(entry["file"], entry["line"]) for entry in run["damaged"]}
    train = "trajectories/train_000001.jsonl"
    assert named == {
        *((train, line) for line in (3, 4, 5, 6, 12)),
        ("credit/step_000001.json", None),
        ("config.yaml", None),
        ("metrics.jsonl", 4),
        ("metrics.jsonl", 5),
        ("timeline.jsonl", 5),
    }
    assert "cut off" in next(entry["why"] for entry in run["damaged"] if entry["line"] == 12)
    (note,) = (note for note in run["notes"] if "damaged" in note)
    assert note.startswith("10 damaged lines or files are left out: ")


def test_values_of_other_types_and_non_finite_ones_are_nulls(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")

    def change(row: dict[str, Any]) -> None:
        row["team_reward"] = "high"
        row["task_id"] = 7
        row["info"] = ["no"]
        row["unheard"] = None
        row["turn_rewards"] = [float("nan"), 1]
        row["calls"][0] |= {"agent_id": None, "reward": float("inf"), "prompt": 3, "reply": None, "seed": "x"}

    rewrite(folder / "trajectories" / "train_000001.jsonl", change)
    rewrite(folder / "metrics.jsonl", lambda row: row.update({"episode/success": "?", "more": 1e999}))
    run = run_at(folder)
    at = column(run["episodes"], "step").index(1)
    row = {name: column(run["episodes"], name)[at] for name in run["episodes"] if name != "length"}
    assert (row["team_reward"], row["task_id"], row["success"], row["turn_rewards"]) == (
        None,
        "7",
        None,
        [None, 1],
    )
    call = {name: column(run["calls"], name)[row["first_call"]] for name in run["calls"] if name != "length"}
    assert (call["reward"], run["agents"][call["agent"]]["agent"]) == (None, "")
    assert run["metrics"]["episode/success"][0] is None and run["metrics"]["more"] == [None] * 3
    json.dumps(run, allow_nan=False)


def test_a_run_of_an_older_version_has_no_credit_no_state_and_no_times(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    (folder / "run.json").unlink()
    for file in (folder / "credit").iterdir():
        file.unlink()
    for file in (folder / "trajectories").iterdir():
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            row.pop("started")
            row["calls"] = [
                {
                    k: v
                    for k, v in call.items()
                    if k not in ("order", "prior_replies", "began", "ended", "waited")
                }
                for call in row["calls"]
            ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = run_at(folder)
    assert run["state"] is None and run["credit"] == {} and run["calls"]["began"] == {"all": None}
    assert run["notes"] == ["no run.json: the run is of an older version, or its file is damaged"]
    assert [agent["trained"] for agent in run["agents"]] == [True, True]


def test_a_running_run_has_its_open_spans(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    open_span = {"wg_id": "solver_agent", "call": "update_actor", "start": 1796000123.5}
    state_of(folder, state="running", open_spans=[open_span, "damaged"], step=2)
    run = run_at(folder)
    assert run["state"]["state"] == "running"
    ends = column(run["spans"], "end")
    assert ends[-1] is None and None not in ends[:-1] and column(run["spans"], "start")[-1] == 1796000123.5
    assert column(run["spans"], "lane")[-1] == "solver_agent"


def test_a_resumed_run_keeps_what_it_continues(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run", steps=4)
    old = 1_700_000_000
    for file in [*folder.glob("trajectories/*"), *folder.glob("credit/*")]:
        os.utime(file, (old, old))
    for file in [*folder.glob("*/*_000003.*"), *folder.glob("credit/step_000003.json")]:
        os.utime(file)
    state_of(folder, attempt={"started": old + 1000, "from_step": 2})
    run = run_at(folder)
    # step 4 is of the attempt that was given up
    assert sorted(set(column(run["episodes"], "step"))) == [0, 1, 2, 3] and list(run["credit"]) == [
        "1",
        "2",
        "3",
    ]
    assert "resumed from step 2" in run["notes"]
    assert (
        "files of an earlier run in this folder are left out: train_000004.jsonl, val_000004.jsonl"
        in run["notes"]
    )


def test_a_start_that_has_not_read_its_checkpoint_hides_nothing(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run", steps=3)
    old = 1_700_000_000
    for file in [*folder.glob("trajectories/*"), *folder.glob("credit/*")]:
        os.utime(file, (old, old))
    state_of(folder, attempt={"started": old + 1000, "from_step": None}, state="running")
    run = run_at(folder)
    assert sorted(set(column(run["episodes"], "step"))) == [0, 1, 2, 3]
    assert "the last start has not come to its first step: the rest is of a start before it" in run["notes"]


@pytest.mark.parametrize(
    "left", [None, "metrics", "timeline", "trajectories", "credit", "audit", "checkpoints"]
)
def test_an_earlier_start_is_named_where_it_has_left_something(tmp_path: Path, left: str | None) -> None:
    folder = small_run(tmp_path / "run")
    checkpoint = folder / "checkpoints" / "global_step_2"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text('{"global_step": 2}')
    (folder / "audit").mkdir()
    (folder / "audit" / "step_2.json").write_text("{}")
    state_of(folder, attempt={"started": 1_700_000_000, "from_step": None}, state="running")
    for path in [*folder.iterdir()]:
        if path.name not in ("run.json", "config.yaml") and path.stem != left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    # that of a start which has not come to its first step either
    (folder / "run.0.json").write_text("{}")
    notes = [note for note in run_at(folder)["notes"] if note.startswith("the last start ")]
    rest = "there is nothing of it yet" if left is None else "the rest is of a start before it"
    assert notes == [f"the last start has not come to its first step: {rest}"]


@pytest.mark.parametrize("version", ["new", "old"])
def test_files_of_an_earlier_run_in_the_folder_are_left_out(tmp_path: Path, version: str) -> None:
    """A fresh run of one step in a folder in which another one made three."""
    folder = small_run(tmp_path / "run", steps=3)
    old = 1_700_000_000
    for file in folder.rglob("*_00000[23].*"):
        os.utime(file, (old, old))
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:2]))
    if version == "new":
        started = max(file.stat().st_mtime for file in folder.rglob("*_000001.*")) - 1
        state_of(folder, attempt={"started": started, "from_step": 0}, step=1)
    else:
        (folder / "run.json").unlink()
    run = run_at(folder)
    assert sorted(set(column(run["episodes"], "step"))) == [0, 1] and list(run["credit"]) == ["1"]
    assert any("files of an earlier run" in note for note in run["notes"])


def test_a_run_without_trajectories_has_its_curves(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    for file in (folder / "trajectories").iterdir():
        file.unlink()
    rewrite(folder / "metrics.jsonl", lambda row: row.update({"val-core/toy/acc/mean@1": 0.25}))
    rewrite(folder / "metrics.jsonl", lambda row: row.update({"val-core/toy/acc/mean@1": 0.75}), line=2)
    run = run_at(folder)
    assert run["episodes"]["length"] == 0 and run["steps"] == [0, 1, 2]
    assert run["accuracy"]["before"] == {"step": 0, "n": None, "rate": 0.25, "low": None, "high": None}
    assert run["accuracy"]["after"]["rate"] == 0.75
    assert "no trajectories: none is complete, or trainer.log_trajectories=0" in run["notes"]


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    file = folder / "trajectories" / "train_000001.jsonl"
    file.unlink()
    file.symlink_to(folder)
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").mkdir()
    run = run_at(folder)
    assert {"file": "metrics.jsonl", "line": None, "why": "Is a directory"} in run["damaged"]
    assert run["steps"] == [] and 1 not in column(run["episodes"], "step")


def test_secrets_are_masked(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    (folder / "config.yaml").write_text(
        "agent:\n  api:\n    key: k\n    api_key: sk-1\n    api_key_env: NAME\n"
        "    url: https://me:pw@host/v1\ndata:\n  prompt_key: prompt\n"
        "env_vars:\n  HF_TOKEN: hf_1\n  WANDB_API_KEY: w\nmax_tokens: 5\n"
    )
    rewrite(
        folder / "trajectories" / "train_000001.jsonl",
        lambda row: row["info"].update({"password": "x", "nested": [{"auth_token": "y", "pad_token": "p"}]}),
    )
    config = run_at(folder)["config"]
    assert config == {
        "agent.api.key": "k",
        "agent.api.api_key": "***",
        "agent.api.api_key_env": "NAME",
        "agent.api.url": "https://***@host/v1",
        "data.prompt_key": "prompt",
        "env_vars.HF_TOKEN": "***",
        "env_vars.WANDB_API_KEY": "***",
        "max_tokens": 5,
    }


@pytest.mark.parametrize("hostile", [["x"], "x", 1, {"x": ["y"]}, [[{}]], None, [{"wg_id": [], "start": 1}]])
def test_a_state_of_any_shape_is_read(tmp_path: Path, hostile: Any) -> None:
    folder = small_run(tmp_path / "run")
    for name in ("attempt", "open_spans", "agents", "heartbeat", "step", "total_steps"):
        state_of(folder, state="running", **{name: hostile})
        assert run_at(folder)["state"]["state"] == "running"
    for name in ("started", "from_step"):
        state_of(folder, attempt={name: hostile})
        run_at(folder)


@pytest.mark.parametrize("text", ["a: &a {b: *a}", "a: &a [1, 2]\nb: &b [*a, *a]\nc: [*b, *b]"])
def test_a_configuration_of_aliases_is_damaged(tmp_path: Path, text: str) -> None:
    """Their number of values grows with two to the power of the number of lines."""
    folder = small_run(tmp_path / "run")
    (folder / "config.yaml").write_text(text)
    run = run_at(folder)
    assert run["config"] == {} and [entry["file"] for entry in run["damaged"]] == ["config.yaml"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "timeline.jsonl", "run.json", "config.yaml"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = small_run(tmp_path / "run")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert {"file": name, "line": None, "why": "it is no file"} in run_at(folder)["damaged"]
