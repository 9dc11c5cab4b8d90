"""What the recipes' scripts share: several runs at a time, and a folder for what they find."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recipe.memory import MemoryWatch
from recipe.runs import finished, folder


def test_a_failed_run_is_reported_and_does_not_affect_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")

    def fail() -> int:
        raise RuntimeError("ended with status 3; its output is in run.log")

    found = []
    with pytest.raises(SystemExit, match="1 of 3 runs failed"):
        for value in finished([lambda: 1, fail, lambda: 2], jobs=2):
            found.append(value)
    assert sorted(found) == [1, 2]
    assert capsys.readouterr().err == "ended with status 3; its output is in run.log\n"
    assert os.environ["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(("jobs", "cores", "threads"), [(1, 8, None), (2, 8, "4"), (3, 2, "1")])
def test_runs_at_the_same_time_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, jobs: int, cores: int, threads: str | None
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "9")  # so that what is there now comes back afterwards
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert list(finished([lambda: os.environ.get("OMP_NUM_THREADS")], jobs)) == [threads]


def test_the_folder_of_results_is_there_before_anything_starts(tmp_path: Path) -> None:
    assert folder(str(tmp_path / "a" / "b")) == tmp_path / "a" / "b" and (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(argparse.ArgumentTypeError, match="file"):
        folder(str(tmp_path / "file"))


def test_the_memory_of_a_process_is_that_of_all_below_it() -> None:
    program = (
        f"'{sys.executable}' -S -c 'kept = bytes(1) + bytearray(100 << 20); print(flush=True); input()'; true"
    )
    with subprocess.Popen(["bash", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        watch = MemoryWatch(process.pid, period_s=0.01)
        watch.start()
        while watch.peak_gib == 0:
            time.sleep(0.01)
        watch.stop()
        process.communicate(b"\n")
    assert 100 / 1024 < watch.peak_gib < 0.2
