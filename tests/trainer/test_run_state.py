"""`run.json` says how a run stands, whatever happens to it."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.house.source import ROOT
from tests.waiting import wait_until
from verl.trainer import run_state
from verl.trainer.ppo.interrupt import StoppedAtOnce
from verl.trainer.ppo.timeline import OpenSpan, Timeline
from verl.trainer.run_state import RunState, commit
from verl.utils.disk import DiskError


def read(folder: Path, name: str = "run.json") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / name).read_text())
    return content


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_state, "PERIOD_S", 0.02)


def test_it_is_there_from_the_start_and_says_done_at_the_end(tmp_path: Path) -> None:
    with RunState(tmp_path / "run", {"agents": []}):
        begun = read(tmp_path / "run")
    ended = read(tmp_path / "run")
    assert (begun["state"], ended["state"]) == ("running", "done")
    assert begun["format"] == 1 and begun["agents"] == [] and begun["error"] is None
    assert begun["attempt"] == {"started": pytest.approx(time.time(), abs=60), "from_step": None}
    assert ended["heartbeat"] >= begun["heartbeat"] >= begun["attempt"]["started"]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]


def test_a_hang_leaves_a_trace(tmp_path: Path, often: None) -> None:
    timeline = Timeline()
    progress: Any = SimpleNamespace(global_step=3, total_steps=9)
    spans = lambda: [*timeline.open(), OpenSpan("solver", "generate", 5.0)]  # noqa: E731
    with RunState(tmp_path, {}) as state, timeline.span("solver", "update_actor"):
        state.follow(progress, spans, lambda: 7)
        state.begin(2)
        wait_until(lambda: read(tmp_path)["step"] == 3)
        began = read(tmp_path)
        timeline.take()  # what is written to the timeline meanwhile does not change when it began
        wait_until(lambda: read(tmp_path)["heartbeat"] > began["heartbeat"])
        later = read(tmp_path)
    assert later["open_spans"] == began["open_spans"]
    assert [span["call"] for span in later["open_spans"]] == ["update_actor", "generate"]
    assert later["open_spans"][0]["start"] == pytest.approx(time.time(), abs=60)
    assert (later["total_steps"], later["episodes_in_progress"]) == (9, 7)
    assert later["attempt"]["from_step"] == 2


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ValueError("no such model \ud800"), "failed"),
        (StoppedAtOnce(15, "for the second time"), "stopped"),
        (KeyboardInterrupt(), "stopped"),
        (SystemExit(1), "failed"),
        (SystemExit(0), "stopped"),
    ],
)
def test_an_error_ends_it(tmp_path: Path, error: BaseException, state: str) -> None:
    error.add_note("step 2 is saved")
    with pytest.raises(type(error)), RunState(tmp_path, {}):
        raise error
    ended = read(tmp_path)
    assert ended["state"] == state
    assert ended["error"].startswith(f"{type(error).__name__}: ") and "step 2 is saved" in ended["error"]


def test_an_error_is_written_before_what_is_closed_after_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="broken"), RunState(tmp_path, {}) as state:
        try:
            raise ValueError("broken")
        except ValueError as error:
            state.note(type(error), error, None)
            assert (read(tmp_path)["state"], read(tmp_path)["error"]) == ("failed", "ValueError: broken")
            raise


def test_a_run_that_a_signal_stops_without_an_error_is_stopped(tmp_path: Path) -> None:
    with RunState(tmp_path, {}) as state:
        state.stopped = True
    assert (read(tmp_path)["state"], read(tmp_path)["error"]) == ("stopped", None)


def test_the_file_of_an_earlier_start_stays(tmp_path: Path) -> None:
    for step in range(3):
        with RunState(tmp_path, {"number": step}):
            pass
    assert [read(tmp_path, name)["number"] for name in ("run.1.json", "run.2.json", "run.json")] == [0, 1, 2]


def test_an_error_of_the_recorder_is_logged_once_and_ends_nothing(
    tmp_path: Path, often: None, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def broken() -> int:
        calls.append(1)
        raise KeyError("no such episode")

    with caplog.at_level(logging.WARNING), RunState(tmp_path, {}) as state:
        progress: Any = SimpleNamespace(global_step=0, total_steps=1)
        state.follow(progress, list, broken)
        wait_until(lambda: len(calls) > 3)
        state.changed()
        state.follow(progress, list, int)
    assert len([record for record in caplog.records if "run.json was not written" in record.message]) == 1
    assert read(tmp_path)["state"] == "done"


def test_a_disk_that_refuses_ends_the_run_at_the_next_change(tmp_path: Path, often: None) -> None:
    with pytest.raises(DiskError, match=r"run\.json could not be written"), RunState(tmp_path, {}) as state:
        refuse = threading.Event()

        def refused() -> Any:
            refuse.set()
            raise OSError(28, "No space left on device")

        state.follow(SimpleNamespace(global_step=0, total_steps=1), refused, int)  # type: ignore[arg-type]
        wait_until(refuse.is_set)
        state.follow(SimpleNamespace(global_step=0, total_steps=1), list, int)  # type: ignore[arg-type]
        wait_until(lambda: state._disk_error)
        state.changed()
    assert read(tmp_path)["state"] == "failed"


def test_the_commit_is_that_of_the_checkout_alone(tmp_path: Path) -> None:
    inside = tmp_path / "package"
    inside.mkdir()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    assert commit(tmp_path) is None
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    first = commit(tmp_path)
    assert first is not None and len(first) == 40
    (tmp_path / "file").write_text("2")
    assert commit(tmp_path) == f"{first}-dirty"
    assert commit(inside) is None


PROCESS = """
import signal, sys, time
from pathlib import Path
from verl.trainer import run_state
from verl.trainer.ppo.interrupt import stopping_at_once
run_state.PERIOD_S = 0.05
with run_state.RunState(Path(sys.argv[1]), {}), stopping_at_once():
    print("begun", flush=True)
    time.sleep(120)
"""


@contextmanager
def process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-c", PROCESS, str(folder)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment, text=True) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "begun\n"
            yield started
        finally:
            started.kill()


@pytest.mark.parametrize(("number", "state"), [(signal.SIGTERM, "stopped"), (signal.SIGINT, "stopped")])
def test_a_process_that_is_stopped_says_so(tmp_path: Path, number: int, state: str) -> None:
    with process(tmp_path) as started:
        started.send_signal(number)
        started.wait(30)
    assert read(tmp_path)["state"] == state
    assert signal.Signals(number).name in read(tmp_path)["error"]


def test_a_process_that_is_killed_or_stands_still_has_an_old_heartbeat(tmp_path: Path) -> None:
    with process(tmp_path) as started:
        first = read(tmp_path)["heartbeat"]
        wait_until(lambda: read(tmp_path)["heartbeat"] > first)
        started.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, started.pid, os.WSTOPPED | os.WNOWAIT)
        still = read(tmp_path)["heartbeat"]
        time.sleep(0.3)
        assert read(tmp_path)["heartbeat"] == still
        started.kill()
        started.wait(30)
    assert (read(tmp_path)["state"], read(tmp_path)["heartbeat"]) == ("running", still)
