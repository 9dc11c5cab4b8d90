"""Metrics reach every backend once, survive a resume without duplicates, and bad settings stop before the
run.
"""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from verl.utils.tracking import Tracking, check_backends
from verl.utils.tracking.jsonl import read_steps


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def start(folder: Path, backend: str = "jsonl", **options: Any) -> Tracking:
    return Tracking("project", "experiment", backend, run_dir=folder, **options)


def test_a_step_is_one_json_line_on_disk_when_log_returns(tmp_path: Path) -> None:
    tracking = start(tmp_path)
    tracking.log({"loss": torch.tensor(0.5), "n": np.int64(3), "ok": True, "np": np.float32(0.25)}, step=1)
    assert lines(tmp_path) == [{"step": 1, "loss": 0.5, "n": 3, "ok": 1.0, "np": 0.25}]
    tracking.finish()


def test_a_second_log_of_a_step_adds_to_its_line(tmp_path: Path) -> None:
    with start(tmp_path) as tracking:
        tracking.log({"loss": 0.5, "a-long-name-that-is-overwritten": 1.0}, step=1)
        tracking.log({"val": 0.75}, step=1)
        tracking.log({"loss": 0.25}, step=2)
    assert lines(tmp_path) == [
        {"step": 1, "loss": 0.5, "a-long-name-that-is-overwritten": 1.0, "val": 0.75},
        {"step": 2, "loss": 0.25},
    ]


def test_resume_leaves_every_step_once(tmp_path: Path) -> None:
    with start(tmp_path) as tracking:
        for step in range(1, 6):
            tracking.log({"loss": float(step)}, step)
    with start(tmp_path, resume_step=3) as tracking:
        tracking.log({"val": 0.5}, 3)
        tracking.log({"loss": 40.0}, 4)
    assert lines(tmp_path) == [
        {"step": 1, "loss": 1.0},
        {"step": 2, "loss": 2.0},
        {"step": 3, "loss": 3.0, "val": 0.5},
        {"step": 4, "loss": 40.0},
    ]


def test_resume_may_be_told_after_construction_but_not_after_the_first_log(tmp_path: Path) -> None:
    with start(tmp_path) as tracking:
        for step in (1, 2):
            tracking.log({}, step)
    with start(tmp_path) as tracking:
        tracking.resume(1)
        tracking.log({"again": 1.0}, 2)
        with pytest.raises(RuntimeError, match="after the first log"):
            tracking.resume(0)
    assert lines(tmp_path) == [{"step": 1}, {"step": 2, "again": 1.0}]


def test_lines_dropped_by_a_resume_are_backed_up(tmp_path: Path) -> None:
    with start(tmp_path) as tracking:
        for step in (1, 2, 3):
            tracking.log({"loss": 1.0}, step)
    with start(tmp_path, resume_step=1) as tracking:
        tracking.log({"val": 0.5}, 1)
    assert [row["step"] for row in lines(tmp_path)] == [1]
    assert [row["step"] for row in read_steps(tmp_path / "metrics.1.jsonl")] == [1, 2, 3]


def test_resume_drops_a_line_torn_by_a_crash(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n{"step": 2, "lo')
    with start(tmp_path, resume_step=2) as tracking:
        tracking.log({"loss": 3.0}, 3)
    assert [row["step"] for row in lines(tmp_path)] == [1, 3]


def test_resume_refuses_a_broken_file_and_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('oops\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl:1 is not JSON"):
        start(tmp_path, resume_step=2).start()


def test_a_fresh_run_backs_up_the_earlier_file(tmp_path: Path) -> None:
    for value in (1.0, 2.0, 3.0):
        with start(tmp_path) as tracking:
            tracking.log({"loss": value}, 1)
    assert [row["loss"] for row in lines(tmp_path)] == [3.0]
    assert read_steps(tmp_path / "metrics.1.jsonl")[0]["loss"] == 1.0
    assert read_steps(tmp_path / "metrics.2.jsonl")[0]["loss"] == 2.0


def test_steps_out_of_order_are_an_error(tmp_path: Path) -> None:
    with start(tmp_path) as tracking:
        tracking.log({}, 2)
        with pytest.raises(ValueError, match="already has step 2; got step 1"):
            tracking.log({}, 1)


def test_not_a_number_stays_valid_json(tmp_path: Path) -> None:
    with start(tmp_path) as tracking:
        tracking.log({"nan": math.nan, "inf": math.inf}, 1)
    assert lines(tmp_path) == [{"step": 1, "nan": None, "inf": None}]


@pytest.mark.parametrize("value", ["0.5", [1.0], None, torch.ones(2)])
def test_a_metric_that_is_not_one_number_is_named(tmp_path: Path, value: Any) -> None:
    with start(tmp_path) as tracking, pytest.raises(TypeError, match="metric 'agent/x'"):
        tracking.log({"agent/x": value}, 1)


def test_an_unknown_backend_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'swanlab'; expected any of jsonl, tensorboard"):
        Tracking("p", "e", ["jsonl", "swanlab"], run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_backend_given_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="twice"):
        check_backends(["jsonl", "jsonl"])


def test_a_missing_package_is_an_error_that_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['tensorboard'] = None\n"
        "from verl.utils.tracking import Tracking\n"
        f"Tracking('p', 'e', ['jsonl', 'tensorboard'], run_dir={str(tmp_path / 'run')!r})"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "ModuleNotFoundError: trainer.logger has 'tensorboard'" in result.stderr
    assert "pip install tensorboard" in result.stderr
    assert not (tmp_path / "run").exists()


def test_tensorboard_reads_back_what_was_logged(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with start(tmp_path, "tensorboard") as tracking:
        tracking.log({"loss": 0.5}, 7)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(7, 0.5)]


def test_wandb_runs_offline_and_a_resumed_run_has_the_same_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with start(tmp_path, "wandb", config={"lr": 1e-6}) as tracking:
        tracking.log({"loss": 0.5}, 1)
    first = (tmp_path / "wandb_run_id").read_text()
    with start(tmp_path, "wandb", resume_step=1) as tracking:
        tracking.log({"loss": 0.25}, 2)
    assert (tmp_path / "wandb_run_id").read_text() == first
    assert {path.stem for path in (tmp_path / "wandb").glob("offline-run-*/*.wandb")} == {f"run-{first}"}


def test_log_can_name_its_backends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Tracking("p", "e", ["console", "jsonl"], run_dir=tmp_path, total_steps=3) as tracking:
        tracking.log({"critic/score/mean": 0.5}, 1)
        assert capsys.readouterr().out.startswith("step 1/3  reward 0.500  ETA")
        tracking.log({"critic/score/mean": 1.0}, 2, backend="jsonl")
    assert len(lines(tmp_path)) == 2
    assert [line for line in capsys.readouterr().out.splitlines() if "step 2" in line] == []


ROWS = [["toy:1", 0.5, None, "<script>alert(1)</script> | *a*\nb"], ["toy:2", 1.0, 1.0, ""]]
COLUMNS = ["task_id", "team_reward", "success", "replies"]


def test_a_table_has_a_key_with_its_step_and_goes_to_those_that_show_tables(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Tracking("p", "e", ["jsonl", "tensorboard"], run_dir=tmp_path) as tracking:
        assert tracking.takes_tables
        for step in (0, 5):
            tracking.log_table("val/episodes", COLUMNS, ROWS, step)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    keys = [f"val/episodes/{step:06d}/text_summary" for step in (0, 5)]
    assert events.Tags()["tensors"] == keys
    (event,) = events.Tensors(keys[1])
    (text,) = event.tensor_proto.string_val
    assert event.step == 5 and b"<script>" not in text and b"&lt;script&gt;" in text
    assert len(text.splitlines()) == 4 and b"| toy:2 | 1 | 1 |  |" in text
    with start(tmp_path / "other") as plain:
        assert not plain.takes_tables
        plain.log_table("val/episodes", COLUMNS, ROWS, 1)


def test_wandb_has_a_table_for_each_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with start(tmp_path, "wandb") as tracking:
        for step in (0, 5):
            tracking.log_table("val/episodes", COLUMNS, ROWS, step)
    tables = sorted((tmp_path / "wandb").glob("offline-run-*/files/media/table/val/episodes/*.table.json"))
    assert [path.name[:6] for path in tables] == ["000000", "000005"]
    assert json.loads(tables[1].read_text())["data"] == ROWS


def test_trackio_reads_back_what_was_logged_and_a_resumed_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(
        "trackio", reason="needs trackio: bash scripts/setup.sh report, or pip install trackio"
    )
    code = f"""
import sys
from pathlib import Path
from verl.utils.tracking import Tracking
run = Path({str(tmp_path / "run")!r})
with Tracking("project", "experiment", "trackio", {{"lr": 1e-6}}, run) as tracking:
    tracking.log({{"loss": 0.5}}, 1)
    tracking.log_table("val/episodes", {COLUMNS!r}, {ROWS!r}, 1)
with Tracking("project", "experiment", "trackio", {{}}, run, resume_step=1) as tracking:
    tracking.log({{"loss": 0.25}}, 2)
from trackio.sqlite_storage import SQLiteStorage
runs = SQLiteStorage.get_runs("project")
assert len(runs) == 1, runs
logs = SQLiteStorage.get_logs("project", runs[0])
assert [(line["step"], line["loss"]) for line in logs if "loss" in line] == [(1, 0.5), (2, 0.25)], logs
(table,) = [line["val/episodes/000001"] for line in logs if "val/episodes/000001" in line]
assert table["_type"] == "trackio.table", table
assert table["_value"][1]["task_id"] == "toy:2" and "\\\\<script>" in table["_value"][0]["replies"], table
"""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
