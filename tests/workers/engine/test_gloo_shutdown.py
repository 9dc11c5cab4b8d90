"""A process waits at its end for gloo's threads, and only for them."""

import threading
import time
from pathlib import Path

import pytest

from verl.workers.engine.gloo_shutdown import THREAD_NAME, wait_for_threads


def write_thread(tasks: Path, number: int, name: str, state: str) -> None:
    folder = tasks / str(number)
    folder.mkdir(exist_ok=True)
    (folder / "comm").write_text(name + "\n")
    (folder / "stat").write_text(f"{number} (a (odd) name) {state} 1 1")


@pytest.mark.timing
def test_waits_for_a_running_gloo_thread_and_for_no_other(tmp_path: Path) -> None:
    write_thread(tmp_path, 1, "python", "R")
    write_thread(tmp_path, 2, THREAD_NAME, "S")
    assert wait_for_threads(tmp_path, limit_s=5.0)
    write_thread(tmp_path, 3, THREAD_NAME, "R")
    assert not wait_for_threads(tmp_path, limit_s=0.05)
    threading.Timer(0.2, write_thread, (tmp_path, 3, THREAD_NAME, "S")).start()
    start = time.monotonic()
    assert wait_for_threads(tmp_path, limit_s=20.0)
    assert 0.1 < time.monotonic() - start < 10


@pytest.mark.timing
def test_a_machine_without_proc_loses_no_time(tmp_path: Path) -> None:
    start = time.monotonic()
    assert wait_for_threads(tmp_path / "none")
    assert time.monotonic() - start < 2
