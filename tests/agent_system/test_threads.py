"""Threads of blocking environments."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from agent_system.threads import DaemonExecutor

HANGS = """
import threading
from agent_system.threads import DaemonExecutor
with DaemonExecutor(1) as threads:
    threads.submit(threading.Event().wait)
"""


def test_results_and_errors_come_back() -> None:
    with DaemonExecutor(2) as threads:
        assert threads.submit(lambda x: x + 1, 1).result(5) == 2
        with pytest.raises(ZeroDivisionError):
            threads.submit(lambda: 1 / 0).result(5)


def test_no_more_threads_than_asked_for_and_they_are_used_again() -> None:
    with DaemonExecutor(2) as threads:
        names = {threads.submit(lambda: threading.current_thread().name).result(5) for _ in range(20)}
    assert names <= {"env-0", "env-1"}


def test_an_environment_that_hangs_does_not_keep_the_process_from_ending() -> None:
    assert subprocess.run([sys.executable, "-c", HANGS], timeout=60, check=False).returncode == 0
