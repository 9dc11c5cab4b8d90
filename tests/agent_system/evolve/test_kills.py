"""A search that is killed at any moment and started again ends with the same bytes, and has paid for one
batch more a kill at most.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from tests.house.source import ROOT

SCRIPT = Path(__file__).with_name("scripted_search.py")
FILES = ("ledger.jsonl", "report.md", "replies.jsonl", "best.yaml")


def started(folder: Path, seconds: float, python: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [python, str(SCRIPT), str(folder), str(seconds)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)


def ended(folder: Path, python: str) -> int:
    """Let a search end, and return the number of batches that it has played in all its lives."""
    process = started(folder, 0, python)
    process.communicate(timeout=120)
    assert process.returncode == 0
    return len((folder / "batches").read_text())


@pytest.mark.timeout(900)
def test_kills_change_nothing_but_the_price_of_a_batch(
    tmp_path: Path, request: pytest.FixtureRequest, forked_python: str
) -> None:
    kills = 20 if request.config.getoption("--all-levels") else 2
    whole = ended(tmp_path / "whole", forked_python)
    folder = tmp_path / "killed"
    rng = random.Random(0)
    for _ in range(kills):
        ledger = folder / "ledger.jsonl"
        before = ledger.stat().st_size if ledger.exists() else 0
        process = started(folder, 0.1, forked_python)
        # the start takes a while: a kill comes at a random moment after the first new line
        while process.poll() is None and (not ledger.exists() or ledger.stat().st_size <= before):
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.3))
        process.kill()
        process.communicate()  # until the search is gone, which has the other end of its stdout
    batches = ended(folder, forked_python)
    for name in FILES:
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert whole <= batches <= whole + kills
