"""The clock of tests that hold a bound of time."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.house.source import ROOT
from tests.stopwatch import Stopwatch


def test_time_that_was_given_counts() -> None:
    with Stopwatch() as watch:
        time.sleep(0.3)
    assert watch.seconds + watch.stalled == pytest.approx(0.3, abs=0.2)
    assert watch.seconds >= 0.3 - watch.stalled


def test_time_in_which_nothing_ran_does_not() -> None:
    code = (
        "import sys\nfrom tests.stopwatch import Stopwatch\n"
        "with Stopwatch() as watch:\n    print('there', flush=True)\n    sys.stdin.readline()\n"
        "print(watch.seconds, watch.stalled)"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, **pipes) as process:
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.0)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.2)
        seconds, stalled = map(float, process.communicate("\n")[0].split())
    assert stalled >= 0.9
    assert seconds < 0.9
