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
        assert threads.submit(lambda x: x + 1, 1).result(30) == 2
        with pytest.raises(ZeroDivisionError):
            threads.submit(lambda: 1 / 0).result(30)


def test_no_more_threads_than_asked_for_and_they_are_used_again() -> None:
    with DaemonExecutor(2) as threads:
        names = {threads.submit(lambda: threading.current_thread().name).result(30) for _ in range(20)}
    assert names <= {"env-0", "env-1"}


def test_where_the_system_gives_fewer_threads_jobs_wait_for_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = threading.Thread.start
    begun: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        if len(begun) == 2:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        given(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    go_on = threading.Event()
    with DaemonExecutor(100) as threads:
        futures = [threads.submit(lambda i=i: (go_on.wait(30), i)[1]) for i in range(8)]
        go_on.set()
        assert [future.result(30) for future in futures] == list(range(8))
        assert threads.submit(lambda: "again").result(30) == "again"
    with DaemonExecutor(100) as threads, pytest.raises(RuntimeError, match="can't start new thread"):
        threads.submit(lambda: 0)


def test_an_environment_that_hangs_does_not_keep_the_process_from_ending() -> None:
    assert subprocess.run([sys.executable, "-c", HANGS], timeout=240, check=False).returncode == 0


def test_a_call_that_nobody_waits_for_any_more_does_not_take_the_place_of_others() -> None:
    go_on, hanging = threading.Event(), set[threading.Thread]()

    def wait() -> None:
        hanging.add(threading.current_thread())
        go_on.wait(30)

    with DaemonExecutor(2) as threads:
        for _ in range(3):  # more than there are threads
            hung = threads.submit(wait)
            while not hung.running():
                go_on.wait(0.001)
            assert not hung.cancel() and not hung.cancel()
        others = {threads.submit(threading.current_thread).result(30) for _ in range(20)}
        assert len(others) <= 2 and not others & hanging
        go_on.set()
    for thread in hanging | others:
        thread.join(30)
        assert not thread.is_alive()
